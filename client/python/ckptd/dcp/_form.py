"""The form of a state: everything that DCP's default planner makes a plan of."""

import io
from typing import Any, Dict, Optional, Tuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_local_save_plan
from torch.distributed.tensor import DTensor

from ckptd.dcp import _names

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SIMPLE = (int, float, bool, str, type(None))


class StatePlanner(DefaultSavePlanner):
    """DCP's default planner. It pickles equal numbers and strings, of which states of optimizers are full, once."""

    def __init__(self) -> None:
        super().__init__()
        self._pickled: Dict[Tuple[type, str], bytes] = {}

    def transform_object(self, write_item: Any, object: Any) -> Any:
        """Returns the tensor, or the pickled object."""
        if not _names.is_bytes(write_item) or type(object) not in _SIMPLE:
            return super().transform_object(write_item, object)
        key = type(object), repr(object)
        if key not in self._pickled:
            self._pickled[key] = super().transform_object(write_item, object).getvalue()
        return io.BytesIO(self._pickled[key])


def form_of(planner: DefaultSavePlanner) -> Optional[Tuple[Any, Any]]:
    """Returns what is equal for states with equal plans, of a planner that has a state.

    None if a tensor is not ready yet, and so its elements cannot be had without autograd.
    """
    with torch.no_grad():
        form = {name: _form_of_value(name, value) for name, value in planner.state_dict.items()}
    return None if _NOT_READY in form.values() else (form, planner.mappings)


_NOT_READY = "not ready"


def _form_of_value(name: str, value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value.shape, value.dtype, value.layout, value.requires_grad
    if kind is DTensor:
        if type(value.to_local()) not in _PLAIN:
            return _NOT_READY
        return value.shape, value.dtype, value.layout, value.requires_grad, value.device_mesh, value.placements
    if isinstance(value, torch.Tensor) or hasattr(value, "__create_write_items__"):
        return create_default_local_save_plan({name: value}, True).items
    return None
