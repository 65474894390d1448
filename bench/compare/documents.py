"""Writes the figures of a run into the documents, between two marks."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from typing import List

from bench.compare import report
from bench.compare.figures import Comparison
from bench.compare.plot import plot

PERFORMANCE, PICTURE = "docs/performance.md", "docs/compare.svg"
BEGIN, END = "<!-- tools/bench compare: begin -->", "<!-- tools/bench compare: end -->"


def write(root: pathlib.Path, comparisons: List[Comparison], disk: pathlib.Path) -> None:
    """comparisons: of all workloads. disk: a folder on the one that was measured."""
    table = report.markdown(comparisons[0], report.COLUMNS)  # The picture has the figures of the others.
    captions = [report.caption(each) for each in comparisons]
    pieces = [report.describe_machine(disk), captions[0], table, *captions[1:]]
    replace_figures(root / PERFORMANCE, "\n\n".join(pieces))
    plot(comparisons, root / PICTURE)
    subprocess.run([sys.executable, str(root / "docs/pictures.py")], check=True)  # The README's timeline has their figures.


def replace_figures(document: pathlib.Path, text: str) -> None:
    """Replaces the text between the two marks."""
    marked = re.compile(f"{BEGIN}\n.*?{END}", re.DOTALL)
    filled, count = marked.subn(lambda _: f"{BEGIN}\n{text}\n{END}", document.read_text())
    if count != 1:
        raise SystemExit(
            f"{document} must have the marks '{BEGIN}' and '{END}' once, and has them {count} times"
        )
    document.write_text(filled)
