"""SIGKILL of the real daemon at every system call by which it changes the disk. When the next daemon has started, acknowledged
checkpoints are there byte for byte, others are whole or invisible, latest has not gone back, nothing is left behind, and the
same trainers save again.

With the back end `threads` the daemon is killed before the call, with `io_uring` after it.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Optional

import pytest
from killable_daemon import TIMEOUT, KillableDaemon
from leftovers import leftovers, temporaries, wait_until_none_left
from rank_threads import RankThreads
from save_record import SaveRecord

from harness import Killer, ckptctl, closing, until

CONCURRENT_POINTS = 4  # A point mostly waits.
WORLD_SIZE = 2
SIZE = 200_000  # Four chunks, the last of them partial.
AFTER = {"threads": False, "io_uring": True}
WRITES = {"threads": ["pwrite64"], "io_uring": ["io_uring_enter"]}
KINDS = [
    "fsync",
    "unlinkat",
    "openat2",
    "mkdirat",
    "pwrite64",
    "io_uring_enter",
    "fdatasync",
    "renameat",
    "renameat2",
    "ftruncate",
    "fallocate",
    "linkat",
]
TWICE = ["fsync", "unlinkat", "openat2", "renameat2", "renameat"]
backends = pytest.mark.parametrize("backend", list(AFTER))


@dataclasses.dataclass
class World:
    """A root, its daemon and its trainers."""

    folder: pathlib.Path
    daemon: KillableDaemon
    record: SaveRecord
    ranks: RankThreads

    @property
    def root(self) -> pathlib.Path:
        return self.record.root

    def killer(self) -> Killer:
        return Killer(self.folder / f"killer{len(list(self.folder.glob('killer*')))}")

    def save(self, tag: str) -> None:
        self.ranks.save(tag, SIZE).result(TIMEOUT)

    def idle(self) -> bool:
        return not leftovers(self.root)


@contextlib.contextmanager
def world_in(folder: pathlib.Path, backend: str, keep: Optional[int] = None, unchanged: int = 0) -> Iterator[World]:
    root = folder / "root"
    root.mkdir(parents=True)
    record = SaveRecord(root, keep, unchanged)
    with closing(KillableDaemon(folder, backend)) as daemon, closing(RankThreads(daemon, record, WORLD_SIZE)) as ranks:
        yield World(folder, daemon, record, ranks)
    shutil.rmtree(folder)


def expect_invariant(world: World) -> None:
    wait_until_none_left(world.root)
    world.record.check()
    world.save("later")
    wait_until_none_left(world.root)
    until(lambda: not temporaries(world.root), "the last record to be written")
    assert ("later", 1) in world.record.check()
    assert ckptctl("verify", str(world.root), check=False).returncode == 0
    assert world.daemon.stop() == 0


def save_and_kill(world: World, point: Point, prepare: tuple[str, ...], tag: str) -> str:
    """Saves `tag` and kills the daemon at the point. Returns the call that was hit; empty if there were too few."""
    killer = world.killer()
    world.daemon.start(killer)
    for before in prepare:
        world.save(before)
        wait_until_none_left(world.root)
    world.ranks.connect()
    killer.arm(point.pattern, point.at, point.after)
    saving = world.ranks.save(tag, SIZE)
    until(lambda: killer.hit or (saving.done() and world.idle()), "the call, or the end of the save")
    killer.disarm()
    hit = killer.hit
    if hit:
        world.daemon.wait_after_hit()
        world.daemon.start()
    saving.result(TIMEOUT)
    expect_invariant(world)
    return hit


@dataclasses.dataclass(frozen=True)
class Point:
    """The n-th call of its kind. Calls of one kind are mostly made by one thread, so their order is the same in each run."""

    kind: str
    at: int
    after: bool

    @property
    def pattern(self) -> str:
        return rf"^{self.kind}\b"

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.kind} {self.at}"


Kill = Callable[[pathlib.Path, Point], str]


def kill_at(folder: pathlib.Path, kill: Kill, point: Point) -> str:
    try:
        return kill(folder / f"{point.kind}{point.at}", point)
    except Exception as error:
        raise AssertionError(f"killed {point}: {error!r}") from error


def kill_at_every_call(folder: pathlib.Path, backend: str, kill: Kill) -> collections.Counter[str]:
    """Kills at the first, second, ... call of each kind until there is none. Returns the number of calls by kind."""

    def all_of(kind: str) -> int:
        at = 1
        while kill_at(folder, kill, Point(kind, at, AFTER[backend])):
            at += 1
        return at - 1

    with concurrent.futures.ThreadPoolExecutor(CONCURRENT_POINTS) as pool:
        hits = collections.Counter(dict(zip(KINDS, pool.map(all_of, KINDS))))
    hits = +hits
    print(f"{sum(hits.values())} points: {dict(hits)}")
    return hits


def expect_hit(hits: collections.Counter[str], *kinds: str, at_least: int) -> None:
    """Fails a test that has killed at too few calls to show anything."""
    assert sum(hits.values()) >= at_least and set(kinds) <= set(hits), hits


@backends
def test_first_save_of_a_root_survives_a_kill_at_every_call(folder: pathlib.Path, backend: str) -> None:
    def kill(place: pathlib.Path, point: Point) -> str:
        with world_in(place, backend) as world:
            return save_and_kill(world, point, (), "a")

    hits = kill_at_every_call(folder, backend, kill)
    expect_hit(hits, *WRITES[backend], "mkdirat", "renameat", "renameat2", "fallocate", "fsync", at_least=80)


@backends
def test_resave_of_a_tag_survives_a_kill_at_every_call(folder: pathlib.Path, backend: str) -> None:
    def kill(place: pathlib.Path, point: Point) -> str:
        with world_in(place, backend) as world:
            return save_and_kill(world, point, ("a",), "a")

    hits = kill_at_every_call(folder, backend, kill)
    expect_hit(hits, *WRITES[backend], "mkdirat", "renameat2", "unlinkat", "fallocate", "fsync", at_least=40)


# With one checkpoint kept, so that the one with which files are shared is evicted. What the two back ends do differently is
# in the tests above.
def test_save_that_shares_files_survives_a_kill_at_every_call(folder: pathlib.Path) -> None:
    def kill(place: pathlib.Path, point: Point) -> str:
        with world_in(place, "threads", keep=1, unchanged=SIZE) as world:
            return save_and_kill(world, point, ("a",), "b")

    hits = kill_at_every_call(folder, "threads", kill)
    shares = "linkat" in hits or not links_files(folder)
    assert shares, hits
    expect_hit(hits, "pwrite64", "mkdirat", "renameat2", "unlinkat", "fsync", at_least=40)


def links_files(folder: pathlib.Path) -> bool:
    """Whether files are shared here as hard links, because the file system cannot share blocks."""
    return subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True).stdout.strip() not in ("xfs", "btrfs")


# Retention and recovery write no files of checkpoints, so both back ends make the same calls there.


def test_retention_survives_a_kill_at_every_call(folder: pathlib.Path) -> None:
    def kill(place: pathlib.Path, point: Point) -> str:
        with world_in(place, "io_uring", keep=1) as world:
            return save_and_kill(world, point, ("a",), "b")

    hits = kill_at_every_call(folder, "io_uring", kill)
    expect_hit(hits, "renameat", "renameat2", "unlinkat", "fsync", at_least=40)


def leave_work_for_recovery(world: World) -> None:
    """Leaves a re-save that lacks only its exchange, and a save of which one rank has sealed its part."""
    killer = world.killer()
    world.daemon.start(killer)
    world.save("a")
    wait_until_none_left(world.root)
    with concurrent.futures.ThreadPoolExecutor(WORLD_SIZE) as pool:
        parts = list(pool.map(lambda rank: world.ranks.run(rank).begin("half"), range(WORLD_SIZE)))
    parts[0].add("r0.bin", b"x" * SIZE)
    parts[0].seal()
    killer.arm("<->")
    world.ranks.save("a", SIZE)
    world.daemon.wait()
    world.ranks.close()
    assert len(leftovers(world.root)) == 2


def recover_and_kill(world: World, points: list[Point]) -> str:
    """Kills one daemon after another during recovery. Returns the call that the last of them was hit at."""
    leave_work_for_recovery(world)
    hit = ""
    for point in points:
        killer = world.killer().arm(point.pattern, point.at, point.after)
        world.daemon.start(killer, must_serve=False)
        until(lambda: killer.hit or world.idle(), "the call, or the end of the recovery")
        killer.disarm()
        hit = killer.hit
        if hit:
            world.daemon.wait_after_hit()
        else:
            assert world.daemon.stop() == 0
    world.daemon.start()
    wait_until_none_left(world.root)
    assert world.record.check() == {("a", 2)}, "recovery publishes the complete re-save"
    with closing(RankThreads(world.daemon, world.record, WORLD_SIZE)) as ranks:
        world.ranks = ranks
        expect_invariant(world)
    return hit


def test_recovery_that_is_killed_at_every_call_is_recovered_from(folder: pathlib.Path) -> None:
    def kill(place: pathlib.Path, point: Point) -> str:
        with world_in(place, "threads") as world:
            return recover_and_kill(world, [point])

    hits = kill_at_every_call(folder, "threads", kill)
    expect_hit(hits, "renameat2", "unlinkat", "fsync", at_least=25)


def test_recovery_that_is_killed_twice_is_recovered_from(folder: pathlib.Path) -> None:
    seed = int(os.environ.get("CKPTD_SEED", "1"))
    print(f"seed {seed}")
    choice = random.Random(seed)

    def point(kind: str) -> Point:
        return Point(kind, choice.randint(1, 6), choice.random() < 0.5)

    pairs = [(point(first), point(second)) for first in TWICE for second in TWICE]

    def kill(pair: tuple[Point, Point]) -> None:
        first, second = pair
        name = f"{first} {second}".replace(" ", "")
        try:
            with world_in(folder / name[:40], "threads") as world:
                recover_and_kill(world, [first, second])
        except Exception as error:
            raise AssertionError(f"killed {first}, then {second}: {error!r}") from error

    with concurrent.futures.ThreadPoolExecutor(CONCURRENT_POINTS) as pool:
        list(pool.map(kill, pairs))
