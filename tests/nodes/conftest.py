"""Fixtures: a cluster, and launches in it that end with the test."""

import itertools

import pytest
from cluster import Cluster
from launches import Launch
from places import OneHost

from harness import temporary_folder


@pytest.fixture
def places():
    """A test module may have another one."""
    return OneHost()


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
