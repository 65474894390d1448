"""Fixtures: a daemon, and rank processes that all tests of this folder share, because importing DeepSpeed takes long."""

import itertools
import os
import pathlib

import pytest
from job_nodes import nodes, pair_of_nodes  # noqa: F401

from harness import Ranks, Trainer
from harness.session_fixtures import *  # noqa: F403

_START_SECONDS = 180
_numbers = itertools.count()


def start_ranks(places, folder, world_size):
    """Starts the processes of a job, with one process group until their end."""
    imports = (
        "import signal, torch.distributed as dist, ckptd.deepspeed, ds_states as states\n"
        "from ckptd.deepspeed import CheckpointEngine\n"
        "import torch._inductor.compile_fx\n"  # DeepSpeed's engine imports it: two seconds in each rank.
    )
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {"CKPTD_TEST_IMPORTS": imports, "PYTHONPATH": path}
    store = os.path.join(folder, f"launch-{next(_numbers)}")
    made = Ranks([Trainer(places.endpoint(rank), environment) for rank in range(world_size)])
    for rank, process in enumerate(made.processes):
        process.start(f"states.join({store!r}, {rank}, {world_size})")
    for process in made.processes:
        process.result(_START_SECONDS)
    return made


def close(ranks):
    for process in ranks.processes:
        process.close()


@pytest.fixture(scope="session")
def shared_pair(nodes, session_folder):  # noqa: F811
    made = start_ranks(nodes, session_folder, 2)
    yield made
    close(made)


@pytest.fixture
def pair(shared_pair):
    """Two ranks, in which install() has not been called."""
    yield shared_pair
    shared_pair.do("ckptd.deepspeed.uninstall()")


@pytest.fixture
def new_ranks(nodes, session_folder):  # noqa: F811
    """Starts ranks that a test may kill: new_ranks(2)."""
    made = []

    def start(world_size):
        made.append(start_ranks(nodes, session_folder, world_size))
        return made[-1]

    yield start
    for ranks in made:
        close(ranks)


@pytest.fixture(scope="module")
def four_ranks(nodes, session_folder):  # noqa: F811
    made = start_ranks(nodes, session_folder, 4)
    yield made
    close(made)


@pytest.fixture(scope="module")
def jobs(nodes, session_folder, shared_pair):  # noqa: F811
    """Jobs of two, three and four ranks, by their number. The ranks are those of all tests of the module."""
    made = {count: start_ranks(nodes, session_folder, count) for count in (3, 4)}
    yield {2: shared_pair, **made}
    for ranks in made.values():
        close(ranks)


@pytest.fixture
def root(nodes):  # noqa: F811
    path = os.path.join(nodes.folder, f"ckpts-{next(_numbers)}")
    os.mkdir(path)
    return path
