"""`tools/demo --nodes=3` itself, on a local folder, in its brief form: what it claims, and that all of it holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import List, NamedTuple

import pytest
from places import why_no_namespaces
from shared_file_systems import LOCAL, sandbox

from examples.demo.claims import Claims
from harness import TESTS, module_path

SECONDS = 280
# In their order. A step is 2 or 3 where the first save that loses a node may have committed.
CLAIMS = [
    "A node is killed in a save: the save is whole, or is not there",
    r"Every byte of what is there is as it was handed over \(ckptctl verify\)",
    r"All ranks of launch-2 go on from the newest checkpoint, step \d",
    "Another node publishes what the killed coordinator had decided",
    "The same trainers go on, and save with the new coordinator",
    r"All ranks of launch-3 go on from the newest checkpoint, step \d",
    "The death of etcd's leader in a resume costs the job nothing but time",
    r"All ranks of launch-4 go on from the newest checkpoint, step \d",
    "Two nodes save what three nodes saved before",
    r"Every byte of all checkpoints is as it was handed over \(ckptctl verify\)",
    "Losses and states of all ranks equal those of an uninterrupted run, digit for digit",
    "The model learns from real text",
]


class Row(NamedTuple):
    claim: str
    measured: str
    verdict: str


def rows_of(output: str) -> List[Row]:
    """The rows of the last table in this output, each in one line again."""
    lines = output.splitlines()
    head = max(number for number, line in enumerate(lines) if line.startswith("claim "))
    places = (slice(0, 58), slice(60, 112), slice(114, None))  # As Claims.table has them.
    found: List[Row] = []
    for line in lines[head + 2 :]:
        claim, measured, verdict = (line[place].strip() for place in places)
        if verdict:
            found.append(Row(claim, measured, verdict))
        elif found:
            last = found[-1]
            found[-1] = Row(f"{last.claim} {claim}".strip(), f"{last.measured} {measured}".strip(), last.verdict)
    return found


def test_three_nodes_lose_a_node_the_coordinator_and_the_leader_of_etcd_and_all_claims_hold() -> None:
    why_not = why_no_namespaces() or sandbox.why_not(LOCAL)
    if why_not:
        pytest.skip(why_not)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), module_path()]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "three_nodes", "--nodes=3", "--brief", f"--file-system={LOCAL}"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    rows = rows_of(done.stdout)
    assert {row.verdict for row in rows} == {"PASS"}, done.stdout
    assert len(rows) == len(CLAIMS), rows
    for row, claim in zip(rows, CLAIMS):
        assert re.fullmatch(claim, row.claim), f"{row.claim}\n{claim}"
        assert row.measured, row


def test_table_of_claims_is_read_back_as_it_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    checked = [
        ("A claim that is so long that it needs more than one line of the table, and a half", "in short", True),
        ("Short", "measured at length, in more words than the second column of the table holds in a line", False),
    ]
    claims = Claims()
    for claim in checked:
        claims.check(*claim)
    assert not claims.held()
    assert rows_of(claims.table()) == [Row(claim, measured, "PASS" if held else "FAIL") for claim, measured, held in checked]
