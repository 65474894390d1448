"""Measures ckptd on this machine. Each figure is shown beside a limit that the same run measures."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import shutil
import sys
import tempfile
from typing import Callable, Iterator, List, NamedTuple

from bench.base import fio, machine, settings
from bench.base.context import GIB, SUFFIX, BenchContext
from bench.base.result import Result, as_json, as_table
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
)
from bench.compare.setup import Setup, contenders

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


class Case(NamedTuple):
    run: Callable[[BenchContext], None]
    description: str
    uses_fio: bool = False
    only_when_named: bool = False


CASES = {
    "copy": Case(copy.run, "the ways to copy memory, and which one a client chooses"),
    "save": Case(save.run, "stall, durable bytes, publishing, the daemon's CPU and memory", uses_fio=True),
    "small": Case(small.run, "10,000 tensors of 1 KiB"),
    "handoff": Case(handoff.run, "Begin + Seal, with almost no bytes between them"),
    "step": Case(step.run, "what a save costs training steps that run at the same time"),
    "restore": Case(
        restore.run, "from memory, from the disk, slices, and what it costs training steps", uses_fio=True
    ),
    "ready": Case(ready.run, "start of a daemon that knows 1,000 checkpoints"),
    "scale": Case(scale.run, "what must not grow: 10,000 checkpoints, 1,000 roots, 256 ranks, 10,000 files"),
    "memory": Case(memory.run, "what the daemon keeps of 10,000 saves of 10,000 files"),
    "hostile": Case(hostile.run, "saves of a job beside a hostile user of the same daemon"),
    "nodes": Case(nodes.run, "what etcd costs a save of 3 nodes, and of 256 with 64 ranks each"),
    "deepspeed": Case(deepspeed_save.run, "what save_checkpoint of DeepSpeed takes, beside DeepSpeed alone"),
    "gpu": Case(
        gpu.run, "a state on a GPU: blocked steps, copies and restores; needs a GPU, and runs only when named", only_when_named=True
    ),
    "convert": Case(convert.run, "checkpoints of 4 GiB of NxD and DeepSpeed into other layouts", uses_fio=True),
}
COMPARE = "compare"
COMPARE_DESCRIPTION = "ckptd and other ways to save, in turns; takes half an hour, and runs only when named"


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
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects instead of a table")
    parser.add_argument(
        "--quick", action="store_true", help="use an eighth of the bytes and fewer rounds, for a test"
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
    if options.ranks < 1:
        parser.error(f"--ranks is {options.ranks}; a job has at least one rank")
    if not 1 <= options.pool <= 8:
        parser.error(f"--pool is {options.pool}; the pool holds from 1 to 8 states")
    try:
        options.contenders = contenders(options.dcp, options.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    return options


@contextlib.contextmanager
def temporary_folder(parent: pathlib.Path, free: int) -> Iterator[pathlib.Path]:
    """A folder on a disk with `free` bytes left. Removed at the end, with `parent` if that is empty then."""
    parent.mkdir(parents=True, exist_ok=True)
    machine.require_disk(parent, free)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="b", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            parent.rmdir()


def run_case(name: str, folder: pathlib.Path, options: argparse.Namespace, results: List[Result]) -> None:
    case = CASES[name]
    machine.log(f"{name}: {case.description}")
    clients = [options.client] if options.client else list(SUFFIX)
    with (
        settings.reserved_huge_pages(fio.HUGE_PAGE_BYTES)
        if case.uses_fio
        else contextlib.nullcontext() as huge
    ):
        case.run(BenchContext(folder, options.quick, huge, clients, results))


def run_comparison(folder: pathlib.Path, options: argparse.Namespace, results: List[Result]) -> str:
    """Returns the tables."""
    from bench.compare import main as compare  # Here, because its imports are slow.

    machine.log(f"{COMPARE}: {COMPARE_DESCRIPTION}")
    setup = Setup(options.contenders, options.ranks, options.pool)
    with contextlib.ExitStack() as stack:
        if options.shared_huge_pages:
            stack.enter_context(settings.changed(settings.SHARED_HUGE, options.shared_huge_pages))
        huge = stack.enter_context(settings.reserved_huge_pages(fio.HUGE_PAGE_BYTES))
        compared, tables = compare.run(
            folder, options.quick, huge, options.workload, setup, options.plot, options.docs
        )
    results += compared
    return tables


def main() -> int:
    options = parse_options()
    results: List[Result] = []
    tables: List[str] = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            temporary_folder(options.dir.resolve(), (2 if options.quick else 12) * GIB)
        )
        for name, case in CASES.items():
            if name in options.cases or (not options.cases and not case.only_when_named):
                run_case(name, folder, options, results)
        if results:
            tables.append(as_table(results))
        if COMPARE in options.cases:
            tables.append(run_comparison(folder, options, results))
    print(as_json(results) if options.json else "\n\n".join(tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
