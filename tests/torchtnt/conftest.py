"""Fixtures: a daemon and rank processes that all tests of this folder share, because importing TorchTNT takes long."""

import os
import pathlib

import pytest
from job_nodes import nodes, pair_of_nodes  # noqa: F401

from harness import Trainer
from harness.rank_fixtures import alone, launch, root  # noqa: F401
from harness.session_fixtures import *  # noqa: F403

FOLDER = pathlib.Path(__file__).parent
_NUM_PROCESSES = 4
_START_SECONDS = 180
_IMPORTS = (
    "import torch.distributed as dist, torch.distributed.checkpoint as dcp, ckptd.dcp\n"
    "from ckptd.torchtnt import CheckpointSaver, RestoreOptions\n"
    "import tnt_jobs as states\n"
    "from tnt_jobs import *\n"
)


@pytest.fixture(scope="session")
def start_processes(nodes):  # noqa: F811
    """Starts processes that end with the tests: start_processes(2). before: what they import first."""
    made = []

    def start(number, before=""):
        path = os.pathsep.join([str(FOLDER), str(FOLDER.parent / "dcp"), os.environ.get("PYTHONPATH", "")])
        environment = {"CKPTD_TEST_IMPORTS": f"{before}\n{_IMPORTS}", "PYTHONPATH": path}
        started = [Trainer(nodes.endpoint(rank), environment) for rank in range(number)]
        made.extend(started)
        for process in started:
            process.start("None")
        for process in started:
            process.result(_START_SECONDS)
        return started

    yield start
    for process in made:
        process.close()


@pytest.fixture(scope="session")
def processes(start_processes):
    return start_processes(_NUM_PROCESSES)
