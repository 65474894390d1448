"""Random kill and restart cycles of the real daemon and its trainers, judged by a record that is kept outside of them.

A cycle: the ranks of a launch save, and at a random moment the daemon, some of them, or both get SIGKILL; sometimes the next
daemon, too, while it recovers. Then the invariant of record.py must hold and nothing may be left behind. At the end come cycles
that only trainers are killed in, after which the daemon must have the descriptors and the memory that it had before.
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

from firing import Daemon, await_nothing_left
from harness import until
from record import Record, Version
from trainers import Trainer

KEEP = 3
WORLD_SIZE = 2
TAGS = [f"t{i}" for i in range(6)]
LONGEST_DELAY = 0.06  # Seconds, until something is killed: about as long as a save takes.
LAST_PHASE = 0.2  # Of the cycles: those that the daemon survives.
MEMORY_SLACK = 8 << 20  # Bytes: what an allocator keeps.


@dataclasses.dataclass
class Footprint:
    """What an idle daemon has."""

    descriptors: int
    private_bytes: int
    used_bytes: int
    lent_bytes: int
    sessions: int
    shared_files: frozenset[str]


def footprint(daemon: Daemon) -> Footprint:
    status = daemon.status()
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{daemon.pid}/status").read_text().splitlines())
    return Footprint(
        descriptors=len(os.listdir(f"/proc/{daemon.pid}/fd")),
        private_bytes=int(fields["RssAnon"].split()[0]) << 10,
        used_bytes=status.pool.used_bytes,
        lent_bytes=status.pool.lent_bytes,
        sessions=status.sessions,
        # Folders there are of other tests that run beside this one.
        shared_files=frozenset(
            entry.name for entry in os.scandir("/dev/shm") if "ckptd" in entry.name and not entry.is_dir()
        ),
    )


class Soak:
    def __init__(self, folder: pathlib.Path, seed: int, backend: str) -> None:
        self.random = random.Random(seed)
        self.root = folder / "root"
        self.root.mkdir()
        self.record = Record(self.root, KEEP)
        self.daemon = Daemon(folder, backend)
        self.trainers: List[Trainer] = []
        self.launches = 0
        self.counts: Dict[str, int] = {}

    def close(self) -> None:
        self.dismiss()
        self.daemon.close()

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ---- one cycle

    def launch(self) -> None:
        self.dismiss()
        self.launches += 1
        self.count("launches")
        for rank in range(WORLD_SIZE):
            self.trainers.append(
                Trainer(self.daemon.endpoint, f"launch {self.launches}", self.root, rank, WORLD_SIZE, KEEP)
            )
        for trainer in self.trainers:
            trainer.tell("attach")
        assert [trainer.hear() for trainer in self.trainers] == ["attached"] * WORLD_SIZE
        for trainer in self.trainers:
            trainer.tell("resume")
        resumed = [trainer.hear() for trainer in self.trainers]
        assert resumed[0] == resumed[1], f"two ranks resume from different checkpoints: {resumed}"
        assert resumed[0][2] >= self.record.latest(), f"resumed from {resumed}, {self.record.latest()} was acknowledged"

    def dismiss(self) -> None:
        for trainer in self.trainers:
            trainer.close()
        self.trainers = []

    def cycle(self, may_kill_daemon: bool) -> None:
        if not self.trainers or self.random.random() < 0.3:
            self.launch()
        version = self.record.begin(self.random.choice(TAGS), WORLD_SIZE, self.random.choice([0, 1, 5000, 70_000, 300_000]))
        for trainer in self.trainers:
            trainer.tell("save", version.tag, {version.name(trainer.rank): version.data(trainer.rank)})
        kill_daemon = may_kill_daemon and self.random.random() < 0.5
        dying = [trainer for trainer in self.trainers if self.random.random() < 0.15]
        # A random moment, and not an event, is what this is about.
        time.sleep(self.random.random() * LONGEST_DELAY)
        kills: List[Callable[[], None]] = [trainer.kill for trainer in dying]
        if kill_daemon:
            kills.append(self.kill_daemon)
        self.random.shuffle(kills)
        for kill in kills:
            kill()
        self.collect(version)
        if dying:
            self.count("cycles with killed trainers")
            self.dismiss()
        await_nothing_left(self.root)
        self.record.check()

    def kill_daemon(self) -> None:
        self.daemon.kill()
        self.count("killed daemons")
        while self.random.random() < 0.2:
            with contextlib.suppress(AssertionError):
                self.daemon.start(must=False)
            time.sleep(self.random.random() * LONGEST_DELAY / 3)
            self.daemon.kill()
            self.count("daemons killed in recovery")
        self.daemon.start()

    def collect(self, version: Version) -> None:
        """What each rank that lives was told; a dead one may have been told before."""
        for trainer in self.trainers:
            try:
                kind, detail = trainer.hear()
            except EOFError:
                continue
            if kind == "committed":
                self.record.committed(version, detail)
            elif kind == "failed":
                self.record.failed(version, detail)
            else:
                raise AssertionError(f"rank {trainer.rank} was told neither yes nor no of {version}: {detail}")
            self.count(kind if kind == "committed" else f"{kind} {detail}")

    # ---- all of them

    def settle(self) -> Footprint:
        self.dismiss()
        until(lambda: footprint(self.daemon).lent_bytes == 0, "the return of all memory", 30)
        return footprint(self.daemon)

    def expect_back_at(self, baseline: Footprint) -> None:
        self.dismiss()

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
            until(back, "the baseline", 20)
        except AssertionError:
            raise AssertionError(f"not back at the baseline {baseline}: {footprint(self.daemon)}") from None

    def run(self, more: Callable[[int], bool], say: Callable[[str], None]) -> None:
        """Cycles as long as `more` of how many there were."""
        self.daemon.start()
        done = 0
        while more(done):
            self.cycle(may_kill_daemon=True)
            done += 1
            if done % 100 == 0:
                say(f"{done} cycles: {self.counts}")
        # Warm: what is kept for good has been made.
        for _ in range(10):
            self.cycle(may_kill_daemon=False)
        baseline = self.settle()
        survived = max(10, int(done * LAST_PHASE))
        for _ in range(survived):
            self.cycle(may_kill_daemon=False)
        self.expect_back_at(baseline)
        assert self.daemon.stop() == 0
        say(f"{done} cycles, and {survived} that one daemon survived: {self.counts}")


def soak(seed: int, backend: str, more: Callable[[int], bool], say: Callable[[str], None], place: Optional[str] = None) -> None:
    say(f"seed {seed}, {backend}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-soak-", dir=place))
    one = Soak(folder, seed, backend)
    try:
        one.run(more, say)
    except BaseException:
        say(f"seed {seed}, {backend}; what happened: {one.counts}; everything is left in {folder}")
        one.close()
        raise
    one.close()
    shutil.rmtree(folder)


def simulation(program: str, seed: int, cycles: int, minutes: float) -> "subprocess.Popen[bytes]":
    """tests/sim beside it, on as many seeds or for as long: the cycles here are mostly waiting."""
    length = f"--seconds={round(minutes * 60)}" if minutes else f"--seeds={cycles}"
    return subprocess.Popen([program, f"--first={seed * 1_000_003 + 1}", length])


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/soak", description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=0, help="how many; default 1000 where --minutes says nothing")
    parser.add_argument("--minutes", type=float, default=0, help="how long")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--dir", help="where the checkpoints are; default: the temporary directory")
    parser.add_argument("--simulation", help=argparse.SUPPRESS)  # The program, by tools/soak.
    arguments = parser.parse_args()
    cycles = arguments.cycles or (0 if arguments.minutes else 1000)
    simulated = simulation(arguments.simulation, arguments.seed, cycles, arguments.minutes)
    try:
        # Half of it for each back end.
        seconds = arguments.minutes * 60 / 2
        for backend in ("io_uring", "threads"):
            begun = time.monotonic()

            def more(done: int) -> bool:
                assert simulated.poll() in (None, 0), "the simulation has failed"
                return done < cycles // 2 or time.monotonic() - begun < seconds

            soak(arguments.seed, backend, more, lambda words: print(words, flush=True), arguments.dir)
        assert simulated.wait() == 0, "the simulation has failed"
    finally:
        simulated.kill()
        simulated.wait()
    print("soak: clean")


if __name__ == "__main__":
    main()
