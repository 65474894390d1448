"""Writes a checkpoint of DeepSpeed's ZeRO stage 3, for convert.py. A process of its own, to give back its memory.

python -m bench.cases.programs.zero_checkpoint TAG BYTES STATES...
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import List

import torch

from bench.base import training_state

RANKS = 4


def write_tag(tag: pathlib.Path, size: int, states: List[str]) -> None:
    """Writes a transformer's fp32 weights and the optimizer's `states`, together `size` bytes, over RANKS ranks."""
    tag.mkdir(parents=True)
    parts = training_state.parameters(size // 4 // (1 + len(states)) // RANKS)  # A rank's parts of all parameters.
    shapes = {name: torch.Size([len(part) * RANKS, *part.shape[1:]]) for name, part in parts.items()}
    for rank in range(RANKS):
        flat = torch.cat([part.flatten() for part in parts.values()]) * (rank + 1)
        moments = {state: training_state.random_tensor([len(flat)]) for state in states}
        inner = {"state": {0: {"step": torch.tensor(100.0), **moments}}, "param_groups": [{"lr": 3e-4, "params": [0]}]}
        zero = {"zero_stage": 3, "partition_count": RANKS, "optimizer_state_dict": inner, "fp32_flat_groups": [flat]}
        torch.save({"optimizer_state_dict": zero}, tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        model = {"module": {}, "buffer_names": [], "param_shapes": [shapes], "shared_params": {}}
        torch.save(model, tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    os.sync()


if __name__ == "__main__":
    write_tag(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
