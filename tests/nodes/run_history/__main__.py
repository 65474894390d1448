"""Clients on three nodes save, resume, list, pin and delete while daemons, links and members of etcd fail; each history must be one
that a run which does one thing after another could have had. For tools/soak.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import sys
import time
from typing import Counter, Optional

from cluster import Cluster
from places import best_places
from run_history import recording
from run_history.rounds import Rounds, problem_of

from harness import closing, temporary_folder

BATCHES_OF_A_CLUSTER = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/soak history", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="how many histories (default: 100)")
    parser.add_argument("--at-once", type=int, default=5, help="how many of them at a time, with the same faults (default: 5)")
    parser.add_argument("--minutes", type=float, default=0, help="how long, instead of --rounds")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "little"), help="of the first histories; default: random")
    parser.add_argument("--keep-going", action="store_true", help="go on after a history that nothing explains")
    parser.add_argument("--save", type=pathlib.Path, help="write the histories that nothing explains, and the logs, into this folder")
    parser.add_argument("--check", type=pathlib.Path, help="only check a history that --save has written")
    options = parser.parse_args()
    if options.check:
        calls = recording.read(options.check)
        print(recording.table(calls), problem_of(calls) or "explained", sep="\n\n")
        return 1 if problem_of(calls) else 0
    return Soak(options).run()


class Soak:
    def __init__(self, options: argparse.Namespace) -> None:
        self.rounds: int = options.rounds
        self.at_once: int = options.at_once
        self.deadline = time.monotonic() + 60 * options.minutes if options.minutes else None
        self.seed: int = options.seed
        self.keep_going: bool = options.keep_going
        self.folder: Optional[pathlib.Path] = options.save
        self.done = self.failed = 0
        self.answers: Counter[str] = collections.Counter()

    def more(self) -> bool:
        if self.failed and not self.keep_going:
            return False
        return time.monotonic() < self.deadline if self.deadline else self.done < self.rounds

    def run(self) -> int:
        print(f"seed {self.seed}", flush=True)
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
        while self.more():
            with temporary_folder() as folder, closing(best_places()) as places, closing(Cluster(folder, places)) as cluster:
                try:
                    self.run_on(Rounds(cluster))
                finally:
                    if self.folder:
                        (self.folder / f"log-{self.seed}").write_text(cluster.logs())
        print(f"history: {self.failed} of {self.done} are not explained" if self.failed else "history: clean")
        return 1 if self.failed else 0

    def run_on(self, rounds: Rounds) -> None:
        for _ in range(BATCHES_OF_A_CLUSTER):
            if not self.more():
                return
            began = time.monotonic()
            count = self.at_once if self.deadline else min(self.at_once, self.rounds - self.done)
            for history in rounds.run(self.seed, count):
                self.done += 1
                self.answers.update(f"{call.name} {call.answer or 'unknown'}" for call in history.calls)
                if not history.problem:
                    continue
                self.failed += 1
                print(f"\n{history}\n\nagain: tools/soak history --seed={self.seed} --rounds={count} --at-once={count}\n", flush=True)
                if self.folder:
                    recording.write(self.folder / f"{history.seed}-{history.number}.json", history.calls)
            print(f"{self.done} histories, {self.failed} not explained; seed {self.seed} took {time.monotonic() - began:.0f} s", flush=True)
            self.seed += 1
            if self.done % 100 < count:
                print(", ".join(f"{answer}: {number}" for answer, number in sorted(self.answers.items())), flush=True)


if __name__ == "__main__":
    sys.exit(main())
