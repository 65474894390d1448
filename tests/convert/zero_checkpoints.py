"""ZeRO checkpoints in DeepSpeed's layout, written in torch from a description of the format.

A `ZeroModel` holds whole tensors. `write_tag` cuts them as DeepSpeed's optimizers do and writes the files; the
converters must give the whole tensors back. DeepSpeed itself is not needed.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import pathlib
from collections import OrderedDict
from typing import Any, Optional

import torch
from class_stand_ins import stand_ins


class ZeroStageEnum(int, enum.Enum):
    optimizer_states, gradients, weights = 1, 2, 3


class LossScaler:
    def __init__(self) -> None:
        self.cur_scale, self.dynamic = 1.0, False


@dataclasses.dataclass
class fragment_address:
    numel: int
    start: int


@dataclasses.dataclass
class SubparamShape:
    patterns: list[str]
    shape: tuple[Any, ...]
    partition_dim: int


ZeroStageEnum.__module__ = "deepspeed.runtime.zero.config"
LossScaler.__module__ = "deepspeed.runtime.fp16.loss_scaler"
fragment_address.__module__ = "deepspeed.utils.tensor_fragment"
SubparamShape.__module__ = "deepspeed.checkpoint.universal_checkpoint"
CLASSES = (ZeroStageEnum, LossScaler, fragment_address, SubparamShape)

STATES = ("fp32", "exp_avg", "exp_avg_sq")
Shapes = dict[str, list[int]]


@dataclasses.dataclass
class ZeroModel:
    """What one model-parallel rank has: the shapes of the trained parameters of each group, and the rest."""

    groups: list[Shapes]
    frozen: Shapes = dataclasses.field(default_factory=dict)
    shared: dict[str, str] = dataclasses.field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16  # Of the model's parameters.
    seed: int = 0
    # What other than random numbers the states of a parameter are: {name: {state: tensor}}.
    given: dict[str, dict[str, torch.Tensor]] = dataclasses.field(default_factory=dict)

    def shapes(self) -> Shapes:
        return {name: shape for group in self.groups for name, shape in group.items()}

    def tensor(self, name: str, state: str) -> torch.Tensor:
        """The whole tensor of a trained parameter: fp32, exp_avg or exp_avg_sq."""
        if name in self.given:
            return self.given[name][state]
        random = torch.Generator().manual_seed(hash_of(f"{self.seed} {name} {state}"))
        return torch.randn(self.shapes()[name], generator=random)

    def frozen_tensor(self, name: str) -> torch.Tensor:
        random = torch.Generator().manual_seed(hash_of(f"{self.seed} {name} frozen"))
        return torch.randn(self.frozen[name], generator=random).to(self.dtype)

    def weights(self, exclude_frozen: bool = False) -> dict[str, torch.Tensor]:
        """The state dict that a recovery gives, in the order of DeepSpeed's."""
        weights = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in self.buffers.items()}
        if not exclude_frozen:
            weights.update((name, self.frozen_tensor(name)) for name in self.frozen)
        weights.update((name, self.tensor(name, "fp32")) for name in self.shapes())
        weights.update((name, weights[source]) for name, source in self.shared.items() if source in weights)
        return weights


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    return int.from_bytes(text.encode(), "little") % (2**31 - 1)


# ---- Cutting, as DeepSpeed's optimizers do ----


