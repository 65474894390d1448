"""SIGKILL of the real daemon at every system call by which it changes the disk. Then the next one starts, and what was
acknowledged is there byte for byte, what was not is whole or invisible, latest has not gone back, nothing is left behind, and
the same trainers save on.

With threads each call is the last one before it happens; with io_uring it happens, and nobody hears of it any more.
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
from collections.abc import Callable, Iterator
from typing import Optional

import pytest
from firing import PATIENCE, Daemon, Killer, Ranks, await_nothing_left, closing, leftovers, temporaries
from harness import ckptctl, until
from record import Record

AT_ONCE = 4  # Points; most of the time of each is waiting.
WORLD_SIZE = 2
SIZE = 200_000  # Four chunks, the last one not whole.
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
]
TWICE = ["fsync", "unlinkat", "openat2", "renameat2", "renameat"]
backends = pytest.mark.parametrize("backend", list(AFTER))


@dataclasses.dataclass
class World:
    """A root, its daemon and its trainers."""

    folder: pathlib.Path
    daemon: Daemon
    record: Record
    ranks: Ranks

    @property
    def root(self) -> pathlib.Path:
        return self.record.root

    def killer(self) -> Killer:
        return Killer(self.folder / f"killer{len(list(self.folder.glob('killer*')))}")

    def save(self, tag: str) -> None:
        self.ranks.save(tag, SIZE).result(PATIENCE)

    def idle(self) -> bool:
        return not leftovers(self.root)


@contextlib.contextmanager
def world_in(folder: pathlib.Path, backend: str, keep: Optional[int] = None) -> Iterator[World]:
    root = folder / "root"
    root.mkdir(parents=True)
    record = Record(root, keep)
    with closing(Daemon(folder, backend)) as daemon, closing(Ranks(daemon, record, WORLD_SIZE)) as ranks:
        yield World(folder, daemon, record, ranks)
    shutil.rmtree(folder)


def expect_invariant(world: World) -> None:
    await_nothing_left(world.root)
    world.record.check()
    world.save("later")
    await_nothing_left(world.root)
    until(lambda: not temporaries(world.root), "the end of the last record's writing")
    assert ("later", 1) in world.record.check()
    assert ckptctl("verify", str(world.root), check=False).returncode == 0
    assert world.daemon.stop() == 0


def strike_save(world: World, point: Point, prepare: tuple[str, ...], tag: str) -> str:
    """Saves `tag` and strikes; the call that was hit. Empty: there were fewer."""
    killer = world.killer()
    world.daemon.start(killer)
    for before in prepare:
        world.save(before)
        await_nothing_left(world.root)
    world.ranks.connect()
    killer.arm(point.kind, point.at, point.after)
    saving = world.ranks.save(tag, SIZE)
    until(lambda: killer.hit or (saving.done() and world.idle()), "the call, or the end of the save")
    killer.disarm()
    hit = killer.hit
    if hit:
        world.daemon.fall()
        world.daemon.start()
    saving.result(PATIENCE)
    expect_invariant(world)
    return hit


@dataclasses.dataclass(frozen=True)
class Point:
    """The n-th call of its kind: threads take turns as they like, but the calls of one kind are mostly one thread's."""

    kind: str
    at: int
    after: bool

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.kind} {self.at}"


Strike = Callable[[pathlib.Path, Point], str]


def struck(folder: pathlib.Path, strike: Strike, point: Point) -> str:
    try:
        return strike(folder / f"{point.kind}{point.at}", point)
    except Exception as error:
        raise AssertionError(f"killed {point}: {error!r}") from error


def every_point(folder: pathlib.Path, backend: str, strike: Strike) -> collections.Counter[str]:
    """Strikes at the first, second, ... call of each kind until there was none; how many there were."""

    def all_of(kind: str) -> int:
        at = 1
        while struck(folder, strike, Point(kind, at, AFTER[backend])):
            at += 1
        return at - 1

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        hits = collections.Counter(dict(zip(KINDS, pool.map(all_of, KINDS))))
    hits = +hits
    print(f"{sum(hits.values())} points: {dict(hits)}")
    return hits


def expect_hit(hits: collections.Counter[str], *kinds: str, at_least: int) -> None:
    """The tests see what they should: without that they could pass of nothing."""
    assert sum(hits.values()) >= at_least and set(kinds) <= set(hits), hits


