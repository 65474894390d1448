"""Runs tools/bench compare, and writes its figures in every form that was asked for."""

from __future__ import annotations

import pathlib
from typing import List, Optional, Tuple

from bench.base.result import Result
from bench.compare import RANKS, documents, report, requirements
from bench.compare.plot import plot
from bench.compare.rounds import compare
from bench.contenders import catalog

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def run(
    folder: pathlib.Path,
    quick: bool,
    huge: Optional[pathlib.Path],
    workload: Optional[str],
    picture: Optional[pathlib.Path],
    docs: bool,
    dcp: bool = False,
    ranks: int = RANKS,
) -> Tuple[List[Result], str]:
    """Returns the results, and tables of them. workload: the only one to run, or None. docs: also write the documents.
    dcp: compare the ways to use DCP in place of the libraries.
    """
    if docs and (quick or workload or dcp or ranks != RANKS):
        raise SystemExit(
            "--docs needs the figures of a whole run: omit --quick, --workload, --dcp and --ranks"
        )
    requirements.install()
    comparisons = compare(
        [workload] if workload else ["gpt"] if quick else ["gpt", "llama"],
        ranks,
        catalog.DCP_NAMES if dcp else catalog.NAMES,
        folder,
        quick,
        huge,
    )
    if picture:
        plot(comparisons, picture)
    if docs:
        documents.write(REPOSITORY, comparisons)
    return report.results(comparisons), "\n\n".join(report.text(each) for each in comparisons)
