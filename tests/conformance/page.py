"""Writes docs/conformance.md from what a run has found."""

from __future__ import annotations

import collections
import importlib.metadata
import pathlib
import re
from typing import Dict, List, Mapping

from conformance.case import ERROR, HANG, LOST, RIGHT, WRONG, Case
from conformance.runner import Result, variants_of

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/conformance.md"
Results = Mapping[str, Mapping[str, Result]]  # By case and variant.

BEGIN = """# What holds, with ckptd and with the stock libraries

For people who ask what changes when they put ckptd under their training. After reading this page you know where ckptd
and the stock libraries give the same, and where one of them does not give what was saved.

A case is one thing that users expect of a checkpoint, from a public report (linked, of the same or another library)
or from daily use. The function of its name in `tests/conformance/cases` says and checks it. `tools/conformance`
runs each case with the stock library, with ckptd, and crosswise, and writes this page: "ckptd > stock" is saved by
ckptd and loaded by the stock library, "stock > ckptd" the other way round. `tools/test` runs each with ckptd alone.
A case has a line if a result is not right; all others are right.

**wrong** is another value, or another checkpoint, that came back without an error; **lost** a checkpoint that had
been saved, and is not there any more, or not whole; **hang** what did not end within two minutes; error an
exception, after which nothing is wrong or lost.

With accelerate, which has no adapter, ckptd is [the loop of frameworks.md](frameworks.md#accelerate). The libraries
are {versions}.

{summary}
"""

UPSTREAM = """
## Tests of other projects

The tests of checkpoints that other projects publish on the package index, run with the project's own code and with ckptd
in its place (`tools/conformance --upstream`). Those of Lightning, TorchTNT, DeepSpeed and PyTorch are not published there,
and those of transformers do not run by themselves. `tests/dcp/test_fsspec_specification.py` has what fsspec's
specification says of reading.

| tests | passed by the project alone | passed with ckptd | skipped here | saves through ckptd |
| --- | --- | --- | --- | --- |
{rows}
"""

_COLUMNS = {"stock": "stock", "ckptd": "ckptd", "ckptd, then stock": "ckptd > stock", "stock, then ckptd": "stock > ckptd"}
_NOT_RIGHT = " → "


def versions() -> str:
    names = ("torch", "pytorch-lightning", "transformers", "accelerate", "deepspeed", "torchtnt")
    return ", ".join(f"{name} {importlib.metadata.version(name).partition('+')[0]}" for name in names)


def with_upstream(text: str, rows: List[str]) -> str:
    """Returns the page with what a run of the tests of other projects has found."""
    return text.partition(UPSTREAM.partition("\n\n")[0])[0] + UPSTREAM.format(rows="\n".join(rows))


def text_of(cases: List[Case], results: Results, versions: str, before: str = "") -> str:
    """Returns the page. before: the page of an earlier run, which has the entries of the cases without results."""
    entries = entries_of(before)
    entries.update({each.name: entry_of(each, results[each.name]) for each in cases if each.name in results})
    areas: "Dict[str, List[str]]" = collections.defaultdict(list)
    for each in cases:
        areas[each.area].append(entries[each.name])
    parts = [BEGIN.format(versions=versions, summary=_summary(cases, entries))]
    for area, of_area in areas.items():
        parts.append(f"## {area}\n")
        if lines := [entry for entry in of_area if entry.startswith("- ")]:
            parts.append("\n".join(lines) + "\n")
        if right := [entry for entry in of_area if not entry.startswith("- ")]:
            parts.append("Right in every way:\n" + ",\n".join(right) + "\n")
    head = UPSTREAM.partition("\n\n")[0]
    return "\n".join(parts) + "".join(before.partition(head)[1:])


def entries_of(text: str) -> Dict[str, str]:
    """Returns what the page has of each case."""
    return {name: entry.rstrip(",") for entry, name in re.findall(r"^((?:- )?`(\w+)`.*)$", text, re.MULTILINE)}


def outcomes(each: Case, entry: str) -> Dict[str, str]:
    """Returns the outcome of each variant of a case, by its entry of the page."""
    named = dict(re.findall(r"(stock > ckptd|ckptd > stock|stock|ckptd): \**(\w+)\**", entry.rpartition(_NOT_RIGHT)[2]))
    if not entry.startswith("- "):
        named = {}
    return {variant: named.get(_COLUMNS[variant], RIGHT) for variant in variants_of(each)}


def entry_of(each: Case, results: Mapping[str, Result]) -> str:
    """Returns the name of a case that is right in every way; else a line that says what must hold, and what is not right."""
    links = f" ({_links(each)})" if each.reports else ""
    words = {_COLUMNS[variant]: results[variant].outcome for variant in variants_of(each)}
    not_right = [f"{column}: {_word(outcome)}" for column, outcome in words.items() if outcome != RIGHT]
    if not not_right:
        return f"`{each.name}`{links}"
    reason = ""
    if each.reason:
        reason = f" *ckptd: {each.reason}.*"
    elif each.crosswise_reason:
        reason = f" *ckptd > stock: {each.crosswise_reason}.*"
    return f"- `{each.name}`: {each.sentence}{reason}{links}{_NOT_RIGHT}{', '.join(not_right)}"


def _word(outcome: str) -> str:
    return f"**{outcome}**" if outcome in (WRONG, LOST, HANG) else outcome


def _links(each: Case) -> str:
    links = []
    for report in each.reports:
        repository, _, number = report.partition("#")
        links.append(f"[{repository.partition('/')[2]}#{number}](https://github.com/{repository}/issues/{number})")
    return ", ".join(links)


def _summary(cases: List[Case], entries: Mapping[str, str]) -> str:
    lines = [f"| {len(cases)} cases | " + " | ".join((RIGHT, ERROR, WRONG, LOST, HANG)) + " |", "| --- |" + " --- |" * 5]
    found = [outcomes(each, entries[each.name]) for each in cases]
    for variant, title in _COLUMNS.items():
        counts = collections.Counter(each[variant] for each in found if variant in each)
        lines.append(f"| {title} | " + " | ".join(str(counts[outcome]) for outcome in (RIGHT, ERROR, WRONG, LOST, HANG)) + " |")
    return "\n".join(lines)
