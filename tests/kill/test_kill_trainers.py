"""SIGKILL of trainers at every step of the hand-off, alone and with a forked child that keeps their descriptors open.
Either the save is published, or nothing of it is left and the daemon has its memory back.
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
from killable_daemon import KillableDaemon
from leftovers import wait_until_none_left
from save_record import SaveRecord, Version
from trainer_process import TrainerProcess

from harness import closing, stop, until

SIZE = 300_000
STEPS = ["attached", "begun", "copying", "copied", "seal_sent", "sealed", "waiting"]
# At these steps the daemon needs no trainer any more.
PUBLISHED = {"sealed", "waiting"}
# The daemon has the request, and its sender has no answer: both outcomes are right.
EITHER = {"seal_sent"}


@pytest.fixture(params=["threads", "io_uring"])
def daemon(request: Any, folder: pathlib.Path) -> Iterator[KillableDaemon]:
    with closing(KillableDaemon(folder, request.param)) as made:
        made.start()
        yield made


@pytest.fixture
def record(folder: pathlib.Path) -> SaveRecord:
    (folder / "root").mkdir()
    return SaveRecord(folder / "root")


def go_to(step: str, trainer: TrainerProcess, version: Version, daemon: KillableDaemon) -> None:
    """Brings the trainer to that step, where it stays."""
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
        # A stopped daemon does not answer. The request is in its socket once the trainer waits for the answer.
        stop(daemon.pid)
        trainer.send("seal")
        until(lambda: unread_bytes(daemon) > 0, "the request in the daemon's socket")
        return
    assert trainer.do("seal") == "sealed"
    if step == "waiting":
        trainer.send("wait")


def unread_bytes(daemon: KillableDaemon) -> int:
    """Bytes queued in the connections of the daemon's gRPC socket."""
    total = 0
    out = subprocess.run(["ss", "-xH"], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        fields = line.split()
        if fields[4] == str(daemon.socket):
            total += int(fields[2])
    return total


def used(daemon: KillableDaemon) -> tuple[int, int, int]:
    """The memory in use and lent, and the daemon's descriptors: without the first one of each segment, which the pool keeps
    and makes while the daemon runs already.
    """
    status = daemon.status()
    count = 0
    segments = set()
    for descriptor in pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It was closed meanwhile.
            if os.readlink(descriptor).startswith("/memfd:") and (inode := descriptor.stat().st_ino) not in segments:
                segments.add(inode)
            else:
                count += 1
    return status.pool.used_bytes, status.pool.lent_bytes, count


@pytest.mark.parametrize("with_child", [False, True], ids=["alone", "with_child"])
@pytest.mark.parametrize("step", STEPS)
def test_trainer_killed_at_a_step_leaves_a_checkpoint_or_nothing(
    daemon: KillableDaemon, record: SaveRecord, step: str, with_child: bool
) -> None:
    before = used(daemon)
    version = record.begin("a", 1, SIZE)
    children = []
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(
            closing(TrainerProcess(daemon.endpoint, "one", record.root, 0, 1, None))
        )
        try:
            if with_child:
                trainer.do("attach")
                children.append(trainer.do("fork_child"))
            go_to(step, trainer, version, daemon)
            trainer.kill()
            os.kill(daemon.pid, signal.SIGCONT)
            if step in PUBLISHED:
                until(lambda: (record.root / "a").exists(), "the dead trainer's checkpoint")
            until(lambda: used(daemon)[:2] == (0, 0), "the daemon to have its memory back")
            wait_until_none_left(record.root)
            there = record.check()
            assert step in EITHER or there == ({("a", 1)} if step in PUBLISHED else set())
            until(lambda: used(daemon)[2] <= before[2] + ROOT_DESCRIPTORS, "the trainer's descriptors to be closed")
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
    # The next launch saves.
    with closing(TrainerProcess(daemon.endpoint, "two", record.root, 0, 1, None)) as trainer:
        again = record.begin("a", 1, SIZE)
        kind, sequence = trainer.do("save", "a", {again.name(0): again.data(0)})
        assert kind == "committed", sequence
        record.committed(again, sequence)
    wait_until_none_left(record.root)
    assert record.check() == {("a", 2)}


# An open root has directories, a lock and a ring.
ROOT_DESCRIPTORS = 12


@pytest.mark.parametrize("step", ["begun", "copied"])
def test_one_of_two_trainers_killed_before_its_seal_is_named_to_the_other(
    daemon: KillableDaemon, record: SaveRecord, step: str
) -> None:
    version = record.begin("a", 2, SIZE)
    with closing(TrainerProcess(daemon.endpoint, "one", record.root, 0, 2, None)) as one:
        with closing(TrainerProcess(daemon.endpoint, "one", record.root, 1, 2, None)) as two:
            one.send("attach"), two.send("attach"), one.receive(), two.receive()
            one.send("begin", "a"), two.send("begin", "a"), one.receive(), two.receive()
            if step == "copied":
                two.do("copy", {version.name(1): version.data(1)})
            one.do("copy", {version.name(0): version.data(0)})
            one.do("seal")
            one.send("wait")
            two.kill()
            kind, reason = one.receive()
            assert (kind, reason) == ("failed", "SESSION_LOST")
            record.failed(version, reason)
        wait_until_none_left(record.root)
        assert record.check() == set()
    until(lambda: used(daemon)[:2] == (0, 0), "the daemon to have its memory back")
