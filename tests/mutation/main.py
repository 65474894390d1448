"""Removes guards from the source, one at a time, and checks that a test fails for each.

Each mutant leaves out one fsync, directory sync, result check or rename guard of the commit path, or one guard of
admission, fencing or retention. It is built in a copy of the checkout, and the quickest tests that can detect it
run until one fails. The last line is "N of N mutants killed"; the exit status is 0 only if all were killed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import fnmatch
import hashlib
import json
import os
import pathlib
import queue
import sys
import threading
import time
from typing import Any, Dict, Iterable, List, Optional

from mutation import table
from mutation.table import Mutant
from mutation.tree import BrokenRun, Death, Tree

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Outcome:
    mutant: Mutant
    seconds: float
    death: Optional[Death] = None
    broken: str = ""  # Why the mutant could not be judged.

    def __str__(self) -> str:
        if self.broken:
            return f"BROKEN: {self.broken}"
        if self.death is None:
            return f"SURVIVED {' '.join(self.mutant.tests)}"
        return f"{self.death.how} {self.death.case or self.death.test}"

    def as_json(self) -> Dict[str, Any]:
        death = dataclasses.asdict(self.death) if self.death else None
        return {
            "name": self.mutant.name,
            "file": self.mutant.file,
            "what": self.mutant.what,
            "seconds": round(self.seconds, 1),
            "killed_by": death,
            "broken": self.broken,
        }


class Run:
    """Runs mutants in trees; each tree runs one mutant at a time."""

    def __init__(self, mutants: List[Mutant], trees: List[Tree], as_json: bool) -> None:
        self.mutants = mutants
        self.as_json = as_json
        self.free: "queue.Queue[Tree]" = queue.Queue()
        for tree in trees:
            self.free.put(tree)
        self.workers = len(trees)
        self.lock = threading.Lock()
        self.done = 0

    def one(self, mutant: Mutant) -> Outcome:
        tree = self.free.get()
        began = time.monotonic()
        try:
            outcome = Outcome(mutant, 0, tree.kill(mutant))
        except BrokenRun as error:
            outcome = Outcome(mutant, 0, broken=str(error))
        finally:
            self.free.put(tree)
        outcome.seconds = time.monotonic() - began
        with self.lock:
            self.done += 1
            count = f"{self.done}/{len(self.mutants)}"
            if self.as_json:
                print(json.dumps(outcome.as_json()), flush=True)
            say(f"{count:>8}  {outcome.seconds:5.1f} s  {mutant.name:44} {outcome}")
        return outcome

    def all(self) -> List[Outcome]:
        pool = concurrent.futures.ThreadPoolExecutor(self.workers)
        try:
            return list(pool.map(self.one, self.mutants))
        finally:  # After Ctrl-C: running mutants finish, and no others start.
            pool.shutdown(cancel_futures=True)


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def read_results(paths: Iterable[str]) -> Dict[str, Dict[str, Any]]:
    """Returns what --json wrote, by name; a mutant's last result counts. Ignores lines cut off by an interrupt."""
    results = {}
    for path in paths:
        for line in pathlib.Path(path).read_text().splitlines():
            with contextlib.suppress(ValueError):
                result = json.loads(line)
                results[result["name"]] = result
    return results


def without_killed(mutants: List[Mutant], results: Dict[str, Dict[str, Any]]) -> List[Mutant]:
    """Returns the mutants without those that were killed: survivors and broken ones run again."""
    return [mutant for mutant in mutants if not results.get(mutant.name, {}).get("killed_by")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/mutate", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="run only these; a pattern such as `publish.*` also works")
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--json", action="store_true", help="print each outcome on stdout as a line of JSON")
    parser.add_argument(
        "--skip-done",
        metavar="FILE",
        nargs="+",
        default=[],
        help="resume: skip the mutants that were killed in earlier runs, from what --json wrote",
    )
    parser.add_argument("--config", metavar="NAME", default="release", help="Bazel's --config; `quick` builds faster")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="mutants at a time")
    return parser.parse_args()


def chosen(mutants: List[Mutant], patterns: Optional[List[str]]) -> List[Mutant]:
    if not patterns:
        return mutants
    found = [m for m in mutants if any(fnmatch.fnmatch(m.name, pattern) for pattern in patterns)]
    if not found:
        raise SystemExit(f"tools/mutate: no mutant is called {' or '.join(patterns)}; see --list")
    return found


def main() -> int:
    args = arguments()
    try:
        mutants = table.load()
    except table.StaleTable as error:
        raise SystemExit(f"tools/mutate: {error}") from error
    stale = table.check(mutants, ROOT)
    if stale:
        raise SystemExit("\n".join(["tools/mutate: the table is stale:", *(f"  {why}" for _, why in stale)]))
    mutants = without_killed(chosen(mutants, args.only), read_results(args.skip_done))
    if args.list:
        for mutant in mutants:
            print(f"{mutant.name:44} {mutant.what}")
        return 0

    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
    place = pathlib.Path(os.environ["CKPTD_CACHE"]) / "mutate" / checkout
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        trees = [Tree(ROOT, place / str(number), args.config) for number in range(min(args.jobs, len(mutants)))]
        try:
            targets = sorted({test.partition("=")[0] for mutant in mutants for test in mutant.tests})
            say(f"== without a mutant: {' '.join(targets)}")
            for tree in trees:
                tree.refresh()
                tree.warm_up(targets)
            say(f"== {len(mutants)} mutants")
            outcomes = Run(mutants, trees, args.json).all()
        except BrokenRun as error:
            raise SystemExit(f"tools/mutate: {error}") from error
        finally:
            for tree in trees:
                tree.close()
    killed = sum(outcome.death is not None for outcome in outcomes)
    last = f"{killed} of {len(outcomes)} mutants killed"
    print(last, file=sys.stderr if args.json else sys.stdout)
    return 0 if killed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
