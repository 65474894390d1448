"""Fixtures: the example compiled outside the tree, a daemon with a root, and nodes that share a folder."""

import os

import pytest
import sdk_programs
from cluster import Cluster
from places import OneHost

from harness import Daemon, temporary_folder


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    """examples/cpp/train.cc, by g++ and pkg-config."""
    assert sdk_programs.SDK.exists(), "run tools/sdk"
    target = tmp_path_factory.mktemp("example") / "train"
    return sdk_programs.compile_with_pkg_config(sdk_programs.EXAMPLE / "train.cc", target)


@pytest.fixture
def folder():
    with temporary_folder() as path:
        yield str(path)


@pytest.fixture
def root(folder):
    path = os.path.join(folder, "ckpts")
    os.mkdir(path)
    return path


@pytest.fixture
def daemon(folder):
    made = Daemon(os.path.join(folder, "d"))
    yield made
    made.close()


@pytest.fixture
def two_nodes():
    places = OneHost()
    with temporary_folder() as path:
        made = Cluster(path, places, names=("gpu1", "gpu2"))
        os.mkdir(made.root)
        yield made
        made.close()
    places.close()
