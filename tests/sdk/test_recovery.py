"""Promise 2 for C++ trainers: a save that every rank has sealed outlives a daemon that is killed. Under a service manager
the next daemon has its memory; without one the trainers offer it once more.
"""

from __future__ import annotations

import pathlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, List, Set

import pytest
import sdk_programs
from manager import ServiceManager

import ckptd
from harness import Daemon, alive, ckptctl, tags, until
from harness.waiting import TIMEOUT, readable

MIB = 1 << 20
RANK_BYTES = 32 * MIB


class Rank:
    """A process of rank.cc."""

    def __init__(self, program: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=dict(sdk_programs.environment()),
        )

    def start(self, *words: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")

    def answer(self) -> str:
        assert self.process.stdout
        assert readable(self.process.stdout), f"no answer after {TIMEOUT} s"
        return self.process.stdout.readline().strip()

    def do(self, *words: object) -> str:
        self.start(*words)
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


def together(ranks: List[Rank], *words: object) -> List[str]:
    for rank in ranks:
        rank.start(*words)
    return [rank.answer() for rank in ranks]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    source, target = pathlib.Path(__file__).with_name("rank.cc"), tmp_path_factory.mktemp("rank") / "rank"
    return sdk_programs.compile_with_pkg_config(source, target)


@pytest.fixture
def start(program: str, root: str) -> Iterator[Callable[..., List[Rank]]]:
    """Starts the ranks of a launch."""
    made: List[Rank] = []

    def make(endpoint: str, world: int, commit_seconds: int = 600, where: str = root) -> List[Rank]:
        ranks = [Rank(program, endpoint, where, rank, world, commit_seconds) for rank in range(world)]
        made.extend(ranks)
        assert [rank.answer() for rank in ranks] == ["ok"] * world
        return ranks

    yield make
    for rank in made:
        rank.close()


def save_and_kill(pid: int, ranks: List[Rank], tag: str, step: int, size: int) -> None:
    """Kills the daemon as soon as the last rank has sealed its part."""
    assert together(ranks, "begin", tag, step, size) == ["ok"] * len(ranks)
    assert together(ranks[:-1], "seal", tag) == ["ok"] * (len(ranks) - 1)
    assert ranks[-1].do("seal", tag, pid) == "ok"


def seal_and_kill(daemon: Daemon, ranks: List[Rank], tag: str, step: int) -> None:
    """Kills the daemon before it can have written everything."""
    save_and_kill(daemon.pid, ranks, tag, step, RANK_BYTES)
    until(lambda: not alive(daemon.pid), "the daemon's end")


def check(root: str, tag: str, step: int, ranks: int, size: int = RANK_BYTES) -> None:
    with ckptd.open_root(root).open(tag) as checkpoint:
        for rank in range(ranks):
            assert checkpoint.read(f"r{rank}.bin") == bytes([step]) * size


@pytest.mark.parametrize("world", [1, 2])
def test_save_sealed_by_every_rank_is_recovered_by_next_daemon_and_committed(
    daemon: Daemon, start: Callable[..., List[Rank]], root: str, world: int
) -> None:
    ranks = start(daemon.endpoint, world)
    seal_and_kill(daemon, ranks, "one", 1)
    assert tags(root) == []
    daemon.restart()
    assert together(ranks, "wait", "one") == ["ok"] * world
    assert tags(root) == ["one"]
    check(root, "one", 1, world)
    assert ckptctl("verify", root).returncode == 0
    # The launch goes on as the same attempt.
    assert together(ranks, "save", "two", 2, MIB) == ["ok"] * world
    assert together(ranks, "wait", "two") == ["ok"] * world


def test_later_save_does_not_overtake_recovered_ones(
    daemon: Daemon, start: Callable[..., List[Rank]], root: str
) -> None:
    ranks = start(daemon.endpoint, 2)
    assert together(ranks, "save", "one", 1, RANK_BYTES) == ["ok", "ok"]
    seal_and_kill(daemon, ranks, "two", 2)
    assert "two" not in tags(root)
    daemon.restart()
    assert together(ranks, "save", "three", 3, MIB) == ["ok", "ok"]
    for tag in ("three", "two", "one"):
        assert together(ranks, "wait", tag) == ["ok", "ok"]
    assert tags(root) == ["three", "two", "one"]
    check(root, "one", 1, 2)
    check(root, "two", 2, 2)


def test_recovery_survives_the_end_of_the_next_daemon(
    daemon: Daemon, start: Callable[..., List[Rank]], root: str
) -> None:
    ranks = start(daemon.endpoint, 2)
    seal_and_kill(daemon, ranks, "one", 1)
    daemon.restart()
    ranks[0].start("wait", "one")  # It offers its part, and waits for the other rank.
    until(lambda: any(run.path == root for run in daemon.status().runs), "the rank")
    daemon.kill()
    daemon.restart()
    assert ranks[1].do("wait", "one") == "ok"
    assert ranks[0].answer() == "ok"
    check(root, "one", 1, 2)


def test_recovery_without_rank_that_died_with_daemon_ends_as_staged_lost(
    daemon: Daemon, start: Callable[..., List[Rank]], root: str
) -> None:
    ranks = start(daemon.endpoint, 2, commit_seconds=3)
    seal_and_kill(daemon, ranks, "one", 1)
    ranks[1].close()
    daemon.restart()
    error = ranks[0].do("wait", "one")
    assert error.startswith("ABORTED STAGED_LOST: ") and "RANKS_MISSING" in error
    assert tags(root) == []


def segments_of(pid: int) -> Set[str]:
    """The inodes of the segments that a process has mapped."""
    lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:ckptd-segment" in line}


def test_memory_of_recovered_save_is_returned_when_it_ends(
    daemon: Daemon, start: Callable[..., List[Rank]], root: str
) -> None:
    (rank,) = start(daemon.endpoint, 1)
    seal_and_kill(daemon, [rank], "one", 1)
    old = segments_of(rank.process.pid)
    assert old
    daemon.restart()
    assert rank.do("wait", "one") == "ok"
    until(lambda: not segments_of(rank.process.pid) & old, "the end of the old segments")
    check(root, "one", 1, ranks=1)


def test_save_that_nobody_waits_for_holds_no_memory_that_the_daemon_lends_elsewhere(
    daemon: Daemon, start: Callable[..., List[Rank]], root: str, tmp_path: pathlib.Path
) -> None:
    """Its bytes are kept for a next daemon only as long as it may not be durable."""
    (rank,) = start(daemon.endpoint, 1)
    assert rank.do("save", "one", 1, 200 * MIB) == "ok"
    lent = segments_of(rank.process.pid)
    until(lambda: tags(root) == ["one"], "the commit")
    (other,) = start(daemon.endpoint, 1, where=str(tmp_path))
    assert other.do("save", "one", 1, 200 * MIB) == "ok"  # There is no room but that memory.
    assert rank.do("save", "two", 2, MIB) == "ok"
    assert len(segments_of(rank.process.pid) & lent) < len(lent) / 2


def test_successor_with_the_memory_publishes_what_cpp_ranks_have_sealed(
    folder: str, start: Callable[..., List[Rank]], root: str
) -> None:
    manager = ServiceManager(folder)
    try:
        manager.start().await_ready()
        ranks = start(manager.endpoint, 2)
        save_and_kill(manager.pid, ranks, "one", 1, 24 * MIB)
        assert manager.process.wait(60) == -signal.SIGKILL
        assert tags(root) == []
        manager.start().await_ready()
        assert together(ranks, "wait", "one") == ["ok", "ok"]
        check(root, "one", 1, 2, 24 * MIB)
        assert "the sealed save one of " in manager.log() and "is taken over" in manager.log()
    finally:
        manager.close()


def test_ranks_of_two_nodes_hear_how_a_save_ended_whose_daemon_was_killed(
    program: str, two_nodes: Any
) -> None:
    """Until its files are durable on all nodes a sealed save needs the daemon of each node (docs/design.md, promise 2):
    all ranks hear the same end, and the run goes on.
    """
    ranks = [
        Rank(program, node.endpoint, two_nodes.root, rank, 2, 600, rank)
        for rank, node in enumerate(two_nodes.nodes)
    ]
    try:
        assert [rank.answer() for rank in ranks] == ["ok", "ok"]
        assert together(ranks, "begin", "one", 1, RANK_BYTES) == ["ok", "ok"]
        assert ranks[0].do("seal", "one") == "ok"
        assert ranks[1].do("seal", "one", two_nodes.nodes[1].process.pid) == "ok"
        two_nodes.nodes[1].wait()
        two_nodes.nodes[1].start()
        ends = together(ranks, "wait", "one")
        assert {end.partition(":")[0] for end in ends} in ({"FAILED_PRECONDITION NODE_LOST"}, {"ABORTED STAGED_LOST"}, {"ok"})
        assert together(ranks, "save", "two", 2, MIB) == ["ok", "ok"]
        assert together(ranks, "wait", "two") == ["ok", "ok"]
        assert two_nodes.nodes[0].tags(two_nodes.root)[0] == "two"
    finally:
        for rank in ranks:
            rank.close()
