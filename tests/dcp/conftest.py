"""Fixtures: a daemon and rank processes that all tests of this folder share, because importing torch takes long."""

import os
import pathlib

import pytest
from job_nodes import nodes, pair_of_nodes  # noqa: F401

from harness import Trainer
from harness.rank_fixtures import alone, launch, root  # noqa: F401
from harness.session_fixtures import *  # noqa: F403

_NUM_PROCESSES = 4


def _start_processes(endpoints):
    imports = (
        "import torch.distributed as dist, torch.distributed.checkpoint as dcp, ckptd.dcp, dcp_states as states\n"
        "from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter\n"
        "from ckptd.dcp import Reader, Writer\n"
    )
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {"CKPTD_TEST_IMPORTS": imports, "PYTHONPATH": path}
    made = [Trainer(endpoint, environment) for endpoint in endpoints]
    for process in made:
        process.start("None")
    for process in made:
        process.result(120)
    return made


@pytest.fixture(scope="session")
def processes(nodes):  # noqa: F811
    made = _start_processes([nodes.endpoint(rank) for rank in range(_NUM_PROCESSES)])
    yield made
    for process in made:
        process.close()


@pytest.fixture
def start_processes():
    """Starts processes that end with the test: start_processes(endpoint, 2). For what a process does not survive."""
    made = []

    def start(endpoint, number):
        made.extend(_start_processes([endpoint] * number))
        return made[-number:]

    yield start
    for process in made:
        process.close()
