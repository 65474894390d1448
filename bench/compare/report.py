"""A comparison as a list of results, and as tables."""

from __future__ import annotations

import pathlib
import platform
from typing import Callable, Dict, List

from bench.base import hardware, requirements
from bench.base.goals import GOALS
from bench.base.result import Result
from bench.compare.figures import FIGURES, Comparison, Figures
from bench.compare.setup import slug
from bench.contenders import catalog

DESCRIPTIONS = {  # By workload.
    "gpt": "the state of a GPT with AdamW that trains",
    "llama": "a state in the shape of MLPerf Storage's Llama3 8B, beside a small GPT that trains",
    "many": "10,000 small tensors, beside a small GPT that trains",
}
LOST_GOAL = GOALS["save.lost.vs_copy"].bound


def results(comparisons: List[Comparison]) -> List[Result]:
    found = [result for comparison in comparisons for result in _results(comparison)]
    largest = max(comparisons, key=lambda comparison: comparison.size)
    if catalog.CKPTD not in largest.figures:
        return found
    ours = largest.figures[catalog.CKPTD]
    words, lost = _describe_copy(largest), ours["lost"] / largest.copy.seconds
    return [*found, Result("save.lost.vs_copy", lost, "x", words, LOST_GOAL, rounds=ours.rounds)]


def _results(comparison: Comparison) -> List[Result]:
    copy = _describe_copy(comparison)
    found = []
    for contender, figures in comparison.figures.items():
        prefix = f"compare.{comparison.workload}.{slug(contender)}"
        for name, meaning in FIGURES.items():
            values = figures.values[name]
            if not values:
                continue
            words = f"{meaning}: median of {len(values)}, {min(values):.3f}-{max(values):.3f}"
            unit = meaning.rpartition(", ")[2]
            found.append(Result(f"{prefix}.{name}", figures[name], unit, words, rounds=figures.rounds))
        for name in ("stall", "lost"):
            found.append(Result(f"{prefix}.{name}.vs_copy", figures[name] / comparison.copy.seconds, "x", copy, rounds=figures.rounds))
        rate = comparison.size / figures["durable"] / comparison.fio
        found.append(Result(f"{prefix}.durable.vs_fio", rate, "x", comparison.fio_description, rounds=figures.rounds))
    return found


def _describe_copy(comparison: Comparison) -> str:
    copy = comparison.copy
    return f"one copy of a rank's bytes by {copy.loop}, {comparison.ranks} ranks concurrently, one thread each, into shared pages as the pool's: {copy.seconds * 1e3:.0f} ms"


# ---- tables ----------------------------------------------------------------------------------------------

Cell = Callable[[Figures], str]
COLUMNS: Dict[str, str] = {
    "first": "first stall",
    "stall": "stall",
    "done": "says done after",
    "durable": "durable after",
    "lost": "training time lost",
    "cold": "restore, cold",
    "warm": "again",
    "one": "all on one rank",
    "cpu": "CPU-s/GB",
    "private": "memory",
    "shared": "shared memory",
}
IN_COPIES = ("stall", "lost")  # Also shown as a number of memory copies.


def _cells(comparison: Comparison, columns: Dict[str, str], best: Callable[[str], str]) -> List[List[str]]:
    """A row for each contender. best: how to mark the lowest value of a column."""
    rows = []
    for contender, figures in comparison.figures.items():
        row = [contender]
        for name in columns:
            if not figures.values[name]:
                row.append("-")
                continue
            text = f"{figures[name]:.{3 if figures[name] < 0.1 else 2}f}"
            least = f"{min(other[name] for other in comparison.figures.values() if other.values[name]):.3f}"
            if f"{figures[name]:.3f}" == least:
                text = best(text)
            if name in IN_COPIES:
                text += f" ({figures[name] / comparison.copy.seconds:.1f})"
            row.append(text)
        rows.append(row)
    return rows


def caption(comparison: Comparison) -> str:
    return (
        f"{comparison.ranks} ranks, {comparison.size / comparison.ranks / 1e6:.0f} MB each: {DESCRIPTIONS[comparison.workload]}; "
        f"every core computes. One copy of a rank's bytes, all ranks at once: {comparison.copy.seconds:.3f} s ({comparison.copy.loop}). "
        f"{comparison.size / 1e9:.2f} GB at fio's best rate: {comparison.size / comparison.fio:.2f} s "
        f"({comparison.fio_description})."
    )


def text(comparison: Comparison) -> str:
    header = ["", *COLUMNS.values(), "not synced then"]
    rows = _cells(comparison, COLUMNS, lambda cell: f"*{cell}")
    for row, figures in zip(rows, comparison.figures.values()):
        row.append(figures.unsynced or "-")
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [header, *rows]
    ]
    return "\n".join([caption(comparison), UNITS, "", lines[0], "-" * len(lines[0]), *lines[1:]])


UNITS = (
    "Medians, in seconds; in brackets: how many of those copies; * the lowest of a column; "
    "memory above the state, in states."
)


def markdown(comparison: Comparison, columns: Dict[str, str]) -> str:
    """A Markdown table; the lowest value of each column is bold."""
    rows = _cells(comparison, columns, lambda cell: f"**{cell}**")
    for row in rows:
        row[0] = markdown_name(row[0])
    header = ["", *columns.values()]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown_name(contender: str) -> str:
    return contender if contender == catalog.CKPTD else f"`{contender}`"


def describe_machine(place: pathlib.Path) -> str:
    """The machine, with the disk of a folder, and the versions of everything that was measured."""
    versions = requirements.versions("ckptd", "torch", "safetensors", "numpy")
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{hardware.in_words(hardware.describe(place))}; Python {platform.python_version()}, {named}."
