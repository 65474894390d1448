"""Writes docs/conformance.md from what a run has found."""

from __future__ import annotations

import collections
import importlib.metadata
import pathlib
import re
from typing import Dict, List, Mapping

from conformance.case import ERROR, HANG, LOST, RIGHT, WRONG, Case
from conformance.runner import VARIANTS, Result, variants_of

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/conformance.md"
Results = Mapping[str, Mapping[str, Result]]  # By case and variant.

BEGIN = """# What holds, with ckptd and with the stock libraries

For people who ask what changes when they put ckptd under their training. After reading this page you know where ckptd
and the stock libraries give the same, and where one of them does not give what was saved.

Each row is one thing that users expect of a checkpoint, from a public report or from what people do every day.
`tools/conformance` runs each of them with the stock library and with ckptd, and crosswise: saved by the one and loaded by
the other. It writes this page. `tools/test` runs each of them with ckptd alone.

| word | what it means |
| --- | --- |
| right | what the row says holds |
| error | an exception; nothing is wrong, and nothing is lost |
| **wrong** | another value, or another checkpoint, came back without an error |
| **lost** | a checkpoint that had been saved is not there any more, or not whole |
| **hang** | it did not end within two minutes |

"ckptd > stock" is saved by ckptd and loaded by the stock library, "stock > ckptd" the other way round; "-" where there is no
such way. With accelerate, which has no adapter, ckptd is [the loop of frameworks.md](frameworks.md#accelerate). A report is a link
to what somebody has met, in one of these libraries or in another one; the sentence is what should hold. The libraries are
{versions}.

{summary}
"""

UPSTREAM = """
## Tests of other projects

The tests of checkpoints that other projects publish on the package index, run as they are: with the project's own code, and with
ckptd in its place. `tools/conformance --upstream` downloads and runs them. What fsspec's specification of file systems
says of reading is run by `tools/test` (`tests/dcp/test_fsspec_specification.py`). The source distributions of Lightning, TorchTNT and
DeepSpeed have no tests, that of transformers has parts that do not run by themselves, and PyTorch publishes none.

| tests | passed by the project alone | passed with ckptd | skipped here | saves through ckptd |
| --- | --- | --- | --- | --- |
{rows}
"""

_COLUMNS = {"stock": "stock", "ckptd": "ckptd", "ckptd, then stock": "ckptd > stock", "stock, then ckptd": "stock > ckptd"}


def versions() -> str:
    names = ("torch", "pytorch-lightning", "transformers", "accelerate", "deepspeed", "torchtnt")
    return ", ".join(f"{name} {importlib.metadata.version(name).partition('+')[0]}" for name in names)


def with_upstream(text: str, rows: List[str]) -> str:
    """Returns the page with what a run of the tests of other projects has found."""
    return text.partition(UPSTREAM.partition("\n\n")[0])[0] + UPSTREAM.format(rows="\n".join(rows))


def text_of(cases: List[Case], results: Results, versions: str, before: str = "") -> str:
    """Returns the page. before: the page of an earlier run, which has the rows of the cases without results."""
    rows = dict(re.findall(r'^(?=.*<a id="(\w+)">)(\| .*)$', before, re.MULTILINE))
    rows.update({each.name: _row(each, results[each.name]) for each in cases if each.name in results})
    areas: "Dict[str, List[str]]" = collections.defaultdict(list)
    for each in cases:
        areas[each.area].append(rows[each.name])
    parts = [BEGIN.format(versions=versions, summary=_summary([row for of_area in areas.values() for row in of_area]))]
    for area, of_area in areas.items():
        head = "| what must hold | reports | " + " | ".join(_COLUMNS.values()) + " |\n| --- | --- |" + " --- |" * len(_COLUMNS)
        parts.append("\n".join([f"## {area}\n", head, *of_area]) + "\n")
    head = UPSTREAM.partition("\n\n")[0]
    return "\n".join(parts) + "".join(before.partition(head)[1:])


def _row(each: Case, results: Mapping[str, Result]) -> str:
    sentence = each.sentence
    if each.reason:
        sentence += f" *ckptd: {each.reason}.*"
    elif each.crosswise_reason:
        sentence += f" *ckptd > stock: {each.crosswise_reason}.*"
    cells = [_word(results[variant].outcome) if variant in variants_of(each) else "-" for variant in VARIANTS]
    return f"| <a id=\"{each.name}\"></a>{sentence} | {_links(each)} | " + " | ".join(cells) + " |"


def _word(outcome: str) -> str:
    return f"**{outcome}**" if outcome in (WRONG, LOST, HANG) else outcome


def _links(each: Case) -> str:
    links = []
    for report in each.reports:
        repository, _, number = report.partition("#")
        links.append(f"[{repository.partition('/')[2]} #{number}](https://github.com/{repository}/issues/{number})")
    return ", ".join(links) or "a habit"


def _summary(rows: List[str]) -> str:
    lines = [f"| {len(rows)} cases | " + " | ".join((RIGHT, ERROR, WRONG, LOST, HANG)) + " |", "| --- |" + " --- |" * 5]
    words = [row.rstrip(" |").split(" | ")[-len(_COLUMNS) :] for row in rows]
    for column, title in enumerate(_COLUMNS.values()):
        counts = collections.Counter(cells[column].strip("*") for cells in words)
        lines.append(f"| {title} | " + " | ".join(str(counts[outcome]) for outcome in (RIGHT, ERROR, WRONG, LOST, HANG)) + " |")
    return "\n".join(lines)
