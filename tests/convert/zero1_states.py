"""ZeRO-1 states in the format of NeuronX Distributed, and its sharding rule, written in torch.

The reference for `ckptctl convert nxd-zero`, implemented from the format alone. It holds a state as full
tensors, and cuts them into the shards that NxD's optimizer would have.
"""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import torch
from class_stand_ins import stand_ins

SHAPES = {0: [13, 6], 1: [7, 5], 2: [1, 9], 3: [5, 3, 2], 4: [3], 5: [11], 6: [8, 4], 7: [1]}


class TensorReference:
    def __init__(self, tid: int) -> None:
        self.tid = tid


class _InternalTensorReference:
    def __init__(self, tid: int, tensor: torch.Tensor) -> None:
        self.tid, self.shape, self.dtype, self.expert_model_parallel = tid, tensor.shape, tensor.dtype, False


TensorReference.__module__ = "torch_xla.utils.serialization"
_InternalTensorReference.__module__ = "neuronx_distributed.trainer.checkpoint"
CLASSES = (TensorReference, _InternalTensorReference)


# ---- The state and its shards ----


def full_state(
    seed: int = 0,
    shapes: dict[int, list[int]] | None = None,
    frozen: tuple[int, ...] = (),
    master_weights: bool = False,
    tensor_lr: bool = False,
    more: bool = False,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Returns the state of a whole optimizer, as a merged file has it. more: states beyond Adam's."""
    shapes = SHAPES if shapes is None else shapes
    random = torch.Generator().manual_seed(seed)

    def tensor(shape: list[int]) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    base: dict[int, dict[str, Any]] = {}
    for number, shape in shapes.items():
        if number in frozen:
            continue
        base[number] = {"step": torch.tensor(17.0), "exp_avg": tensor(shape), "exp_avg_sq": tensor(shape)}
        if more:
            base[number].update(decay=torch.tensor(0.25, dtype=torch.float64), count=3, nested={"max": tensor(shape)})
    numbers = list(shapes)
    groups = []
    for number, part in enumerate((numbers[:4], numbers[4:6], numbers[6:])):
        lr: Any = torch.tensor(0.01 * (number + 1)) if tensor_lr else 0.01 * (number + 1)
        groups.append({"lr": lr, "betas": [0.9, 0.999], "eps": 1e-8, "foreach": None, "fused": False, "params": part})
    state: dict[str, Any] = {"state": {}, "param_groups": groups, "base_state": base}
    state["shape_info"] = {number: list(shape) for number, shape in shapes.items()}
    if master_weights:
        state["sharded_master_weights"] = {number: tensor(shape) for number, shape in shapes.items()}
    return state


def shard(full: dict[str, Any], index: int, count: int) -> dict[str, Any]:
    """Pads dimension 0 with zeros to a multiple of `count`, and returns one of `count` equal parts."""

    def cut(value: Any, key: Any) -> Any:
        if isinstance(value, dict):
            return {k: cut(v, k) for k, v in value.items()}
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or key == "step":
            return value
        padding = -len(value) % count
        padded = torch.cat([value, torch.zeros([padding, *value.shape[1:]], dtype=value.dtype)])
        return padded.chunk(count)[index].clone()

    result = copy.deepcopy(full)
    for name in ("base_state", "sharded_master_weights"):
        if name in result:
            result[name] = cut(result[name], None)
    return result


# ---- The files ----


def name_of(full: bool, dp: int, tp: int, pp: int) -> str:
    return ("full_" if full else f"dp_rank_{dp:02d}_") + f"tp_rank_{tp:02d}_pp_rank_{pp:02d}.pt"


def write_state(state: dict[str, Any], path: pathlib.Path, xser: bool, info: bool = True) -> None:
    if not xser:
        torch.save(state, path)
        return
    tensors: list[torch.Tensor] = []
    described: dict[int, Any] = {}

    def take_out(value: Any, in_list: bool) -> Any:
        if isinstance(value, dict):
            return {k: take_out(v, in_list) for k, v in value.items()}
        if isinstance(value, list):
            return [take_out(v, True) for v in value]
        if not isinstance(value, torch.Tensor):
            return value
        tid = len(tensors)
        tensors.append(value)
        if in_list:  # As upstream does.
            return _InternalTensorReference(tid, value)
        described[tid] = {"dtype": value.dtype, "shape": value.shape, "expert_model_parallel": False}
        return TensorReference(tid)

    with stand_ins(*CLASSES):
        torch.save(take_out(state, False), path)
    if info:
        torch.save(described, f"{path}.info.pt")
    folder = pathlib.Path(f"{path}.tensors")
    folder.mkdir()
    for tid, tensor in enumerate(tensors):
        torch.save(tensor, folder / f"tensor_{tid}.pt")


def write_tag(
    tag: pathlib.Path,
    states: dict[tuple[int, int], dict[str, Any]],
    dp: int,
    xser: bool = False,
    full: bool = False,
    rest: bool = True,
    info: bool = True,
) -> pathlib.Path:
    """states: {(tp, pp): full state}. rest: also write model, scheduler, user content and markers."""
    (tag / "optim").mkdir(parents=True)
    for (tp, pp), state in states.items():
        for index in range(1 if full else dp):
            part = state if full else shard(state, index, dp)
            write_state(part, tag / "optim" / name_of(full, index, tp, pp), xser, info)
    if rest:
        (tag / "model").mkdir()
        write_state({"w": torch.arange(5.0)}, tag / "model" / name_of(False, 0, 0, 0), xser)
        torch.save({"last_epoch": 3}, tag / "scheduler.pt")
        torch.save({"step": 17}, tag / "user_content.pt")
        for marker in ("checkpoint", "done"):
            (tag / marker).write_text("1")
    return tag


def load_state(path: pathlib.Path) -> Any:
    """Loads like NxD: references in dicts are read from their files, which must match .info.pt."""
    with stand_ins(*CLASSES):
        state = torch.load(path, weights_only=False)
    tensors = pathlib.Path(f"{path}.tensors")
    if not tensors.exists():
        torch.load(path, weights_only=True, mmap=True)
        return state
    info = torch.load(f"{path}.info.pt", weights_only=False)
    used = set()

    def put_back(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: put_back(v) for k, v in value.items()}
        if not isinstance(value, TensorReference):
            return value
        tensor = torch.load(tensors / f"tensor_{value.tid}.pt", weights_only=True)
        assert info[value.tid] == {"dtype": tensor.dtype, "shape": tensor.shape, "expert_model_parallel": False}
        used.add(value.tid)
        return tensor

    state = put_back(state)
    assert used == set(info) == set(range(len(list(tensors.iterdir()))))
    return state


def same(a: Any, b: Any, where: str = "") -> None:
    """Asserts equality bit for bit, in types, dtypes, shapes and order; no tensor's storage may be larger
    than the tensor.
    """
    assert type(a) is type(b), f"{where}: {type(a)} and {type(b)}"
    if isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for index, (left, right) in enumerate(zip(a, b)):
            same(left, right, f"{where}[{index}]")
    elif isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{where}: {a.shape} and {b.shape}"
        assert a.is_contiguous() and b.is_contiguous(), where
        assert bytes(a.flatten().view(torch.uint8).numpy()) == bytes(b.flatten().view(torch.uint8).numpy()), where
        assert a.untyped_storage().nbytes() == a.numel() * a.element_size(), where
    else:
        assert a == b, where


def check_tag(tag: pathlib.Path, states: dict[tuple[int, int], dict[str, Any]], count: int, full: bool = False) -> None:
    """Asserts that a tag has exactly the files and contents that the rule requires."""
    names = set()
    for (tp, pp), state in states.items():
        for index in range(count):
            name = name_of(full, index, tp, pp)
            same(load_state(tag / "optim" / name), state if full else shard(state, index, count), name)
            names.update({name, f"{name}.info.pt", f"{name}.tensors"})
    assert {path.name for path in (tag / "optim").iterdir()} <= names
    assert (tag / "done").exists() == (tag / "checkpoint").exists() == (not full)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
