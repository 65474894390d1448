"""Runs tools/bench compare, and writes its figures in every form that was asked for."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pathlib
from typing import List, Optional, Sequence, Tuple

from bench.base import requirements, settings
from bench.base.context import BenchContext
from bench.base.leftovers import Leftovers
from bench.base.pages import TRANSPARENT
from bench.base.result import Result
from bench.compare import documents, report
from bench.compare.figures import Comparison
from bench.compare.plot import plot
from bench.compare.rounds import compare
from bench.compare.setup import Setup

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")


@dataclasses.dataclass
class Request:
    """What was asked for. workload: the only one to run. docs: also write the documents."""

    workload: Optional[str]
    setup: Setup
    shared_huge_pages: Optional[str] = None
    picture: Optional[pathlib.Path] = None
    docs: bool = False

    def check(self, quick: bool) -> None:
        if self.docs and (quick or self.workload or self.setup != Setup()):
            raise SystemExit(
                "--docs needs the figures of a whole run: omit --quick and the other options of 'compare'"
            )


def measure(context: BenchContext, request: Request, leftovers: Leftovers) -> List[Comparison]:
    """One round."""
    requirements.install("compare", REQUIREMENTS)
    workloads = [request.workload] if request.workload else ["gpt"] if context.quick else ["gpt", "llama"]
    with contextlib.ExitStack() as stack:
        if request.shared_huge_pages:
            stack.enter_context(settings.changed(settings.SHARED_HUGE, request.shared_huge_pages, leftovers))
        buffers = stack.enter_context(context.fio_buffers(TRANSPARENT))
        return compare(workloads, request.setup, context.folder, context.quick, buffers, context.number)


def report_rounds(rounds: Sequence[List[Comparison]], request: Request, disk: pathlib.Path) -> Tuple[List[Result], str]:
    """Returns the results of all rounds, and tables of them. disk: a folder on the one that was measured."""
    comparisons = copy.deepcopy(rounds[0])
    for more in rounds[1:]:
        for whole, part in zip(comparisons, more):
            whole.add(part)
    if request.picture:
        plot(comparisons, request.picture)
    if request.docs:
        documents.write(REPOSITORY, comparisons, disk)
    return report.results(comparisons), "\n\n".join(report.text(each) for each in comparisons)
