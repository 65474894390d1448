"""tools/bench as a whole, with cases of this test instead of its own."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

from bench.base import machine

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, time
from bench import __main__ as bench
from bench.base.result import Result

def good(context):
    context.report(Result("good.number", float(context.number), "s", "of nothing"))

def hang(context):
    (context.folder / "hanging").touch()
    time.sleep(600)

def fail(context):
    raise SystemExit("the disk is full")

bench.CASES = {name: bench.Case(run, f"what {name} does", rounds=3) for name, run in
               (("good", good), ("hang", hang), ("fail", fail))}
bench.STARTED = time.monotonic()  # So that the time that these tests give does not depend on the imports.
sys.argv[0] = "bench"
sys.exit(bench.main())
"""


def start(disk: pathlib.Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, f"--dir={disk}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(disk.parent)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def bench(disk: pathlib.Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    with start(disk, *arguments) as process:
        output, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_all_rounds_of_a_case_make_one_figure_beside_the_machine(tmp_path: pathlib.Path) -> None:
    done = bench(tmp_path / "disk", "good")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "good: what good does\n"
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Machine: ") and f"{os.cpu_count()} cores" in lines[0]
    assert lines[-1].split()[:4] == ["good.number", "2.000", "s", "3"]
    assert not list(tmp_path.iterdir())


def test_time_that_is_over_at_once_runs_nothing_and_names_every_case(tmp_path: pathlib.Path) -> None:
    done = bench(tmp_path / "disk", "--minutes=0.0001", "--json", "good", "fail")
    assert done.returncode == 1
    printed = json.loads(done.stdout)
    why = "not run: the time was over before its first round"
    assert printed["not_run"] == [{"case": name, "why": why} for name in ("good", "fail")]
    assert not printed["figures"] and printed["machine"]["kernel"]


def test_hanging_case_ends_with_its_name_when_the_time_is_over(tmp_path: pathlib.Path) -> None:
    done = bench(tmp_path / "disk", "--minutes=0.1", "--json", "good", "hang", "fail")
    assert done.returncode == 1
    printed: Any = json.loads(done.stdout)
    assert {row["name"]: row["rounds"] for row in printed["figures"]} == {"good.number": 1}
    (hang, fail) = printed["not_run"]
    assert hang["case"] == "hang" and "the time was over in round 1, not ended after" in hang["why"]
    assert fail == {"case": "fail", "why": "not run: the time was over before its first round"}
    assert f"hang: {hang['why'].removeprefix('not run: ')}" in done.stderr


def test_failed_case_is_named_and_the_others_have_their_figures(tmp_path: pathlib.Path) -> None:
    done = bench(tmp_path / "disk", "fail", "good")
    assert done.returncode == 1
    assert done.stdout.endswith("\n\nfail: not run: round 1 has failed: the disk is full\n")
    assert "good.number" in done.stdout
    assert "fail: round 1 has failed: the disk is full\n" in done.stderr


def test_interrupted_bench_prints_the_figures_of_the_rounds_that_have_ended(tmp_path: pathlib.Path) -> None:
    with start(tmp_path / "disk", "good", "hang") as process:
        machine.wait_until(lambda: list(tmp_path.glob("disk/*/round/hanging")), "the case to hang", 60)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "good.number" in output
    assert "good: 1 round only: the run was ended by SIGINT" in output
    assert "hang: not run: the run was ended by SIGINT" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_time_that_is_no_time_is_refused(tmp_path: pathlib.Path, minutes: str) -> None:
    done = bench(tmp_path / "disk", f"--minutes={minutes}")
    assert done.returncode == 2 and f"--minutes is {minutes}; it must be more than 0" in done.stderr
