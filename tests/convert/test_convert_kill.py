"""A conversion killed at any moment: the input is unchanged, the output is absent or whole, and the next run
cleans up and succeeds.
"""

from __future__ import annotations

import pathlib
import random
import signal
import subprocess
import time

import pytest
from converter import convert_command
from zero1_states import check_tag, contents, full_state, write_tag

SHAPES = {0: [4_000, 1_000], 1: [3, 5], 2: [1_000_001]}


@pytest.fixture(scope="module")
def tag(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_tag(tmp_path_factory.mktemp("in") / "tag", {(0, 0): full_state(shapes=SHAPES)}, 2, xser=True)


def start(tag: pathlib.Path, out: pathlib.Path) -> "subprocess.Popen[str]":
    command = convert_command(tag, out, "--convert_to_sharded", "--dp_size=3")
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_output_is_whole_or_absent_when_killed_at_any_moment(tag: pathlib.Path, tmp_path: pathlib.Path) -> None:
    before = contents(tag)
    out = tmp_path / "out"
    begin = time.perf_counter()
    with start(tag, tmp_path / "whole") as program:
        program.communicate(timeout=60)
        assert program.returncode == 0
    whole = time.perf_counter() - begin
    moments = random.Random(7)
    killed = left_behind = 0
    for _ in range(25):
        with start(tag, out) as program:
            try:
                program.wait(timeout=moments.uniform(0, whole))
            except subprocess.TimeoutExpired:
                program.send_signal(signal.SIGKILL)
                killed += 1
            program.communicate(timeout=60)
        assert contents(tag) == before
        if out.exists():
            check_tag(out, {(0, 0): full_state(shapes=SHAPES)}, 3)
            out.rename(tmp_path / f"done{killed}-{time.monotonic_ns()}")
        left_behind += any(path.name == ".ckptd-convert.out" for path in tmp_path.iterdir())
    assert killed >= 10
    assert left_behind >= 1
    with start(tag, out) as program:
        said, words = program.communicate(timeout=60)
    assert program.returncode == 0, words
    check_tag(out, {(0, 0): full_state(shapes=SHAPES)}, 3)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_conversion_leaves_nothing(tag: pathlib.Path, tmp_path: pathlib.Path, number: int) -> None:
    staging = tmp_path / ".ckptd-convert.out"
    for _ in range(20):
        with start(tag, tmp_path / "out") as program:
            while program.poll() is None and not staging.exists():
                time.sleep(0.0002)
            program.send_signal(number)
            said, words = program.communicate(timeout=60)
        if program.returncode == 1:
            assert "INTERRUPTED" in words
            assert list(tmp_path.iterdir()) == []
            return
        assert program.returncode == 0, words  # The conversion finished before the signal.
        (tmp_path / "out").rename(tmp_path.parent / f"done{time.monotonic_ns()}")
    pytest.fail("the conversion finished before the signal 20 times")


def test_leftover_of_killed_conversion_is_reported(tag: pathlib.Path, tmp_path: pathlib.Path) -> None:
    staging = tmp_path / ".ckptd-convert.out"
    for _ in range(50):
        with start(tag, tmp_path / "out") as program:
            while program.poll() is None and not staging.exists():
                time.sleep(0.0002)
            program.kill()
            program.communicate(timeout=60)
        if staging.exists():
            break
        if (tmp_path / "out").exists():
            (tmp_path / "out").rename(tmp_path.parent / f"done{time.monotonic_ns()}")
    assert staging.exists()
    with start(tag, tmp_path / "out") as program:
        said, _ = program.communicate(timeout=60)
    assert program.returncode == 0
    assert "removed the leftovers of a conversion that was killed: .ckptd-convert.out" in said


def test_one_of_concurrent_conversions_into_same_place_succeeds(tag: pathlib.Path, tmp_path: pathlib.Path) -> None:
    programs = [start(tag, tmp_path / "out") for _ in range(4)]
    ended = []
    for program in programs:
        with program:
            _, words = program.communicate(timeout=60)
            ended.append((program.returncode, words))
    assert [code for code, _ in ended].count(0) == 1, ended
    for code, words in ended:
        assert code == 0 or "LOCKED" in words or "OUTPUT_NOT_EMPTY" in words, words
    check_tag(tmp_path / "out", {(0, 0): full_state(shapes=SHAPES)}, 3)
