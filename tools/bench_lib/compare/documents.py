"""Puts the figures of a run into the documents, between the marks that they have for them."""

from __future__ import annotations

import pathlib
import re
from typing import List

from bench_lib.compare import report
from bench_lib.compare.figures import Comparison
from bench_lib.compare.plot import plot

README, PERFORMANCE, PICTURE = "README.md", "docs/performance.md", "docs/compare.svg"
BEGIN, END = "<!-- tools/bench compare: begin -->", "<!-- tools/bench compare: end -->"


def write(root: pathlib.Path, comparisons: List[Comparison]) -> None:
    """A whole run's: all workloads."""
    first = comparisons[0]
    put(root / README, f"{report.caption(first)}\n\n{report.markdown(first, report.SHORT)}")
    tables = [f"{report.caption(each)}\n\n{report.markdown(each, report.LONG)}" for each in comparisons]
    put(root / PERFORMANCE, "\n\n".join([report.machine_words(root), *tables]))
    plot(comparisons, root / PICTURE)


def put(document: pathlib.Path, text: str) -> None:
    """Replaces what is between the two marks."""
    marked = re.compile(f"{BEGIN}\n.*?{END}", re.DOTALL)
    filled, count = marked.subn(lambda _: f"{BEGIN}\n{text}\n{END}", document.read_text())
    if count != 1:
        raise SystemExit(f"{document} has {count} places for the figures of tools/bench compare, and not one")
    document.write_text(filled)
