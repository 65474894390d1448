"""A conversion of a DeepSpeed checkpoint killed at any moment: the input is unchanged, the output is absent or whole, and
the next run cleans up and succeeds.
"""

from __future__ import annotations

import pathlib
import random
import subprocess
import time

import pytest
from harness import find_program
from zero1_states import contents
from zero_checkpoints import ZeroModel, write_tag

WHOLE = ZeroModel(groups=[{"a": [1000, 1000], "b": [3]}, {"c": [1_000_001]}])
KILLS, ATTEMPTS = 8, 80


@pytest.fixture(scope="module")
def tag(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_tag(tmp_path_factory.mktemp("in"), WHOLE, 3, 2)


@pytest.mark.parametrize("command", ["zero-to-fp32", "ds-to-universal"])
def test_output_is_whole_or_absent_when_killed_at_any_moment(command, tag, tmp_path):
    def start(out: pathlib.Path) -> "subprocess.Popen[bytes]":
        places = [str(tag), str(out)] if command == "zero-to-fp32" else [f"--input_folder={tag}", f"--output_folder={out}"]
        words = [find_program("ckptctl"), "convert", command, *places]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    before = contents(tag)
    begin = time.perf_counter()
    assert start(tmp_path / "whole").wait(timeout=60) == 0
    seconds = time.perf_counter() - begin
    whole = contents(tmp_path / "whole")
    (tmp_path / "latest_universal").unlink(missing_ok=True)
    moments, killed, out = random.Random(11), 0, tmp_path / "out"
    for number in range(ATTEMPTS):
        begin = time.perf_counter()
        program = start(out)
        try:
            program.wait(timeout=moments.uniform(0, seconds))
            seconds = min(seconds, time.perf_counter() - begin)  # The first one was slower.
        except subprocess.TimeoutExpired:
            program.kill()
            killed += 1
        program.wait(timeout=60)
        assert contents(tag) == before
        named = (tmp_path / "latest_universal").exists()
        assert out.exists() or not named
        if out.exists():
            assert contents(out) == whole
            out.rename(tmp_path / f"done{number}")
            (tmp_path / "latest_universal").unlink(missing_ok=True)
        if killed == KILLS:
            break
    assert killed == KILLS
    assert start(out).wait(timeout=60) == 0
    assert contents(out) == whole
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
