"""How tools/test judges results: what it counts, and what it must not accept."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

COUNT_TESTS = pathlib.Path(__file__).resolve().parents[2] / "tools/count_tests.py"
PASSED = '<testcase classname="Queues/IoQueueTest" name="Writes/io_uring"/>'
FAILED = '<testcase classname="T" name="Broken"><failure/></testcase>'
SKIPPED = '<testcase classname="T" name="OnBigMachines"><skipped message="only 2 cores"/></testcase>'


@pytest.fixture
def junit(tmp_path: pathlib.Path):
    def write(*cases: str) -> str:
        path = tmp_path / "junit.xml"
        path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
        return str(path)

    return write


@pytest.fixture
def events(tmp_path: pathlib.Path):
    """Writes Bazel's event file for targets: label → (status, JUnit file), None for a target that did not
    run.
    """

    def write(targets: dict[str, tuple[str, str] | None], finished: bool = True) -> str:
        lines: list[dict] = []
        for label, run in targets.items():
            lines.append({"id": {"targetConfigured": {"label": label}}, "configured": {"testSize": "SMALL"}})
            if run:
                status, report = run
                output = [{"name": "test.xml", "uri": f"file://{report}"}]
                result = {"status": status, "testActionOutput": output}
                lines.append({"id": {"testResult": {"label": label}}, "testResult": result})
        if finished:
            lines.append({"id": {"buildFinished": {}}, "finished": {}})
        path = tmp_path / "events.json"
        path.write_text("\n".join(map(json.dumps, lines)))
        return str(path)

    return write


def count(*arguments: str) -> tuple[int, list[str]]:
    run = subprocess.run(
        [sys.executable, COUNT_TESTS, *arguments], capture_output=True, text=True, timeout=30
    )
    assert run.stderr == ""
    return run.returncode, run.stdout.splitlines()


def test_counts_every_case_of_both_runners(junit, events) -> None:
    report = junit(PASSED, PASSED)
    code, lines = count(f"--bazel={events({'//a:test': ('PASSED', report)})}", f"--junit={report}")
    assert (code, lines) == (0, ["4 passed, 0 failed, 0 skipped"])


def test_failed_case_fails_and_is_named(junit) -> None:
    code, lines = count(f"--junit={junit(PASSED, FAILED)}")
    assert (code, lines) == (1, ["FAILED T.Broken", "1 passed, 1 failed, 0 skipped"])


def test_skipped_cases_are_counted_and_named_with_their_reason(junit) -> None:
    code, lines = count(f"--junit={junit(PASSED, SKIPPED)}")
    assert (code, lines) == (0, ["SKIPPED T.OnBigMachines (only 2 cores)", "1 passed, 0 failed, 1 skipped"])


def test_target_that_did_not_build_fails(junit, events) -> None:
    path = events({"//a:test": ("PASSED", junit(PASSED)), "//b:test": None})
    code, lines = count(f"--bazel={path}")
    assert (code, lines[0]) == (1, "FAILED //b:test (did not build or run)")


def test_crash_after_last_case_fails(junit, events) -> None:
    code, lines = count(f"--bazel={events({'//a:test': ('FAILED', junit(PASSED))})}")
    assert (code, lines[0]) == (1, "FAILED //a:test (FAILED)")


def test_interrupted_bazel_run_fails(junit, events) -> None:
    code, _ = count(f"--bazel={events({'//a:test': ('PASSED', junit(PASSED))}, finished=False)}")
    assert code == 1


@pytest.mark.parametrize("option", ["--bazel", "--junit"])
def test_missing_results_fail(option: str, tmp_path: pathlib.Path) -> None:
    code, lines = count(f"{option}={tmp_path}/none")
    assert (code, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")


def test_no_passed_test_fails(junit) -> None:
    assert count(f"--junit={junit(SKIPPED)}")[0] == 1


def test_required_word_must_be_in_a_passed_case(junit) -> None:
    skipped = PASSED.replace("/>", "><skipped/></testcase>")
    assert count("--require=io_uring", f"--junit={junit(PASSED)}")[0] == 0
    assert (
        count(
            "--require=io_uring", f"--junit={junit(SKIPPED, skipped, PASSED.replace('io_uring', 'threads'))}"
        )[0]
        == 1
    )


def test_required_word_matches_only_whole_words(junit) -> None:
    assert (
        count("--require=threads", f"--junit={junit(PASSED.replace('io_uring', 'TwoThreadsRace'))}")[0] == 1
    )


def test_required_word_must_be_in_each_file(junit, events) -> None:
    path = events({"//a:test": ("PASSED", junit(PASSED))})
    other = pathlib.Path(path).with_name("other.xml")
    other.write_text(f"<testsuite>{PASSED.replace('io_uring', 'threads')}</testsuite>")
    assert count("--require=io_uring", f"--bazel={path}", f"--junit={other}")[0] == 1
