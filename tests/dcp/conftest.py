"""Fixtures: a daemon and rank processes that all tests of this folder share, because importing torch takes long."""

import itertools
import os
import pathlib

import pytest

from harness import Daemon, Ranks, Trainer, temporary_folder

_NUM_PROCESSES = 4
_numbers = itertools.count()


class LaunchedRanks(Ranks):
    """The ranks of one launch: the first processes of all, in a process group of their own."""

    def __init__(self, processes, folder, world_size):
        super().__init__(processes[:world_size])
        store = os.path.join(folder, f"launch-{next(_numbers)}")
        for rank, process in enumerate(self.processes):
            process.start(f"states.join({store!r}, {rank}, {world_size})")
        for process in self.processes:
            process.result(60)


@pytest.fixture(scope="session")
def session_folder():
    with temporary_folder() as path:
        yield str(path)


@pytest.fixture(scope="session")
def daemon(session_folder):
    made = Daemon(os.path.join(session_folder, "d"), pool_bytes=512 << 20)
    yield made
    made.close()


def _start_processes(endpoint, number):
    imports = (
        "import torch.distributed as dist, torch.distributed.checkpoint as dcp, ckptd.dcp, dcp_states as states\n"
        "from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter\n"
        "from ckptd.dcp import Reader, Writer\n"
    )
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {"CKPTD_TEST_IMPORTS": imports, "PYTHONPATH": path}
    made = [Trainer(endpoint, environment) for _ in range(number)]
    for process in made:
        process.start("None")
    for process in made:
        process.result(120)
    return made


@pytest.fixture(scope="session")
def processes(daemon):
    made = _start_processes(daemon.endpoint, _NUM_PROCESSES)
    yield made
    for process in made:
        process.close()


@pytest.fixture
def start_processes():
    """Starts processes that end with the test: start_processes(endpoint, 2). For what a process does not survive."""
    made = []

    def start(endpoint, number):
        made.extend(_start_processes(endpoint, number))
        return made[-number:]

    yield start
    for process in made:
        process.close()


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
def root(session_folder):
    path = os.path.join(session_folder, f"ckpts-{next(_numbers)}")
    os.mkdir(path)
    return path
