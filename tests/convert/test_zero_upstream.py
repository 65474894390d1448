"""Checkpoints that the generator of these tests writes are what DeepSpeed's own zero_to_fp32.py reads, and its result
is ours where it is right.
"""

from __future__ import annotations

import os

import pytest
import torch
from harness import ckptctl
from zero_checkpoints import ZeroModel, same_tensors, write_tag

os.environ.setdefault("DS_ACCELERATOR", "cpu")
upstream = pytest.importorskip("deepspeed.utils.zero_to_fp32")


@pytest.mark.parametrize(("stage", "ranks"), [(1, 2), (2, 3), (3, 1), (3, 4)])
def test_weights_are_those_of_zero_to_fp32(stage, ranks, tmp_path):
    whole = ZeroModel(
        groups=[{"embed": [13, 6], "fc": [7, 5], "scalar": []}, {"norm": [1], "conv": [5, 3, 2]}],
        frozen={"base": [3, 7]} if stage > 1 else {},  # At stage 1 upstream leaves them out.
        shared={"head": "embed"},
        buffers={"mean": torch.tensor([0.5, 1.25], dtype=torch.bfloat16), "count": torch.tensor(7)},
    )
    write_tag(tmp_path / "in", whole, stage, ranks)
    upstream.convert_zero_checkpoint_to_fp32_state_dict(str(tmp_path / "in"), str(tmp_path / "theirs"))
    ckptctl("convert", "zero-to-fp32", str(tmp_path / "in"), str(tmp_path / "ours"))
    found = [torch.load(tmp_path / side / "pytorch_model.bin", weights_only=True) for side in ("ours", "theirs")]
    same_tensors(*found)
    same_tensors(upstream.get_fp32_state_dict_from_zero_checkpoint(str(tmp_path / "in")), whole.weights())