@backends
def test_first_save_of_a_root_survives_a_kill_at_every_call(folder: pathlib.Path, backend: str) -> None:
    def strike(place: pathlib.Path, point: Point) -> str:
        with world_in(place, backend) as world:
            return strike_save(world, point, (), "a")

    hits = every_point(folder, backend, strike)
    expect_hit(hits, *WRITES[backend], "mkdirat", "renameat", "renameat2", "fallocate", "fsync", at_least=80)


@backends
def test_resave_of_a_tag_survives_a_kill_at_every_call(folder: pathlib.Path, backend: str) -> None:
    def strike(place: pathlib.Path, point: Point) -> str:
        with world_in(place, backend) as world:
            return strike_save(world, point, ("a",), "a")

    hits = every_point(folder, backend, strike)
    expect_hit(hits, *WRITES[backend], "mkdirat", "renameat2", "unlinkat", "fallocate", "fsync", at_least=40)


# What is before and after a call of retention and recovery is the same with both back ends: files are not written there.


def test_retention_survives_a_kill_at_every_call(folder: pathlib.Path) -> None:
    def strike(place: pathlib.Path, point: Point) -> str:
        with world_in(place, "io_uring", keep=1) as world:
            return strike_save(world, point, ("a",), "b")

    hits = every_point(folder, "io_uring", strike)
    expect_hit(hits, "renameat", "renameat2", "unlinkat", "fsync", at_least=40)


def leave_work_for_recovery(world: World) -> None:
    """A re-save that only its exchange lacks, and a save of which only the beginning is there."""
    killer = world.killer()
    world.daemon.start(killer)
    world.save("a")
    await_nothing_left(world.root)
    with concurrent.futures.ThreadPoolExecutor(WORLD_SIZE) as pool:
        parts = list(pool.map(lambda rank: world.ranks.run(rank).begin("half"), range(WORLD_SIZE)))
    parts[0].add("r0.bin", b"x" * SIZE)
    parts[0].seal()
    killer.arm(at_exchange=True)
    world.ranks.save("a", SIZE)
    world.daemon.wait()
    world.ranks.close()
    assert len(leftovers(world.root)) == 2


def strike_recovery(world: World, points: list[Point]) -> str:
    """One daemon after the other is struck while it recovers; what the last one was hit at."""
    leave_work_for_recovery(world)
    hit = ""
    for point in points:
        killer = world.killer().arm(point.kind, point.at, point.after)
        world.daemon.start(killer, must=False)
        until(lambda: killer.hit or world.idle(), "the call, or the end of the recovery")
        killer.disarm()
        hit = killer.hit
        if hit:
            world.daemon.fall()
        else:
            assert world.daemon.stop() == 0
    world.daemon.start()
    await_nothing_left(world.root)
    assert world.record.check() == {("a", 2)}, "what was complete is published"
    with closing(Ranks(world.daemon, world.record, WORLD_SIZE)) as ranks:
        world.ranks = ranks
        expect_invariant(world)
    return hit


def test_recovery_that_is_killed_at_every_call_is_recovered_from(folder: pathlib.Path) -> None:
    def strike(place: pathlib.Path, point: Point) -> str:
        with world_in(place, "threads") as world:
            return strike_recovery(world, [point])

    hits = every_point(folder, "threads", strike)
    expect_hit(hits, "renameat2", "unlinkat", "fsync", at_least=25)


def test_recovery_that_is_killed_twice_is_recovered_from(folder: pathlib.Path) -> None:
    seed = int(os.environ.get("CKPTD_SEED", "1"))
    print(f"seed {seed}")
    choice = random.Random(seed)

    def point(kind: str) -> Point:
        return Point(kind, choice.randint(1, 6), choice.random() < 0.5)

    pairs = [(point(first), point(second)) for first in TWICE for second in TWICE]

    def strike(pair: tuple[Point, Point]) -> None:
        first, second = pair
        name = f"{first} {second}".replace(" ", "")
        try:
            with world_in(folder / name[:40], "threads") as world:
                strike_recovery(world, [first, second])
        except Exception as error:
            raise AssertionError(f"killed {first}, then {second}: {error!r}") from error

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(strike, pairs))
