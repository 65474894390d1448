"""Measures ckptd on this machine. Each figure is shown beside a limit that the same run measures."""

from __future__ import annotations

import argparse
import functools
import pathlib
import signal
import sys
from types import FrameType
from typing import Any, Callable, List, NamedTuple, Optional

from bench import STARTED
from bench.base import hardware, machine
from bench.base.context import GIB, SUFFIX, BenchContext
from bench.base.leftovers import Leftovers
from bench.base.result import Result, as_json, as_table, combined, describe_not_run
from bench.cases import (
    convert,
    copy,
    deepspeed_save,
    gpu,
    handoff,
    hostile,
    memory,
    nodes,
    ready,
    restore,
    save,
    scale,
    small,
    step,
    unchanged,
)
from bench.cases.bucket import case as bucket
from bench.compare import main as compare
from bench.compare.setup import Setup, contenders
from bench.run import round_process, rounds
from bench.run.progress import ProgressLine

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


class Case(NamedTuple):
    run: Callable[[BenchContext], None]
    description: str
    rounds: int = 1  # If no time is given.
    only_when_named: bool = False


CASES = {
    "copy": Case(copy.run, "the ways to copy memory, and which one a client chooses", rounds=3),
    "save": Case(save.run, "stall, durable bytes, publishing, the daemon's CPU and memory", rounds=3),
    "small": Case(small.run, "10,000 tensors of 1 KiB", rounds=3),
    "handoff": Case(handoff.run, "Begin + Seal, with almost no bytes between them", rounds=2),
    "step": Case(step.run, "what a save costs training steps that run at the same time", rounds=2),
    "unchanged": Case(unchanged.run, "what is written of a state of which 1 % has changed"),
    "restore": Case(restore.run, "from memory, from the disk, slices, and what it costs training steps", rounds=2),
    "ready": Case(ready.run, "start of a daemon that knows 1,000 checkpoints"),
    "scale": Case(scale.run, "what must not grow: 10,000 checkpoints, 1,000 roots, 256 ranks, 10,000 files"),
    "memory": Case(memory.run, "what the daemon keeps of 10,000 saves of 10,000 files"),
    "hostile": Case(hostile.run, "saves of a job beside a hostile user of the same daemon"),
    "nodes": Case(nodes.run, "what etcd costs a save of 3 nodes, and of 256 with 64 ranks each; DCP on two nodes and on one"),
    "deepspeed": Case(deepspeed_save.run, "what save_checkpoint of DeepSpeed takes, beside DeepSpeed alone", rounds=2),
    "gpu": Case(
        gpu.run, "a state on a GPU: blocked steps, copies and restores; needs a GPU, and runs only when named", only_when_named=True
    ),
    "bucket": Case(
        bucket.run, "uploads and fetches beside other clients of S3; installs one, and runs only when named", only_when_named=True
    ),
    "convert": Case(convert.run, "checkpoints of 4 GiB of NxD and DeepSpeed into other layouts", rounds=2),
}
COMPARE = "compare"
COMPARE_DESCRIPTION = "ckptd and other ways to save, in turns; takes half an hour, and runs only when named"
COMPARE_ROUNDS = 2


