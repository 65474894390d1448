"""Checkpoints of DeepSpeed's AutoEP, written in torch from a description of the format: each expert-parallel rank has
some of the experts, and ZeRO cuts those over the data-parallel ranks that have the same ones.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
from collections import OrderedDict
from typing import Any, Optional

import torch
from class_stand_ins import stand_ins
from zero_checkpoints import (
    CLASSES,
    STATES,
    ZeroModel,
    hash_of,
    model_file,
    model_state,
    optimizer_file,
    optimizer_state_3,
    optimizer_state_12,
    param_groups,
)

PREFIX = "layers.0.experts"
OF_EXPERT = {"w1": [5, 3], "w2": [3, 5], "w3": [5, 3]}
DENSE = ZeroModel(groups=[{"embed.weight": [13, 3], "router.weight": [4, 3]}], buffers={"count": torch.tensor(7)})


@dataclasses.dataclass
class Mixture:
    """What the experts are, and how the ranks have them."""

    of_rank: list[list[int]]  # The experts of each expert-parallel rank, in their order there.
    replicas: int = 1  # How many data-parallel ranks have the same experts.
    data_first: bool = False  # use_data_before_expert_parallelism
    more: dict[str, Any] = dataclasses.field(default_factory=dict)  # What the description of the layer also says.

    @property
    def experts(self) -> int:
        return 1 + max(expert for experts in self.of_rank for expert in experts)

    @property
    def ranks(self) -> int:
        return len(self.of_rank) * self.replicas

    def places(self, rank: int) -> tuple[int, int]:
        """The expert-parallel rank of a data-parallel rank, and which of its replicas it is."""
        if self.data_first:
            return divmod(rank, self.replicas)
        replica, expert_rank = divmod(rank, len(self.of_rank))
        return expert_rank, replica

    def whole(self, name: str, state: str) -> torch.Tensor:
        random = torch.Generator().manual_seed(hash_of(f"{name} {state}"))
        return torch.randn([self.experts, *OF_EXPERT[name]], generator=random)

    def model_of(self, expert_rank: int) -> ZeroModel:
        """The experts of a rank, as parameters."""
        experts = self.of_rank[expert_rank]
        shapes = {f"{PREFIX}.{name}": [len(experts), *shape] for name, shape in OF_EXPERT.items()}
        given = {f"{PREFIX}.{name}": {s: self.whole(name, s)[experts] for s in STATES} for name in OF_EXPERT}
        return ZeroModel(groups=[shapes], given=given)

    def layers(self, rank: int, stage: int) -> list[dict[str, Any]]:
        """What DeepSpeed's ds_autoep_layers says on a data-parallel rank."""
        expert_rank, replica = self.places(rank)
        count = len(self.of_rank[expert_rank])
        layer = {
            "moe_layer_id": 0,
            "module_path": "layers.0",
            "num_experts": self.experts,
            "num_local_experts": count,
            "ep_size": len(self.of_rank),
            "expert_key_prefix": PREFIX,
            "checkpoint_format": "zero3_partitioned" if stage == 3 else "per_expert_files",
            "checkpoint_format_version": 1 if stage == 3 else None,
            "ep_group_name": "ep_size_2",
            "ep_rank": expert_rank,
            "expert_data_parallel_rank": replica,
            "expert_data_parallel_world_size": self.replicas,
            "global_expert_start": expert_rank * count,
            "global_expert_end": expert_rank * count + count,
        }
        return [{**layer, **copy.deepcopy(self.more)}]


def joined(dense: dict[str, Any], experts: dict[str, Any], stage: int) -> dict[str, Any]:
    """The state of an optimizer that has the groups of both."""
    both = dict(dense)
    inner = "optimizer_state_dict" if stage == 3 else "base_optimizer_state"
    states = {**dense[inner]["state"], len(dense[inner]["state"]): experts[inner]["state"][0]}
    both[inner] = {"state": states, "param_groups": param_groups(len(states))}
    below_3 = ["single_partition_of_fp32_groups", "group_paddings", "param_slice_mappings", "partition_count"]
    for key in ["fp32_flat_groups"] if stage == 3 else below_3:
        both[key] = dense[key] + experts[key]
    return both


def optimizer_of(mixture: Mixture, rank: int, stage: int) -> dict[str, Any]:
    expert_rank, replica = mixture.places(rank)
    model = mixture.model_of(expert_rank)
    if stage < 3:
        of_dense = optimizer_state_12(DENSE, stage, rank, mixture.ranks, None)
        return joined(of_dense, optimizer_state_12(model, stage, replica, mixture.replicas, None), stage)
    both = joined(optimizer_state_3(DENSE, rank, mixture.ranks), optimizer_state_3(model, replica, mixture.replicas), 3)
    both["ds_zero_partition_groups"] = [
        {"partition_count": mixture.ranks, "partition_rank": rank},
        {"partition_count": mixture.replicas, "partition_rank": replica},
    ]
    return both


def model_of(mixture: Mixture, rank: int, stage: int) -> dict[str, Any]:
    state = model_state(DENSE, stage, rank, mixture.ranks)
    (shapes,) = mixture.model_of(mixture.places(rank)[0]).groups
    state["param_shapes"].append(OrderedDict((name, torch.Size(shape)) for name, shape in shapes.items()))
    layers = mixture.layers(rank, stage)
    state["num_experts"] = [mixture.experts]
    state["ds_autoep_layers"] = layers
    state["ds_config"]["use_data_before_expert_parallelism"] = mixture.data_first
    state["universal_checkpoint_info"] = {
        "universal_checkpoint_version": 0.4,
        "expert_parameter_patterns": [r".*\.experts\.w[123]$"],
        "ds_autoep_layers": layers,
    }
    return state


def write(save_dir: pathlib.Path, mixture: Mixture, stage: int, change: Optional[Any] = None) -> pathlib.Path:
    """Writes a tag and returns its directory. change: is called with each rank's model's and optimizer's state."""
    tag = save_dir / "global_step17"
    tag.mkdir(parents=True)
    with stand_ins(*CLASSES):
        for rank in range(mixture.ranks):
            model, zero = model_of(mixture, rank, stage), optimizer_of(mixture, rank, stage)
            if change is not None:
                change(model, zero)
            if stage == 3 or rank == 0:
                torch.save(model, tag / model_file(stage, rank, 0))
            saved = {"optimizer_state_dict": zero, "ds_config": {}, "ds_version": "0.19.8"}
            torch.save(saved, tag / optimizer_file(rank, 0))
    for expert in range(mixture.experts) if stage < 3 else ():
        weights = {f"{PREFIX}.{name}.{expert}": mixture.whole(name, "fp32")[expert].clone() for name in OF_EXPERT}
        torch.save(weights, tag / f"layer_0_expert_{expert}_mp_rank_00_model_states.pt")
    return tag
