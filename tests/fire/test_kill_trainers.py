"""SIGKILL of trainers at every step of the hand-off, alone and with a forked child that outlives them and holds everything open.
Either the save is published, or there is nothing of it and the daemon's memory is what it was.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from firing import Daemon, await_nothing_left, closing
from harness import until
from record import Record, Version
from trainers import Trainer

SIZE = 300_000
STEPS = ["attached", "begun", "copying", "copied", "seal_sent", "sealed", "waiting"]
# From here on no trainer is needed any more.
PUBLISHED = {"sealed", "waiting"}
# The daemon has the request, its sender has no answer.
EITHER = {"seal_sent"}


@pytest.fixture(params=["threads", "io_uring"])
def daemon(request: Any, folder: pathlib.Path) -> Iterator[Daemon]:
    with closing(Daemon(folder, request.param)) as made:
        made.start()
        yield made


@pytest.fixture
def record(folder: pathlib.Path) -> Record:
    (folder / "root").mkdir()
    return Record(folder / "root")


def go_to(step: str, trainer: Trainer, version: Version, daemon: Daemon) -> None:
    """The trainer is at that step and stays there."""
    data = version.data(trainer.rank)
    assert trainer.do("attach") == "attached"
    if step == "attached":
        return
    assert trainer.do("begin", version.tag) == "begun"
    if step == "begun":
        return
    if step == "copying":
        assert trainer.do("copy", {version.name(trainer.rank): data[: SIZE // 2]}) == "copied"
        return
    assert trainer.do("copy", {version.name(trainer.rank): data}) == "copied"
    if step == "copied":
        return
    if step == "seal_sent":
        # A daemon that is stopped answers nothing; the kernel has the request once the trainer waits for the answer.
        os.kill(daemon.pid, signal.SIGSTOP)
        trainer.tell("seal")
        until(lambda: unread_bytes(daemon) > 0, "the request in the daemon's socket")
        return
    assert trainer.do("seal") == "sealed"
    if step == "waiting":
        trainer.tell("wait")


def unread_bytes(daemon: Daemon) -> int:
    """What is queued in sockets that the daemon has accepted at its gRPC socket."""
    total = 0
    out = subprocess.run(["ss", "-xH"], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        fields = line.split()
        if fields[4] == str(daemon.socket):
            total += int(fields[2])
    return total


def used(daemon: Daemon) -> tuple[int, int, int]:
    status = daemon.status()
    return status.pool.used_bytes, status.pool.lent_bytes, len(os.listdir(f"/proc/{daemon.pid}/fd"))


@pytest.mark.parametrize("with_child", [False, True], ids=["alone", "with_child"])
@pytest.mark.parametrize("step", STEPS)
def test_trainer_killed_at_a_step_leaves_a_checkpoint_or_nothing(
    daemon: Daemon, record: Record, step: str, with_child: bool
) -> None:
    before = used(daemon)
    version = record.begin("a", 1, SIZE)
    children = []
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(
            closing(Trainer(daemon.endpoint, "one", record.root, 0, 1, None))
        )
        try:
            if with_child:
                trainer.do("attach")
                children.append(trainer.do("fork_child"))
            go_to(step, trainer, version, daemon)
            trainer.kill()
            os.kill(daemon.pid, signal.SIGCONT)
            if step in PUBLISHED:
                until(lambda: (record.root / "a").exists(), "the checkpoint of the dead")
            until(lambda: used(daemon)[:2] == (0, 0), "the memory's return")
            await_nothing_left(record.root)
            there = record.check()
            assert step in EITHER or there == ({("a", 1)} if step in PUBLISHED else set())
            until(lambda: used(daemon)[2] <= before[2] + ROOT_DESCRIPTORS, "the end of its descriptors")
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
    # The next launch saves.
    with closing(Trainer(daemon.endpoint, "two", record.root, 0, 1, None)) as trainer:
        again = record.begin("a", 1, SIZE)
        kind, sequence = trainer.do("save", "a", {again.name(0): again.data(0)})
        assert kind == "committed", sequence
        record.committed(again, sequence)
    await_nothing_left(record.root)
    assert record.check() == {("a", 2)}


# A root that is open: its directories, its lock, its ring.
ROOT_DESCRIPTORS = 12


@pytest.mark.parametrize("step", ["begun", "copied"])
def test_one_of_two_trainers_killed_before_its_seal_is_named_to_the_other(
    daemon: Daemon, record: Record, step: str
) -> None:
    version = record.begin("a", 2, SIZE)
    with closing(Trainer(daemon.endpoint, "one", record.root, 0, 2, None)) as one:
        with closing(Trainer(daemon.endpoint, "one", record.root, 1, 2, None)) as two:
            one.tell("attach"), two.tell("attach"), one.hear(), two.hear()
            one.tell("begin", "a"), two.tell("begin", "a"), one.hear(), two.hear()
            if step == "copied":
                two.do("copy", {version.name(1): version.data(1)})
            one.do("copy", {version.name(0): version.data(0)})
            one.do("seal")
            one.tell("wait")
            two.kill()
            kind, reason = one.hear()
            assert (kind, reason) == ("failed", "SESSION_LOST")
            record.failed(version, reason)
        await_nothing_left(record.root)
        assert record.check() == set()
    until(lambda: used(daemon)[:2] == (0, 0), "the memory's return")
