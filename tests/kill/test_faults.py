"""Faults that the kernel makes: a full disk, a file size limit, no free descriptors, a file system that becomes read-only or
loses its device during a save, and one that does not answer. Each is a clear error on every rank, leaves committed checkpoints
untouched and nothing behind; when the fault is gone, saves work again.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator
from typing import Any, Callable

import pytest
from disks import Disk, Ext4, Tmpfs
from killable_daemon import KillableDaemon
from leftovers import wait_until_none_left
from save_record import SaveRecord, Version
from trainer_process import TrainerProcess

from harness import closing, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: needs root")
SIZE = 2_000_000
WORLD_SIZE = 2
BACKENDS = ["threads", "io_uring"]


class Job:
    """Two ranks that save into a root. Every method acts on both."""

    def __init__(self, folder: pathlib.Path, root: pathlib.Path, backend: str) -> None:
        self.daemon = KillableDaemon(folder, backend, bytes=32 << 20)
        self.daemon.start()
        self.record = SaveRecord(root)
        self.launches = 0
        self.ranks: list[TrainerProcess] = []

    def launch(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.launches += 1
        self.ranks = [
            TrainerProcess(self.daemon.endpoint, str(self.launches), self.record.root, rank, WORLD_SIZE, None)
            for rank in range(WORLD_SIZE)
        ]
        self.all("attach")

    def all(self, command: str, *arguments: Any) -> list[Any]:
        for rank in self.ranks:
            rank.send(command, *arguments)
        return [rank.receive() for rank in self.ranks]

    def copy(self, tag: str) -> Version:
        """Begins a save and copies its bytes; does not seal it."""
        version = self.record.begin(tag, WORLD_SIZE, SIZE)
        self.all("begin", tag)
        for rank in self.ranks:
            rank.send("copy", {version.name(rank.rank): version.data(rank.rank)})
        assert [rank.receive() for rank in self.ranks] == ["copied"] * WORLD_SIZE
        return version

    def finish(self, version: Version) -> list[tuple[str, Any]]:
        self.all("seal")
        return self.recorded(version, self.all("wait"))

    def recorded(self, version: Version, outcomes: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        for kind, detail in outcomes:
            if kind == "committed":
                self.record.committed(version, detail)
            else:
                self.record.failed(version, str(detail))
        return outcomes

    def save(self, tag: str) -> list[tuple[str, Any]]:
        version = self.record.begin(tag, WORLD_SIZE, SIZE)
        for rank in self.ranks:
            rank.send("save", tag, {version.name(rank.rank): version.data(rank.rank)})
        return self.recorded(version, [rank.receive() for rank in self.ranks])

    def must_save(self, tag: str) -> None:
        outcomes = self.save(tag)
        assert [kind for kind, _ in outcomes] == ["committed"] * WORLD_SIZE, f"{outcomes}\n{self.daemon.log()[-2000:]}"

    def expect_recovered(self) -> None:
        """After the fault: the next save works, and removes what the fault left behind."""
        self.must_save("later")
        wait_until_none_left(self.record.root)
        tags = {tag for tag, _ in self.record.check()}
        assert {"before", "later"} <= tags

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.daemon.close()


@pytest.fixture
def disk(folder: pathlib.Path) -> Iterator[Callable[..., Any]]:
    with contextlib.ExitStack() as stack:
        yield lambda kind, mebibytes: stack.enter_context(closing(kind(folder, mebibytes)))


@pytest.fixture
def job(folder: pathlib.Path) -> Iterator[Callable[[pathlib.Path, str], Job]]:
    with contextlib.ExitStack() as stack:

        def make(root: pathlib.Path, backend: str) -> Job:
            made = stack.enter_context(closing(Job(folder, root, backend)))
            made.launch()
            made.must_save("before")
            return made

        yield make


def expect_failed(outcomes: list[tuple[str, Any]], *reasons: str) -> None:
    assert [kind for kind, _ in outcomes] == ["failed"] * WORLD_SIZE, outcomes
    assert {reason for _, reason in outcomes} <= set(reasons), outcomes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [Tmpfs, Ext4])
def test_disk_that_fills_up_in_mid_save_fails_it_on_every_rank(
    kind: type[Disk], backend: str, disk: Callable[..., Any], job: Callable[..., Job]
) -> None:
    place = disk(kind, 48)
    one = job(place.root, backend)
    version = one.copy("full")  # The daemon admits it while there is room.
    place.fill()
    expect_failed(one.finish(version), "NO_SPACE")
    wait_until_none_left(place.root)
    assert one.record.check() == {("before", 1)}
    place.free()
    one.expect_recovered()


@pytest.mark.parametrize("backend", BACKENDS)
def test_file_size_limit_of_the_daemon_fails_the_save_and_not_the_daemon(
    backend: str, folder: pathlib.Path, job: Callable[..., Job]
) -> None:
    root = folder / "root"
    root.mkdir()
    one = job(root, backend)
    version = one.copy("large")
    resource.prlimit(one.daemon.pid, resource.RLIMIT_FSIZE, (SIZE // 2, resource.RLIM_INFINITY))
    expect_failed(one.finish(version), "EFBIG", "IO_ERROR")
    assert one.daemon.running(), one.daemon.log()
    assert one.record.check() == {("before", 1)}
    resource.prlimit(one.daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    one.expect_recovered()


@pytest.mark.parametrize("backend", BACKENDS)
def test_daemon_without_free_descriptors_fails_the_save_and_nothing_else(
    backend: str, folder: pathlib.Path, job: Callable[..., Job]
) -> None:
    root = folder / "root"
    root.mkdir()
    one = job(root, backend)
    version = one.copy("many")
    _, hard = resource.prlimit(one.daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(one.daemon.pid, resource.RLIMIT_NOFILE, (3, hard))
    expect_failed(one.finish(version), "EMFILE")
    resource.prlimit(one.daemon.pid, resource.RLIMIT_NOFILE, (hard, hard))
    assert one.record.check() == {("before", 1)}
    one.expect_recovered()


def expect_fails_until_repaired(place: Ext4, one: Job, version: Version) -> None:
    """The daemon goes on answering; after the operator has repaired the file system, the next daemon saves again."""
    outcomes = one.finish(version)
    assert all(kind in ("failed", "unknown") for kind, _ in outcomes), outcomes
    assert one.daemon.status().daemon_instance and one.daemon.running()
    assert one.daemon.stop() == 0
    for rank in one.ranks:
        rank.close()
    place.repair()
    one.daemon.start()
    one.launch()
    one.expect_recovered()


@pytest.mark.parametrize("backend", BACKENDS)
def test_file_system_that_turns_read_only_in_mid_save_fails_it(
    backend: str, disk: Callable[..., Any], job: Callable[..., Job]
) -> None:
    place = disk(Ext4, 48)
    one = job(place.root, backend)
    version = one.copy("lost")
    place.detect_an_error()
    expect_fails_until_repaired(place, one, version)


@pytest.mark.parametrize("backend", BACKENDS)
def test_device_that_goes_away_in_mid_save_fails_it(
    backend: str, disk: Callable[..., Any], job: Callable[..., Job]
) -> None:
    place = disk(Ext4, 48)
    one = job(place.root, backend)
    version = one.copy("lost")
    place.lose_the_device()
    expect_fails_until_repaired(place, one, version)


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_of_a_killed_daemon_that_come_late_hit_no_file_of_the_next(
    backend: str, disk: Callable[..., Any], job: Callable[..., Job]
) -> None:
    place = disk(Ext4, 64)
    one = job(place.root, backend)
    version = one.copy("late")
    place.freeze()
    try:
        one.all("seal")
        # Its writes are stuck in the kernel, and with them the killed process.
        until(lambda: one.daemon.status().runs[0].degraded, "DEGRADED")
        os.kill(one.daemon.pid, 9)
        for rank in one.ranks:
            rank.close()
    finally:
        place.thaw()
    one.daemon.start()  # At once, while the killed process may still be exiting.
    one.launch()
    one.must_save("late")
    one.expect_recovered()
    assert ("late", version.number + 1) in one.record.check()
