"""Runs `ckptctl convert ds-to-universal` and DeepSpeed's own ds_to_universal.py, and compares what they make."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
from typing import Any

import pytest
import torch
from harness import ckptctl
from zero1_states import contents

os.environ.setdefault("DS_ACCELERATOR", "cpu")
upstream = pytest.importorskip("deepspeed.checkpoint.ds_to_universal")


def convert(tag: pathlib.Path, out: pathlib.Path, *options: str) -> Any:
    arguments = (f"--input_folder={tag}", f"--output_folder={out}", "--output=json", *options)
    return json.loads(ckptctl("convert", "ds-to-universal", *arguments).stdout)


def refused(reason: str, tag: pathlib.Path, out: pathlib.Path, *options: str) -> str:
    before = contents(tag)
    arguments = (f"--input_folder={tag}", f"--output_folder={out}", *options)
    done = ckptctl("convert", "ds-to-universal", *arguments, check=False)
    assert done.returncode in (1, 2, 4) and done.stdout == "", done.stdout
    assert done.stderr.endswith(f"[{reason}]\n") and done.stderr.count("\n") == 1, done.stderr
    assert contents(tag) == before and not out.exists() and not (out.parent / "latest_universal").exists()
    return done.stderr


def convert_upstream(tag: pathlib.Path, out: pathlib.Path) -> None:
    upstream.main(
        argparse.Namespace(
            input_folder=str(tag),
            output_folder=str(out),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )


def same(ours: Any, theirs: Any, where: str) -> None:
    """Asserts equality bit for bit, in types and order; no tensor of ours has a larger storage than it needs."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for key in ours:
            same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), where
        for index, (left, right) in enumerate(zip(ours, theirs)):
            same(left, right, f"{where}[{index}]")
    elif isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), f"{where}: {ours.shape} and {theirs.shape}"
        assert bytes(ours.flatten().view(torch.uint8).numpy()) == bytes(
            theirs.contiguous().flatten().view(torch.uint8).numpy()
        ), where
    elif hasattr(ours, "__dict__") and not isinstance(ours, int):
        same(vars(ours), vars(theirs), where)
    else:
        assert ours == theirs, where


def same_trees(ours: pathlib.Path, theirs: pathlib.Path, rewritten: bool = False) -> None:
    """Asserts that two universal checkpoints are the same. rewritten: their copies of the model's files are not the same
    bytes, but have the same content."""
    names = [{str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} for out in (ours, theirs)]
    assert names[0] == names[1]
    for name in sorted(names[0]):
        if name.startswith("zero/") or rewritten:
            same(*(torch.load(out / name, weights_only=False) for out in (ours, theirs)), name)
        else:
            assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def parameter(out: pathlib.Path, name: str, state: str) -> Any:
    return torch.load(out / "zero" / name / f"{state}.pt", weights_only=False)
