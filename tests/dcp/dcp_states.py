"""What the rank processes of these tests run: process groups, and states whose values depend on names alone."""

import datetime
import os
import warnings
import zlib

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import SerializationFormat  # noqa: F401
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: F401
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
warnings.filterwarnings("ignore", message=".*Detected an existing checkpoint.*")


def join(store, rank, world_size):
    """Makes the default process group of one launch; leaves the one before."""
    leave()
    os.environ["CKPTD_LAUNCH_ID"] = os.path.basename(store)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=60),
    )


def leave():
    if dist.is_initialized():
        dist.destroy_process_group()


def values(name, shape, dtype=torch.float32, seed=0):
    """Returns values that depend only on the arguments, with bits that arithmetic would lose."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {shape} {seed}".encode()))
    made = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype.is_complex:
        return torch.complex(made, made.flip(0) if made.dim() else made).to(dtype)
    if not dtype.is_floating_point:
        return (made * 100).to(dtype)
    made = made.to(dtype)
    if made.numel() > 2 and dtype.itemsize > 1:
        made.view(-1)[0], made.view(-1)[1] = -0.0, float("nan")
    return made


def mesh_of(world_size):
    return init_device_mesh("cpu", (world_size,))


def sharded_state(seed, mesh=None):
    """Returns a state of DTensors in all placements on a mesh, and of plain tensors and objects."""
    mesh = mesh or mesh_of(dist.get_world_size())
    one = [Replicate()] * (mesh.ndim - 1)

    def tensor(name, shape, *placements, dtype=torch.float32):
        return distribute_tensor(values(name, shape, dtype, seed), mesh, list(placements) or [*one, Shard(0)])

    model = {
        "rows": tensor("rows", (37, 5)),
        "columns": tensor("columns", (6, 29), *one, Shard(1)),
        "few": tensor("few", (1, 3)),  # Other ranks have nothing of it.
        "whole": tensor("whole", (11, 2), *([Replicate()] * mesh.ndim)),
        "half": tensor("half", (65,), dtype=torch.bfloat16),
        "plain": values("plain", (9, 9), seed=seed),
    }
    if mesh.ndim == 2:
        model["both"] = tensor("both", (12, 10), Shard(0), Shard(1))
    return {"model": model, "step": seed, "names": ["a", {"b": seed}], "raw": b"bytes"}


def plain_state(seed):
    """Returns a state of plain tensors of every kind, with tied ones and views."""
    base = values("base", (40, 10), seed=seed)
    state = {
        "tied": base,
        "again": base,
        "view": base[3:9],
        "strided": base[:, 2:5],
        "transposed": values("t", (8, 6), seed=seed).t(),
        "scalar": values("scalar", (), seed=seed),
        "empty": torch.empty(0, 3),
        "f8": values("f8", (33,), seed=seed).to(torch.float8_e4m3fn),
        "bf16": values("bf16", (7, 3), torch.bfloat16, seed),
        "complex": values("complex", (5, 2), torch.complex64, seed),
        "conjugate": values("conjugate", (4,), torch.complex128, seed).conj(),
        "bool": values("bool", (17,), torch.int8, seed) > 0,
        "long": values("long", (3, 1, 2), torch.int64, seed),
        "parameter": torch.nn.Parameter(values("parameter", (4, 4), seed=seed)),
    }
    return {"m": state, "list": [values("l", (2,), seed=seed), seed], "object": {"x": (1, "y")}, "raw": b"abc"}


def ddp_state(seed):
    """Returns what a job with DistributedDataParallel saves after one step, in both forms of the model's state."""
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(4, 7)).sum().backward()
    optimizer.step()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "wrapped": model.state_dict()}


def local(value):
    return value.to_local() if isinstance(value, DTensor) else value


def differences(one, other, where=""):
    """Returns where two states are not the same, bit for bit."""
    if isinstance(one, dict):
        if set(one) != set(other):
            return [f"{where}: {sorted(one)} and {sorted(other)}"]
        return [found for key in one for found in differences(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, (list, tuple)):
        return [found for n, pair in enumerate(zip(one, other)) for found in differences(*pair, f"{where}.{n}")]
    if isinstance(one, torch.Tensor):
        one, other = local(one).detach(), local(other).detach()
        same = one.shape == other.shape and one.dtype == other.dtype and bits(one) == bits(other)
        return [] if same else [f"{where}: {one} and {other}"]
    return [] if one == other else [f"{where}: {one!r} and {other!r}"]


def bits(tensor):
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1).clone()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def emptied(state):
    """Returns a state of the same form with other values, to be loaded into."""
    if isinstance(state, dict):
        return {key: emptied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [emptied(value) for value in state]
    if isinstance(state, DTensor):
        return DTensor.from_local(
            torch.zeros_like(state.to_local()), state.device_mesh, state.placements, shape=state.shape, stride=state.stride()
        )
    if isinstance(state, torch.Tensor):
        return torch.zeros(state.shape, dtype=state.dtype)
    return None if not isinstance(state, int) else -1
