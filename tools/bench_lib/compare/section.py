"""The section of tools/bench: measures, and says it in every form that was asked for."""

from __future__ import annotations

import pathlib
from typing import List, Optional, Tuple

from demo_lib.launch import TOOLS

from bench_lib.compare import documents, report, requirements
from bench_lib.compare.plot import plot
from bench_lib.compare.run import compare
from bench_lib.result import Result


def run(
    folder: pathlib.Path,
    quick: bool,
    huge: Optional[pathlib.Path],
    workload: Optional[str],
    picture: Optional[pathlib.Path],
    docs: bool,
) -> Tuple[List[Result], str]:
    """The figures one by one, and as tables. workload: that one only."""
    if docs and (quick or workload):
        raise SystemExit("--docs is for the figures of a whole run: without --quick and --workload")
    requirements.install()
    comparisons = compare([workload] if workload else ["gpt"] if quick else ["gpt", "llama"], folder, quick, huge)
    if picture:
        plot(comparisons, picture)
    if docs:
        documents.write(TOOLS.parent, comparisons)
    return report.results(comparisons), "\n\n".join(report.text(each) for each in comparisons)
