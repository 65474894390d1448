"""The tensors within a state: nested dicts and lists, as state_dict() makes them."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List

import torch


def named_tensors(value: Any, name: str = "") -> Dict[str, torch.Tensor]:
    """The tensors by their paths, such as `layer.0.weight`, in the order of the state."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, (list, tuple))
        else ()
    )
    found: Dict[str, torch.Tensor] = {}
    for key, child in children:
        found.update(named_tensors(child, f"{name}.{key}" if name else str(key)))
    return found


def tensors_of(value: Any) -> List[torch.Tensor]:
    return list(named_tensors(value).values())


def total_bytes(value: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(value))


def copy_into(state: Any, loaded: Any) -> None:
    """Copies a loaded state into the tensors of `state`, as load_state_dict does."""
    with torch.no_grad():
        for tensor, source in zip(tensors_of(state), tensors_of(loaded), strict=True):
            tensor.copy_(source)


def digest(state: Any) -> str:
    """SHA-256 of a whole state: its structure, scalars, and each tensor's type, shape and bytes."""
    hasher = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            hasher.update(f"{value.dtype}{tuple(value.shape)}".encode())
            hasher.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                hasher.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            hasher.update(f"{len(value)}[".encode())
            for item in value:
                add(item)
        else:
            hasher.update(repr(value).encode())

    add(state)
    return hasher.hexdigest()
