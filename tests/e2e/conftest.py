"""Fixtures: a folder, a root, daemons and trainers, all ended after each test."""

import os

import pytest

from harness import Daemon, Trainer, temporary_folder


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
def make_daemon(folder):
    daemons = []

    def make(name="d", **options):
        daemons.append(Daemon(os.path.join(folder, name), **options))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.close()


@pytest.fixture
def daemon(make_daemon):
    return make_daemon()


@pytest.fixture
def trainers(daemon, root):
    """Starts the processes of one launch: trainers("a", 2) are its ranks, joined to `root` as `run`."""
    made = []

    def make(launch, world_size, where=None, env=None, endpoint=None, options="", join=True):
        launched = []
        for rank in range(world_size):
            environment = {"CKPTD_LAUNCH_ID": launch, **(env or {})}
            trainer = Trainer(endpoint or daemon.endpoint, environment)
            made.append(trainer)
            launched.append(trainer)
            trainer.start(
                f"client = ckptd.connect()\nrank, world = {rank}, {world_size}\n"
                + (f"run = client.run({where or root!r}, rank=rank, world_size=world{options})" if join else "")
            )
        for trainer in launched:
            trainer.result()
        return launched

    yield make
    for trainer in made:
        trainer.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Sets item.failed, for fixtures that outlive a test."""
    outcome = yield
    item.failed = getattr(item, "failed", False) or outcome.get_result().failed
