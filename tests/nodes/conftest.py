"""Fixtures: a cluster, and launches in it that end with the test."""

import itertools

import pytest
from cluster import Cluster
from launches import Launch
from places import OneHost, SeparateHosts
from shared_file_systems import chosen

from harness import temporary_folder


@pytest.fixture
def places():
    """All on this host, or on the file system of this sandbox. A test module may have other places."""
    file_system = chosen()
    made = SeparateHosts(file_system) if file_system else OneHost()
    yield made
    made.close()


@pytest.fixture
def cluster(request, places):
    with temporary_folder() as folder:
        made = Cluster(folder, places)
        yield made
        if getattr(request.node, "failed", False):
            print(made.logs())
        made.close()


@pytest.fixture
def launch(cluster):
    """Starts a launch of 2 ranks on each node, or on each of those given."""
    made = []
    numbers = itertools.count(1)

    def make(nodes=None, local_world_size=2):
        made.append(Launch(f"launch-{next(numbers)}", cluster.root, nodes or cluster.nodes, local_world_size))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Sets item.failed, for fixtures that outlive a test."""
    outcome = yield
    item.failed = getattr(item, "failed", False) or outcome.get_result().failed
