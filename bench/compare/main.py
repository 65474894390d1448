"""Runs tools/bench compare, and writes its figures in every form that was asked for."""

from __future__ import annotations

import pathlib
from typing import List, Optional, Tuple

from bench.base.result import Result
from bench.compare import documents, report, requirements
from bench.compare.plot import plot
from bench.compare.rounds import compare
from bench.compare.setup import Setup

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def run(
    folder: pathlib.Path,
    quick: bool,
    huge: Optional[pathlib.Path],
    workload: Optional[str],
    setup: Setup,
    picture: Optional[pathlib.Path],
    docs: bool,
) -> Tuple[List[Result], str]:
    """Returns the results, and tables of them. workload: the only one to run, or None. docs: also write the documents."""
    if docs and (quick or workload or setup != Setup()):
        raise SystemExit(
            "--docs needs the figures of a whole run: omit --quick and the other options of 'compare'"
        )
    requirements.install()
    workloads = [workload] if workload else ["gpt"] if quick else ["gpt", "llama"]
    comparisons = compare(workloads, setup, folder, quick, huge)
    if picture:
        plot(comparisons, picture)
    if docs:
        documents.write(REPOSITORY, comparisons)
    return report.results(comparisons), "\n\n".join(report.text(each) for each in comparisons)
