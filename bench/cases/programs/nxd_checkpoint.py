"""Writes a checkpoint of NeuronX Distributed's ZeRO-1 optimizer, for convert.py. A process of its own, to give back its memory.

python -m bench.cases.programs.nxd_checkpoint TAG BYTES
"""

from __future__ import annotations

import os
import pathlib
import sys

import torch

from bench.base import training_state

RANKS = 4


def write_tag(tag: pathlib.Path, size: int) -> None:
    """Writes a transformer's two moments and master weights, float32, together `size` bytes, as one shard for each rank."""
    (tag / "optim").mkdir(parents=True)
    shapes = {}
    for rank in range(RANKS):
        base, masters = {}, {}
        layers = training_state.parameters(size // 4 // 3 // RANKS)
        for number, weight in enumerate(layers.values()):
            shapes[number] = [len(weight) * RANKS - 1, *weight.shape[1:]]
            moments = {
                name: training_state.random_tensor(list(weight.shape)) for name in ("exp_avg", "exp_avg_sq")
            }
            base[number] = {"step": torch.tensor(100.0), **moments}
            masters[number] = weight
        content = {"state": {}, "param_groups": [{"lr": 3e-4, "params": sorted(shapes)}], "base_state": base}
        content.update(shape_info=shapes, sharded_master_weights=masters)
        torch.save(content, tag / "optim" / f"dp_rank_{rank:02d}_tp_rank_00_pp_rank_00.pt")
    for marker in ("checkpoint", "done"):
        (tag / marker).write_text("1")
    os.sync()


if __name__ == "__main__":
    write_tag(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