def parse_options() -> argparse.Namespace:
    described = [(name, case.description) for name, case in CASES.items()] + [(COMPARE, COMPARE_DESCRIPTION)]
    parser = argparse.ArgumentParser(
        prog="tools/bench",
        description=__doc__,
        epilog="\n".join(["cases:", *(f"  {name:<10}{words}" for name, words in described)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "cases", nargs="*", metavar="case", help="what to run; default: all cases but compare"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="measure round after round until this time is over; default: a few rounds of each case",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    parser.add_argument(
        "--quick", action="store_true", help="use an eighth of the bytes and one round, for a test"
    )
    parser.add_argument("--client", choices=SUFFIX, help="measure only this client")
    parser.add_argument(
        "--dir", type=pathlib.Path, default=REPOSITORY / ".bench", help="a folder on the disk to measure"
    )
    comparing = parser.add_argument_group("options of 'compare'")
    comparing.add_argument("--workload", choices=["gpt", "llama", "many"], help="save only this state")
    comparing.add_argument(
        "--dcp", action="store_true", help="compare the ways to use PyTorch Distributed Checkpoint instead"
    )
    comparing.add_argument(
        "--ranks", type=int, default=Setup().ranks, metavar="N", help="ranks of the jobs; default: %(default)s"
    )
    comparing.add_argument(
        "--only", default="", metavar="NAME,...", help="only these, as their figures are named: ckptd,torch_save"
    )
    comparing.add_argument(
        "--pool",
        type=float,
        default=Setup().pool_states,
        metavar="STATES",
        help="how many states the pool of ckptd's daemon holds; default: %(default)s",
    )
    comparing.add_argument(
        "--shared-huge-pages",
        choices=["never", "advise"],
        help="the kernel's setting for huge pages of shared memory (shmem_enabled) while the bench runs",
    )
    comparing.add_argument("--plot", type=pathlib.Path, metavar="FILE.svg", help="draw the figures")
    comparing.add_argument("--docs", action="store_true", help="write the figures into README.md and docs/")
    options = parser.parse_args()
    unknown = set(options.cases) - {name for name, _ in described}
    if unknown:
        parser.error(
            f"no case {', '.join(sorted(unknown))}; there are {', '.join(name for name, _ in described)}"
        )
    if options.minutes is not None and not options.minutes > 0:
        parser.error(f"--minutes is {options.minutes:g}; it must be more than 0")
    if options.ranks < 1:
        parser.error(f"--ranks is {options.ranks}; a job has at least one rank")
    if not 1 <= options.pool <= 8:
        parser.error(f"--pool is {options.pool}; the pool holds from 1 to 8 states")
    try:
        options.contenders = contenders(options.dcp, options.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    return options


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal has asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the run was ended by {signal.Signals(number).name}")
        self.number = number


def raise_stopped(number: int, frame: Optional[FrameType]) -> None:
    set_handlers(signal.SIG_DFL)  # A second one ends this process at once, and the guard removes what is left.
    raise Stopped(number)


def set_handlers(handler: Any) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


class Bench:
    """The rounds of the cases that were asked for, and what they have measured."""

    def __init__(self, options: argparse.Namespace, leftovers: Leftovers) -> None:
        self._options = options
        self._leftovers = leftovers
        self._clients = [options.client] if options.client else list(SUFFIX)
        self._request = compare.Request(
            options.workload,
            Setup(options.contenders, options.ranks, options.pool),
            options.shared_huge_pages,
            options.plot,
            options.docs,
        )
        if COMPARE in options.cases:
            self._request.check(options.quick)
        chosen = {
            name: case.rounds
            for name, case in CASES.items()
            if name in options.cases or (not options.cases and not case.only_when_named)
        }
        if COMPARE in options.cases:
            chosen[COMPARE] = COMPARE_ROUNDS
        self._cases = [rounds.Progress(name, 1 if options.quick else count) for name, count in chosen.items()]
        self.machine = hardware.describe(leftovers.disk)

    def run(self) -> Optional[Stopped]:
        """Returns the signal that has ended it before its time, if there was one."""
        budget = rounds.Budget(self._options.minutes, start=STARTED)
        descriptions = {COMPARE: COMPARE_DESCRIPTION, **{name: case.description for name, case in CASES.items()}}
        line = ProgressLine(sys.stderr, self._cases, descriptions, budget)
        try:
            rounds.run(self._cases, budget, functools.partial(self._measure, line.ticks), line)
        except Stopped as stopped:
            for case in self._cases:
                case.why = case.why or str(stopped)
            return stopped
        finally:
            line.clear()
        return None

    def _measure(
        self, tick: Callable[[], None], case: rounds.Progress, number: int, limit: float
    ) -> Any:
        """Runs a round in a process of its own."""

        def work(folder: pathlib.Path) -> Any:
            results: List[Result] = []
            context = BenchContext(folder, self._options.quick, self._clients, results, self._leftovers, number)
            if case.name == COMPARE:
                return compare.measure(context, self._request, self._leftovers)
            CASES[case.name].run(context)
            return results

        return round_process.run(work, self._leftovers, limit, tick)

    def report(self) -> str:
        """The figures of all rounds that have ended, as text or JSON; empty text if there are none."""
        results: List[Result] = []
        tables: List[str] = []
        for case in self._cases:
            if case.name != COMPARE:
                results += combined(case.values)
        if results:
            tables.append(as_table(results))
        for case in self._cases:
            if case.name == COMPARE and case.values:
                compared, table = compare.report_rounds(case.values, self._request, self._leftovers.disk)
                results += compared
                tables.append(table)
        not_run = rounds.not_run(self._cases)
        if self._options.json:
            return as_json(results, self.machine, not_run, self._options.quick)
        if tables:
            tables.insert(0, f"Machine: {hardware.in_words(self.machine)}")
            if not_run:
                tables.append(describe_not_run(not_run))
        return "\n\n".join(tables)

    @property
    def is_complete(self) -> bool:
        """Whether each case has a round, and none has failed."""
        return all(case.is_complete for case in self._cases)


def main() -> int:
    options = parse_options()
    with Leftovers(options.dir.resolve()) as leftovers:
        machine.require_disk(leftovers.disk, (2 if options.quick else 12) * GIB)
        bench = Bench(options, leftovers)
        set_handlers(raise_stopped)
        stopped = bench.run()
        set_handlers(signal.SIG_DFL)
        report = bench.report()
    if report:
        print(report)
    if stopped:
        return 128 + stopped.number
    return 0 if bench.is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
