"""Real faults of a real kernel: a disk, a file's size limit and a table of descriptors that are full, a file system that turns
read-only or goes away in mid-save, and one that does not answer. Each is a clear error on every rank; what was committed stays
as it was, nothing is left behind, and once the fault is gone saves work again.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator
from typing import Any, Callable

import pytest
from disks import Disk, Ext4, Memory
from firing import Daemon, await_nothing_left, closing
from harness import until
from record import Record, Version
from trainers import Trainer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: needs root")
SIZE = 2_000_000
WORLD_SIZE = 2
BACKENDS = ["threads", "io_uring"]


class Job:
    """Two ranks that save into a root, each step by all of them."""

    def __init__(self, folder: pathlib.Path, root: pathlib.Path, backend: str) -> None:
        self.daemon = Daemon(folder, backend, bytes=32 << 20)
        self.daemon.start()
        self.record = Record(root)
        self.launches = 0
        self.ranks: list[Trainer] = []

    def launch(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.launches += 1
        self.ranks = [
            Trainer(self.daemon.endpoint, str(self.launches), self.record.root, rank, WORLD_SIZE, None)
            for rank in range(WORLD_SIZE)
        ]
        self.all("attach")

    def all(self, command: str, *arguments: Any) -> list[Any]:
        for rank in self.ranks:
            rank.tell(command, *arguments)
        return [rank.hear() for rank in self.ranks]

    def copy(self, tag: str) -> Version:
        """Begun and copied by all, sealed by none."""
        version = self.record.begin(tag, WORLD_SIZE, SIZE)
        self.all("begin", tag)
        for rank in self.ranks:
            rank.tell("copy", {version.name(rank.rank): version.data(rank.rank)})
        assert [rank.hear() for rank in self.ranks] == ["copied"] * WORLD_SIZE
        return version

    def finish(self, version: Version) -> list[tuple[str, Any]]:
        self.all("seal")
        return self.heard(version, self.all("wait"))

    def heard(self, version: Version, outcomes: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        for kind, detail in outcomes:
            if kind == "committed":
                self.record.committed(version, detail)
            else:
                self.record.failed(version, str(detail))
        return outcomes

    def save(self, tag: str) -> list[tuple[str, Any]]:
        version = self.record.begin(tag, WORLD_SIZE, SIZE)
        for rank in self.ranks:
            rank.tell("save", tag, {version.name(rank.rank): version.data(rank.rank)})
        return self.heard(version, [rank.hear() for rank in self.ranks])

    def must_save(self, tag: str) -> None:
        outcomes = self.save(tag)
        assert [kind for kind, _ in outcomes] == ["committed"] * WORLD_SIZE, f"{outcomes}\n{self.daemon.log()[-2000:]}"

    def expect_well(self) -> None:
        """The fault is over. What it left behind goes with the next save at the latest."""
        self.must_save("later")
        await_nothing_left(self.record.root)
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
@pytest.mark.parametrize("kind", [Memory, Ext4])
def test_disk_that_fills_up_in_mid_save_fails_it_on_every_rank(
    kind: type[Disk], backend: str, disk: Callable[..., Any], job: Callable[..., Job]
) -> None:
    place = disk(kind, 48)
    one = job(place.root, backend)
    version = one.copy("full")  # There was room when it was admitted.
    place.fill()
    expect_failed(one.finish(version), "NO_SPACE")
    await_nothing_left(place.root)
    assert one.record.check() == {("before", 1)}
    place.free()
    one.expect_well()


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
    one.expect_well()


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
    one.expect_well()


def expect_fails_until_repaired(place: Ext4, one: Job, version: Version) -> None:
    """The daemon lives and answers; when the operator has repaired the file system the next one saves on."""
    outcomes = one.finish(version)
    assert all(kind in ("failed", "unknown") for kind, _ in outcomes), outcomes
    assert one.daemon.status().daemon_instance and one.daemon.running()
    assert one.daemon.stop() == 0
    for rank in one.ranks:
        rank.close()
    place.repair()
    one.daemon.start()
    one.launch()
    one.expect_well()


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
        # Its writes are in the kernel and stay there; so does what is left of it.
        until(lambda: one.daemon.status().runs[0].degraded, "DEGRADED")
        os.kill(one.daemon.pid, 9)
        for rank in one.ranks:
            rank.close()
    finally:
        place.thaw()
    one.daemon.start()  # At once: what was killed may not be quite gone.
    one.launch()
    one.must_save("late")
    one.expect_well()
    assert ("late", version.number + 1) in one.record.check()