@dataclasses.dataclass
class FlatGroup:
    """A group of stage 1 or 2: its parameters, one after the other, padded and cut into equal partitions."""

    numels: dict[str, int]
    ranks: int
    paddings: list[int]  # After each parameter.

    def __post_init__(self) -> None:
        self.starts, self.total = {}, 0
        for (name, numel), padding in zip(self.numels.items(), self.paddings):
            self.starts[name] = self.total
            self.total += numel + padding
        self.partition = math.ceil(self.total / (2 * self.ranks)) * 2

    def bounds(self, rank: int) -> tuple[int, int]:
        return rank * self.partition, (rank + 1) * self.partition

    def flat(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """With paddings that are no zeros: no reader may take them for weights."""
        flat = torch.full((self.partition * self.ranks,), 777.0)
        for name, start in self.starts.items():
            flat[start : start + self.numels[name]] = tensors[name].flatten()
        return flat

    def padding(self, rank: int) -> int:
        begin, end = self.bounds(rank)
        return end - max(begin, min(end, self.total))

    def slices(self, rank: int) -> "OrderedDict[str, fragment_address]":
        begin, end = self.bounds(rank)
        found: "OrderedDict[str, fragment_address]" = OrderedDict()
        for name, start in self.starts.items():
            first, last = max(begin, start), min(end, start + self.numels[name])
            if first < last:
                found[name] = fragment_address(numel=last - first, start=first - begin)
        return found


def partition_of(tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """A rank's part of a parameter of stage 3."""
    size = math.ceil(tensor.numel() / ranks)
    padded = torch.zeros(size * ranks, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.flatten()
    return padded[rank * size : (rank + 1) * size].clone()


# ---- Files ----


def optimizer_file(dp: int, mp: int, prefix: str = "") -> str:
    return f"{prefix}zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt"


def model_file(stage: int, dp: int, mp: int) -> str:
    return f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_model_states.pt" if stage == 3 else f"mp_rank_{mp:02d}_model_states.pt"


def param_groups(count: int) -> list[dict[str, Any]]:
    return [{"lr": 0.01 * (g + 1), "betas": (0.9, 0.95), "weight_decay": 0.1, "params": [g]} for g in range(count)]


def optimizer_state_12(
    model: ZeroModel, stage: int, rank: int, ranks: int, paddings: Optional[list[list[int]]]
) -> dict[str, Any]:
    zero: dict[str, Any] = {"loss_scaler": LossScaler(), "dynamic_loss_scale": False, "overflow": False, "clip_grad": 0.0}
    fp32, states, slices, group_paddings = [], {}, [], []
    for index, shapes in enumerate(model.groups):
        after = paddings[index] if paddings else [0] * len(shapes)
        group = FlatGroup({name: math.prod(shape) for name, shape in shapes.items()}, ranks, after)
        begin, end = group.bounds(rank)
        flat = {s: group.flat({n: model.tensor(n, s) for n in shapes})[begin:end].clone() for s in STATES}
        real = end - begin - group.padding(rank)
        fp32.append(flat["fp32"][:real].clone())
        states[index] = {"step": torch.tensor(17.0), "exp_avg": flat["exp_avg"], "exp_avg_sq": flat["exp_avg_sq"]}
        slices.append(group.slices(rank))
        group_paddings.append(group.padding(rank))
    zero["base_optimizer_state"] = {"state": states, "param_groups": param_groups(len(model.groups))}
    zero["single_partition_of_fp32_groups"] = fp32
    zero["zero_stage"] = ZeroStageEnum(stage)
    zero["group_paddings"] = group_paddings
    zero["partition_count"] = [ranks] * len(model.groups)
    zero["ds_version"] = "0.19.8"
    zero["param_slice_mappings"] = slices
    if paddings:
        zero["param_alignment_paddings"] = paddings
    return zero


def optimizer_state_3(model: ZeroModel, rank: int, ranks: int) -> dict[str, Any]:
    def flat(shapes: Shapes, state: str) -> torch.Tensor:
        return torch.cat([partition_of(model.tensor(name, state), rank, ranks) for name in shapes])

    states = {
        index: {"step": torch.tensor(17.0), "exp_avg": flat(shapes, "exp_avg"), "exp_avg_sq": flat(shapes, "exp_avg_sq")}
        for index, shapes in enumerate(model.groups)
    }
    return {
        "zero_stage": ZeroStageEnum(3),
        "loss_scaler": LossScaler(),
        "dynamic_loss_scale": False,
        "overflow": False,
        "partition_count": ranks,
        "optimizer_state_dict": {"state": states, "param_groups": param_groups(len(model.groups))},
        "fp32_flat_groups": [flat(shapes, "fp32") for shapes in model.groups],
    }


def model_state(model: ZeroModel, stage: int, rank: int, ranks: int) -> dict[str, Any]:
    module: "OrderedDict[str, Any]" = OrderedDict()
    for name in (*model.shapes(), *model.frozen):
        whole = model.tensor(name, "fp32").to(model.dtype) if name in model.shapes() else model.frozen_tensor(name)
        module[name] = torch.empty(0, dtype=model.dtype) if stage == 3 else whole
    module.update(model.buffers)
    module.update((name, module[source]) for name, source in model.shared.items())
    frozen_shapes = {name: torch.Size(shape) for name, shape in model.frozen.items()} if stage > 1 else None
    fragments = None
    if stage > 1:
        fragments = {name: model.frozen_tensor(name) for name in model.frozen}
    if stage == 3:
        fragments = {name: partition_of(model.frozen_tensor(name), rank, ranks) for name in model.frozen}
    return {
        "module": module,
        "buffer_names": list(model.buffers),
        "optimizer": None,
        "param_shapes": [OrderedDict((n, torch.Size(s)) for n, s in group.items()) for group in model.groups],
        "frozen_param_shapes": frozen_shapes,
        "frozen_param_fragments": fragments,
        "shared_params": model.shared,
        "lr_scheduler": {"last_epoch": 17},
        "skipped_steps": 0,
        "global_steps": 17,
        "global_samples": 170,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "ds_config": {"zero_optimization": {"stage": stage}},
        "ds_version": "0.19.8",
    }


def write_tag(
    save_dir: pathlib.Path,
    model: ZeroModel,
    stage: int,
    ranks: int,
    tag: str = "global_step17",
    prefix: str = "",
    paddings: Optional[list[list[int]]] = None,
    mp: int = 0,
    more: Optional[dict[str, Any]] = None,
) -> pathlib.Path:
    """Writes the files of a model-parallel rank and `latest`. more: entries of the model's state."""
    folder = save_dir / tag
    folder.mkdir(parents=True, exist_ok=True)
    with stand_ins(*CLASSES):
        for rank in range(ranks):
            if stage == 3 or rank == 0:
                state = {**model_state(model, stage, rank, ranks), **(more or {})}
                torch.save(state, folder / model_file(stage, rank, mp))
            zero = (
                optimizer_state_3(model, rank, ranks)
                if stage == 3
                else optimizer_state_12(model, stage, rank, ranks, paddings)
            )
            saved = {"optimizer_state_dict": zero, "ds_config": {}, "ds_version": "0.19.8"}
            torch.save(saved, folder / optimizer_file(rank, mp, prefix))
    (save_dir / "latest").write_text(tag)
    return folder


def same_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Asserts equality in names, their order, dtypes, shapes and bytes."""
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        one = found[name]
        assert (one.dtype, one.shape) == (tensor.dtype, tensor.shape), name
        assert bytes(one.contiguous().flatten().view(torch.uint8).numpy()) == bytes(
            tensor.contiguous().flatten().view(torch.uint8).numpy()
        ), name
