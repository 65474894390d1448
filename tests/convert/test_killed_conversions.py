"""A conversion of a checkpoint of DeepSpeed or DCP killed at any moment: the input is unchanged, the output is absent or
whole, and the next run cleans up and succeeds.
"""

from __future__ import annotations

import pathlib
import random
import subprocess
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from harness import find_program
from zero1_states import contents
from zero_checkpoints import ZeroModel, write_tag

WHOLE = ZeroModel(groups=[{"a": [1000, 1000], "b": [3]}, {"c": [1_000_001]}])
STATE = {"model": {"a": torch.rand(1000, 1000), "c": torch.rand(1_000_001)}, "step": 7}
KILLS, ATTEMPTS = 8, 80


@pytest.fixture(scope="module")
def tag(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a tag of DeepSpeed, a checkpoint of DCP, and a file of torch.save."""
    folder = tmp_path_factory.mktemp("in")
    write_tag(folder / "deepspeed", WHOLE, 3, 2)
    dcp.save(STATE, checkpoint_id=folder / "dcp", no_dist=True)
    torch.save(STATE, folder / "state.pt")
    return folder


COMMANDS = {
    "zero-to-fp32": lambda tag, out: [str(tag / "deepspeed"), str(out)],
    "ds-to-universal": lambda tag, out: [f"--input_folder={tag / 'deepspeed/global_step17'}", f"--output_folder={out}"],
    "dcp-to-torch": lambda tag, out: [str(tag / "dcp"), str(out)],
    "dcp-to-safetensors": lambda tag, out: [str(tag / "dcp"), str(out)],
    "torch-to-dcp": lambda tag, out: [str(tag / "state.pt"), str(out)],
}


def contents_of(path: pathlib.Path) -> dict[str, bytes]:
    return {"": path.read_bytes()} if path.is_file() else contents(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_output_is_whole_or_absent_when_killed_at_any_moment(command, tag, tmp_path):
    def start(out: pathlib.Path) -> "subprocess.Popen[bytes]":
        words = [find_program("ckptctl"), "convert", command, *COMMANDS[command](tag, out)]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    before = contents(tag)
    begin = time.perf_counter()
    (tmp_path / "whole").mkdir()
    assert start(tmp_path / "whole/out").wait(timeout=60) == 0
    seconds = time.perf_counter() - begin
    whole = contents_of(tmp_path / "whole/out")  # A file of torch.save has its own name in it.
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
            assert contents_of(out) == whole
            out.rename(tmp_path / f"done{number}")
            (tmp_path / "latest_universal").unlink(missing_ok=True)
        if killed == KILLS:
            break
    assert killed == KILLS
    assert start(out).wait(timeout=60) == 0
    assert contents_of(out) == whole
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
