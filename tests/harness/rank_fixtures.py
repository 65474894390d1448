"""Fixtures of the folders whose tests share rank processes. A conftest.py that imports them has the fixtures
`processes` and `nodes`, and those of session_fixtures.py; the processes know the module `states`.
"""

import itertools
import os

import pytest

from harness.ranks import LaunchedRanks

_numbers = itertools.count()


@pytest.fixture
def launch(processes, session_folder):
    """Makes the ranks of a new launch: launch(2) is a job of two."""
    return lambda world_size: LaunchedRanks(processes, session_folder, world_size)


@pytest.fixture
def alone(processes):
    """A process without a process group."""
    processes[0].do("states.leave()")
    return processes[0]


@pytest.fixture
def root(nodes):
    path = os.path.join(nodes.folder, f"ckpts-{next(_numbers)}")
    os.mkdir(path)
    return path
