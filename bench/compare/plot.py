"""The comparison as a chart."""

from __future__ import annotations

import pathlib
from typing import List

from bench.compare.figures import Comparison
from bench.contenders import catalog

PANELS = {
    "stall": "stall, s",
    "durable": "durable after, s",
    "lost": "training time lost, s",
    "cold": "restore from disk, s",
    "cpu": "CPU seconds per GB",
}


def plot(comparisons: List[Comparison], file: pathlib.Path) -> None:
    """Draws a row of panels for each workload, with a bar for each contender and a line for the measured limit."""
    import matplotlib  # Slow, and needed only here.

    matplotlib.use("svg")
    # The same figures make the same bytes, and text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "ckptd", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(comparisons), len(PANELS), figsize=(13, 2.4 * len(comparisons)), sharey=True, squeeze=False
    )
    for row, comparison in zip(axes, comparisons):
        names = list(reversed(comparison.figures))
        colours = ["#d95f02" if name in catalog.USES_DAEMON else "#8da0cb" for name in names]
        limits = {
            "stall": comparison.copy.seconds,
            "lost": comparison.copy.seconds,
            "durable": comparison.size / comparison.fio,
        }
        for panel, (name, title) in zip(row, PANELS.items()):
            values = [comparison.figures[contender][name] for contender in names]
            panel.barh(names, values, color=colours)
            for place, value in enumerate(values):
                panel.text(max(value, 0), place, f" {value:.2f}", va="center")
            if name in limits:
                panel.axvline(limits[name], color="black", linewidth=0.8, linestyle=":")
            panel.set_title(title)
            panel.margins(x=0.2)
            panel.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel(f"{comparison.workload}, {comparison.size / 1e9:.2f} GB")
    figure.text(0.5, 0.0, "dotted: one memory copy (stall, time lost), fio's best (durable)", ha="center")
    figure.tight_layout()
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
