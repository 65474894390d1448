"""Each case of docs/conformance.md holds with ckptd. The other half of the page needs tools/conformance."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any, Iterator

import pytest
import torch

from conformance import page, runner
from conformance.__main__ import defects
from conformance.case import CASES, ERROR, HANG, LOST, RIGHT, WRONG, Case, Lost, Wrong, killed_within, on_ranks, refused

ALL = runner.load_cases()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    runner.preload()
    with runner.daemon(str(tmp_path_factory.mktemp("daemon"))) as endpoint:
        before = os.environ.get("CKPTD_ENDPOINT")
        os.environ["CKPTD_ENDPOINT"] = endpoint
        yield endpoint
        os.environ.pop("CKPTD_ENDPOINT")
        if before is not None:
            os.environ["CKPTD_ENDPOINT"] = before


@pytest.mark.parametrize("name", [each.name for each in ALL])
def test_case_holds_with_ckptd(endpoint: str, name: str) -> None:
    result = runner.run(CASES[name], "ckptd")
    if CASES[name].reason:
        assert result.outcome == ERROR, f"{result}; the case has a reason why it is not right"
    else:
        assert result.outcome == RIGHT, result


def a_case(run: Any) -> Case:
    return Case("planted", "Planted", "torch", "It holds.", ("a/b#1",), run, False, "", "")


def hang(*_: Any) -> None:
    time.sleep(600)


def end(*_: Any) -> None:
    os._exit(3)


def compute_in_two_threads(*_: Any) -> None:
    barrier = threading.Barrier(2)

    def compute(_: int) -> None:
        barrier.wait(60)
        torch.full((200_000,), 1.0).sum()

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(compute, range(2)))


def raise_(error: BaseException) -> Any:
    def run(*_: Any) -> None:
        raise error

    return run


def accept(*_: Any) -> None:
    with refused():
        pass


@pytest.mark.parametrize(
    "run, outcome",
    [
        (lambda *_: None, RIGHT),
        (raise_(ValueError("no")), ERROR),
        (raise_(Wrong("another value")), WRONG),
        (raise_(Lost("gone")), LOST),
        (accept, WRONG),
        (end, ERROR),
    ],
)
def test_runner_tells_what_a_case_has_found(run: Any, outcome: str) -> None:
    assert runner.run(a_case(run), "stock").outcome == outcome


def test_runner_ends_a_case_that_hangs() -> None:
    result = runner.run(a_case(hang), "stock", deadline=0.5)
    assert result == runner.Result(HANG, "it did not end within 0.5 s")


def test_runner_removes_what_a_case_has_left_in_memory() -> None:
    before = set(os.listdir("/dev/shm"))

    def leave(*_: Any) -> None:
        os.makedirs(os.path.join(os.environ["CONFORMANCE_MEMORY"], "left"))

    assert runner.run(a_case(leave), "stock") == runner.Result(RIGHT)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("conformance-")]


def test_ranks_of_a_case_run_at_once_and_their_error_is_raised(tmp_path: pathlib.Path) -> None:
    on_ranks(3, lambda rank: (tmp_path / str(rank)).touch())
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]

    def fail(rank: int) -> None:
        if rank == 1:
            raise ValueError("of the second one")

    with pytest.raises(RuntimeError, match="^ValueError: of the second one$"):
        on_ranks(3, fail)


def test_process_is_killed_within_the_second_call_of_its_work(tmp_path: pathlib.Path) -> None:
    def prepare(path: pathlib.Path) -> Any:
        def work() -> None:
            for _ in range(100):
                with open(path, "a") as file:
                    file.write("x")

        return work

    for eighth in range(8):
        path = tmp_path / str(eighth)
        killed_within(lambda path=path: prepare(path), eighth)
        assert abs(len(path.read_text()) - (100 + 100 * eighth // 8)) <= 2


def test_threads_of_a_case_may_compute_at_once() -> None:
    torch.set_num_threads(torch.get_num_threads())  # What a fork inherits from earlier tests of this process.
    assert all(runner.run(a_case(compute_in_two_threads), "stock").outcome == RIGHT for _ in range(20))


def test_what_stock_does_right_and_ckptd_does_not_is_a_defect() -> None:
    right, wrong, error = runner.Result(RIGHT), runner.Result(WRONG, "x"), runner.Result(ERROR, "y")
    each = a_case(None)
    assert not defects([each], {"planted": {"stock": wrong, "ckptd": right}})
    assert len(defects([each], {"planted": {"stock": right, "ckptd": error}})) == 1
    assert len(defects([each], {"planted": {"stock": wrong, "ckptd": wrong}})) == 1
    assert not defects([each], {"planted": {"stock": wrong, "ckptd": right, "ckptd, then stock": wrong}})


def test_page_has_every_case_as_it_is_and_nothing_of_ckptd_is_wrong_lost_or_hangs() -> None:
    entries = page.entries_of(page.PAGE.read_text())
    assert sorted(entries) == sorted(each.name for each in ALL), "run tools/conformance"
    for each in ALL:
        found = page.outcomes(each, entries[each.name])
        results = {variant: runner.Result(outcome) for variant, outcome in found.items()}
        assert entries[each.name] == page.entry_of(each, results), f"{each.name}: run tools/conformance"
        assert found["ckptd"] == (ERROR if each.reason else RIGHT), each.name


def test_page_is_what_the_writer_makes_of_results(tmp_path: pathlib.Path) -> None:
    result = {"stock": runner.Result(WRONG, "x"), "ckptd": runner.Result(RIGHT)}
    text = page.text_of([a_case(None)], {"planted": result}, "torch 1")
    assert "- `planted`: It holds. ([b#1](https://github.com/a/b/issues/1)) → stock: **wrong**\n" in text
    assert "| stock | 0 | 0 | 1 | 0 | 0 |" in text and "| ckptd | 1 | 0 | 0 | 0 | 0 |" in text


def test_page_keeps_the_rows_of_cases_that_were_not_run_again() -> None:
    one, other = a_case(None), dataclasses.replace(a_case(None), name="other")
    results = {"stock": runner.Result(WRONG, "x"), "ckptd": runner.Result(RIGHT)}
    before = page.text_of([one], {"planted": results}, "torch 1")
    text = page.text_of([one, other], {"other": {"stock": runner.Result(RIGHT), "ckptd": runner.Result(ERROR, "y")}}, "torch 1", before)
    assert [line for line in before.splitlines() if "`planted`" in line][0] in text.splitlines()
    assert "| stock | 1 | 0 | 1 | 0 | 0 |" in text and "| ckptd | 1 | 1 | 0 | 0 | 0 |" in text


def test_library_of_a_case_is_the_one_that_it_names_whoever_was_used_before(tmp_path: pathlib.Path, endpoint: str) -> None:
    def who(writer: Any, reader: Any, folder: pathlib.Path) -> None:
        import torch.distributed.checkpoint as dcp

        for library in (writer, reader, writer):
            library.save(folder / "runs" / library.name, {"a": 1})
            if (dcp.save.__module__.startswith("ckptd")) != (library.name == "ckptd"):
                raise Wrong(f"{library.name} was {dcp.save.__module__}")

    each = dataclasses.replace(a_case(who), framework="dcp")
    for variant in runner.VARIANTS:
        assert runner.run(each, variant) == runner.Result(RIGHT)


def test_page_keeps_what_the_tests_of_other_projects_have_found() -> None:
    result = {"stock": runner.Result(RIGHT), "ckptd": runner.Result(RIGHT)}
    text = page.text_of([a_case(None)], {"planted": result}, "torch 1")
    one = page.with_upstream(text, ["| a 1, `tests/b.py` | 1 of 2 | 1 of 2 | 1 | 3 |"])
    assert page.text_of([a_case(None)], {"planted": result}, "torch 1", one) == one
    assert page.with_upstream(one, ["| another |"]).count("## Tests of other projects") == 1


def test_plugin_for_the_tests_of_accelerate_saves_and_loads_through_ckptd(endpoint: str, tmp_path: pathlib.Path) -> None:
    code = """
import pathlib, sys, accelerate, torch
import conformance.accelerate_plugin

root = pathlib.Path(sys.argv[1])
project = accelerate.utils.ProjectConfiguration(str(root), automatic_checkpoint_naming=True, total_limit=2)
accelerator = accelerate.Accelerator(cpu=True, project_config=project)
model = accelerator.prepare(torch.nn.Linear(2, 2))
for value in range(3):
    torch.nn.init.constant_(model.weight, value)
    accelerator.save_state()
torch.nn.init.constant_(model.weight, 9)
accelerator.load_state()
assert model.weight[0, 0] == 2
assert (root / "checkpoints/checkpoint_2/.ckptd/manifest").exists()
assert not (root / "checkpoints/checkpoint_0").exists()
"""
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[1]), "UPSTREAM_SAVES": str(tmp_path / "saves")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "runs")], env=environment, check=True, timeout=300)
    assert len((tmp_path / "saves").read_text().splitlines()) == 3
