"""The tensors within a state of dicts and lists, as state_dict() makes them."""

from __future__ import annotations

from typing import Any, Dict, List

import torch


def named(value: Any, name: str = "") -> Dict[str, torch.Tensor]:
    """The tensors by their way down, as in `layer.0.weight`, in the order of the state."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    found: Dict[str, torch.Tensor] = {}
    for key, child in children:
        found.update(named(child, f"{name}.{key}" if name else str(key)))
    return found


def tensors_of(value: Any) -> List[torch.Tensor]:
    return list(named(value).values())


def size_of(value: Any) -> int:
    """Bytes of all of them."""
    return sum(tensor.nbytes for tensor in tensors_of(value))


def fill(state: Any, loaded: Any) -> None:
    """Copies what was loaded into a state's own tensors, as load_state_dict does."""
    with torch.no_grad():
        for tensor, source in zip(tensors_of(state), tensors_of(loaded), strict=True):
            tensor.copy_(source)
