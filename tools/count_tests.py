#!/usr/bin/env python3
"""Adds up the results of every test runner; the last line is "N passed, N failed, N skipped".

    bazel test --keep_going --build_event_json_file=events.json //...
    pytest --junitxml=pytest.xml
    tools/count_tests.py --bazel=events.json --junit=pytest.xml --require=io_uring

Every test case counts, not the target it is in. Exits 1 when a test failed, when nothing passed, and when a word
of --require is in the name of no passed test of one of the files: so a back end that was skipped everywhere is no
success.

Bazel's event file names the test.xml of each target of this very run. (The folder bazel-testlogs also keeps those
of earlier runs: a target that no longer builds would count as passed.)
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import NamedTuple


class Case(NamedTuple):
    name: str
    outcome: str  # passed, failed or skipped
    note: str = ""  # why it was skipped, or what the runner says


def junit_cases(path: str) -> Iterator[Case]:
    """The cases of a JUnit file. One that cannot be read is a failed case."""
    try:
        suites = list(ET.parse(path).getroot().iter("testsuite"))
    except (OSError, ET.ParseError) as error:
        yield Case(path, "failed", str(error))
        return
    for suite in suites:
        for case in suite.findall("testcase"):
            children = {child.tag: child for child in case}
            name = f"{case.get('classname', '')}.{case.get('name')}"
            if "failure" in children or "error" in children:
                yield Case(name, "failed")
            elif "skipped" in children or case.get("status") == "notrun":
                reason = children["skipped"].get("message", "") if "skipped" in children else ""
                yield Case(name, "skipped", " ".join(reason.split()))
            else:
                yield Case(name, "passed")


def run_cases(label: str, run: dict) -> Iterator[Case]:
    """The cases of one run of one Bazel target."""
    reports = [output["uri"] for output in run.get("testActionOutput", []) if output["name"] == "test.xml"]
    outcomes = set()
    for report in reports:
        for case in junit_cases(urllib.parse.unquote(urllib.parse.urlsplit(report).path)):
            outcomes.add(case.outcome)
            yield case._replace(name=f"{label} {case.name}")
    # A crash or a leak at exit leaves a report in which everything passed.
    if run["status"] not in ("PASSED", "FLAKY") and "failed" not in outcomes:
        yield Case(label, "failed", run["status"])


def bazel_cases(path: str) -> Iterator[Case]:
    """The cases of every test target, also of those that did not build or never ran."""
    targets, finished = set(), False
    runs: dict[str, list[dict]] = collections.defaultdict(list)
    try:
        with open(path) as file:
            for event in map(json.loads, file):
                label = next(iter(event["id"].values())).get("label")
                if event.get("configured", {}).get("testSize"):
                    targets.add(label)
                if "testResult" in event:
                    runs[label].append(event["testResult"])
                finished |= "finished" in event
    except (OSError, json.JSONDecodeError) as error:
        yield Case(path, "failed", str(error))
        return
    for label in sorted(targets - runs.keys()):
        yield Case(label, "failed", "did not build or run")
    for label in sorted(runs):
        for run in runs[label]:
            yield from run_cases(label, run)
    if not finished or not targets:
        yield Case(path, "failed", "bazel did not finish or had no tests")


def missing(word: str, path: str, cases: list[Case]) -> Iterator[Case]:
    """A failed case if no passed one has the word in its name, as a whole word: "ring" is not in "rings"."""
    pattern = re.compile(rf"(?<![a-zA-Z0-9]){re.escape(word)}(?![a-zA-Z0-9])", re.IGNORECASE)
    if not any(case.outcome == "passed" and pattern.search(case.name) for case in cases):
        yield Case(
            path, "failed", f"no test passed that has {word!r} in its name: that part of ckptd did not run"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bazel", action="append", default=[], help="build event JSON file")
    parser.add_argument("--junit", action="append", default=[], help="JUnit XML file")
    parser.add_argument(
        "--require", action="append", default=[], help="word that a passed test of each file must have"
    )
    args = parser.parse_args()

    cases: list[Case] = []
    for paths, read in ((args.bazel, bazel_cases), (args.junit, junit_cases)):
        for path in paths:
            found = list(read(path))
            cases += found
            for word in args.require:
                cases += missing(word, path, found)

    for case in cases:
        if case.outcome != "passed":
            print(f"{case.outcome.upper()} {case.name}" + (f" ({case.note})" if case.note else ""))
    count = collections.Counter(case.outcome for case in cases)
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
