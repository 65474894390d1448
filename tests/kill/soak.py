"""Kills the real daemon and its trainers at random moments, and checks the root against a record of what they were told.

In a cycle the ranks of a launch save, and at a random moment the daemon, some ranks, or both get SIGKILL; sometimes the next
daemon does, too, while it recovers. Then the invariant of save_record.py must hold, and nothing may be left behind. The last
cycles kill only trainers; after them the daemon must have as many descriptors and as much memory as before.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import time
from typing import Callable, Dict, List, Optional

from killable_daemon import KillableDaemon
from leftovers import wait_until_none_left
from save_record import SaveRecord, Version
from trainer_process import TrainerProcess

from harness import until

KEEP = 3
WORLD_SIZE = 2
TAGS = [f"t{i}" for i in range(6)]
MAX_DELAY = 0.06  # Seconds until something is killed: about as long as a save takes.
SURVIVED_SHARE = 0.2  # At the end, the number of cycles that kill only trainers, as a share of those before.
MEMORY_SLACK = 8 << 20  # Bytes that an allocator may keep.


@dataclasses.dataclass
class Footprint:
    """What an idle daemon holds."""

    descriptors: int
    private_bytes: int
    used_bytes: int
    lent_bytes: int
    sessions: int
    shared_files: frozenset[str]


def footprint(daemon: KillableDaemon) -> Footprint:
    status = daemon.status()
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{daemon.pid}/status").read_text().splitlines())
    return Footprint(
        descriptors=len(os.listdir(f"/proc/{daemon.pid}/fd")),
        private_bytes=int(fields["RssAnon"].split()[0]) << 10,
        used_bytes=status.pool.used_bytes,
        lent_bytes=status.pool.lent_bytes,
        sessions=status.sessions,
        # Folders there belong to other tests that run at the same time.
        shared_files=frozenset(
            entry.name for entry in os.scandir("/dev/shm") if "ckptd" in entry.name and not entry.is_dir()
        ),
    )


class Soak:
    def __init__(self, folder: pathlib.Path, seed: int, backend: str) -> None:
        self.random = random.Random(seed)
        self.root = folder / "root"
        self.root.mkdir()
        self.record = SaveRecord(self.root, KEEP)
        self.daemon = KillableDaemon(folder, backend)
        self.trainers: List[TrainerProcess] = []
        self.launches = 0
        self.counts: Dict[str, int] = {}

    def close(self) -> None:
        self.end_launch()
        self.daemon.close()

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ---- one cycle

    def launch(self) -> None:
        self.end_launch()
        self.launches += 1
        self.count("launches")
        for rank in range(WORLD_SIZE):
            self.trainers.append(
                TrainerProcess(self.daemon.endpoint, f"launch {self.launches}", self.root, rank, WORLD_SIZE, KEEP)
            )
        for trainer in self.trainers:
            trainer.send("attach")
        assert [trainer.receive() for trainer in self.trainers] == ["attached"] * WORLD_SIZE
        for trainer in self.trainers:
            trainer.send("resume")
        resumed = [trainer.receive() for trainer in self.trainers]
        assert resumed[0] == resumed[1], f"two ranks resumed from different checkpoints: {resumed}"
        assert resumed[0][2] >= self.record.latest(), f"resumed from {resumed}, {self.record.latest()} was acknowledged"

    def end_launch(self) -> None:
        for trainer in self.trainers:
            trainer.close()
        self.trainers = []

    def cycle(self, may_kill_daemon: bool) -> None:
        if not self.trainers or self.random.random() < 0.3:
            self.launch()
        version = self.record.begin(self.random.choice(TAGS), WORLD_SIZE, self.random.choice([0, 1, 5000, 70_000, 300_000]))
        for trainer in self.trainers:
            trainer.send("save", version.tag, {version.name(trainer.rank): version.data(trainer.rank)})
        kill_daemon = may_kill_daemon and self.random.random() < 0.5
        dying = [trainer for trainer in self.trainers if self.random.random() < 0.15]
        # Deliberately a random moment, not an event.
        time.sleep(self.random.random() * MAX_DELAY)
        kills: List[Callable[[], None]] = [trainer.kill for trainer in dying]
        if kill_daemon:
            kills.append(self.kill_daemon)
        self.random.shuffle(kills)
        for kill in kills:
            kill()
        self.collect(version)
        if dying:
            self.count("cycles with killed trainers")
            self.end_launch()
        wait_until_none_left(self.root)
        self.record.check()

    def kill_daemon(self) -> None:
        self.daemon.kill()
        self.count("killed daemons")
        while self.random.random() < 0.2:
            with contextlib.suppress(AssertionError):
                self.daemon.start(must_serve=False)
            time.sleep(self.random.random() * MAX_DELAY / 3)
            self.daemon.kill()
            self.count("daemons killed in recovery")
        self.daemon.start()

    def collect(self, version: Version) -> None:
        """Records what each rank was told: the living ones, and those that were told before they died."""
        for trainer in self.trainers:
            try:
                kind, detail = trainer.receive()
            except EOFError:
                continue
            if kind == "committed":
                self.record.committed(version, detail)
            elif kind == "failed":
                self.record.failed(version, detail)
            else:
                raise AssertionError(f"rank {trainer.rank} was not told how {version} ended: {detail}")
            self.count(kind if kind == "committed" else f"{kind} {detail}")

    # ---- all cycles

    def settle(self) -> Footprint:
        self.end_launch()
        until(lambda: footprint(self.daemon).lent_bytes == 0, "all memory to be returned to the pool", 30)
        return footprint(self.daemon)

    def expect_back_at(self, baseline: Footprint) -> None:
        """After all sessions have ended."""
        self.end_launch()

        def back() -> bool:
            now = footprint(self.daemon)
            return (
                now.descriptors <= baseline.descriptors
                and now.private_bytes <= baseline.private_bytes + MEMORY_SLACK
                and (now.used_bytes, now.lent_bytes) == (0, 0)
                and now.sessions <= baseline.sessions
                and now.shared_files <= baseline.shared_files
            )

        try:
            until(back, "the daemon to be back at its baseline", 20)
        except AssertionError:
            raise AssertionError(f"not back at the baseline {baseline}: {footprint(self.daemon)}") from None

    def run(self, more: Callable[[int], bool], report: Callable[[str], None]) -> None:
        """Runs cycles while `more(number of cycles done)` is true."""
        self.daemon.start()
        done = 0
        while more(done):
            self.cycle(may_kill_daemon=True)
            done += 1
            if done % 100 == 0:
                report(f"{done} cycles: {self.counts}")
        # Warm up: after this the daemon has allocated what it keeps for good.
        for _ in range(10):
            self.cycle(may_kill_daemon=False)
        baseline = self.settle()
        survived = max(10, int(done * SURVIVED_SHARE))
        for _ in range(survived):
            self.cycle(may_kill_daemon=False)
        self.expect_back_at(baseline)
        assert self.daemon.stop() == 0
        report(f"{done} cycles, and {survived} that killed only trainers: {self.counts}")


def soak(seed: int, backend: str, more: Callable[[int], bool], report: Callable[[str], None], place: Optional[str] = None) -> None:
    report(f"seed {seed}, {backend}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-soak-", dir=place))
    one = Soak(folder, seed, backend)
    try:
        one.run(more, report)
    except BaseException:
        report(f"failed: seed {seed}, {backend}, after {one.counts}; the files are in {folder}")
        one.close()
        raise
    one.close()
    shutil.rmtree(folder)


def simulation(program: str, seed: int, cycles: int, minutes: float) -> "subprocess.Popen[bytes]":
    """Starts tests/sim, for as many seeds or as long, at the same time: the cycles here mostly wait."""
    length = f"--seconds={round(minutes * 60)}" if minutes else f"--seeds={cycles}"
    return subprocess.Popen([program, f"--first={seed * 1_000_003 + 1}", length])


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/soak", description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=0, help="how many cycles; default 1000 without --minutes")
    parser.add_argument("--minutes", type=float, default=0, help="how long to run")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"), help="default: random")
    parser.add_argument("--dir", help="where to put the checkpoints; default: the temporary directory")
    parser.add_argument("--simulation", help=argparse.SUPPRESS)  # The program; tools/soak passes it.
    arguments = parser.parse_args()
    cycles = arguments.cycles or (0 if arguments.minutes else 1000)
    simulated = simulation(arguments.simulation, arguments.seed, cycles, arguments.minutes)
    try:
        # Each back end gets half.
        seconds = arguments.minutes * 60 / 2
        for backend in ("io_uring", "threads"):
            begun = time.monotonic()

            def more(done: int) -> bool:
                assert simulated.poll() in (None, 0), "the simulation failed"
                return done < cycles // 2 or time.monotonic() - begun < seconds

            soak(arguments.seed, backend, more, lambda words: print(words, flush=True), arguments.dir)
        assert simulated.wait() == 0, "the simulation failed"
    finally:
        simulated.kill()
        simulated.wait()
    print("soak: clean")


if __name__ == "__main__":
    main()
