"""The place of the tensors of xser files: NxD puts each onto the device as soon as it has been read, so that the host
never holds a whole state. The step numbers of optimizers stay on the host.
"""

import sys
from typing import Any, Optional

import torch

from ckptd.nxd import _states

_ON_HOST = "step"  # NxD leaves tensors under this key on the host.


def for_model(model: Any) -> Optional[Any]:
    """Returns the XLA device that a model's tensors should be loaded to; None: the host."""
    if isinstance(model, torch.nn.Module):
        return _of(next(model.parameters(), None))
    return _of_process()


def for_optimizer(optimizer: Any) -> Optional[Any]:
    """Returns the XLA device that an optimizer's tensors should be loaded to; None: the host."""
    parameters = _states.parameters_of(optimizer)
    return _of(parameters[0]) if parameters else _of_process()


def place(value: Any, key: Any, device: Optional[Any]) -> Any:
    """Returns a value that was loaded under a key, on a device if it belongs there."""
    if device is None or key == _ON_HOST or not isinstance(value, torch.Tensor):
        return value
    return _to_device(value, device)


def place_all(state: Any, device: Optional[Any]) -> None:
    """Moves the tensors of nested dicts to a device, one at a time."""
    for key, value in state.items():
        if isinstance(value, dict):
            place_all(value, device)
        else:
            state[key] = place(value, key, device)


def _of(tensor: Optional[Any]) -> Optional[Any]:
    return tensor.device if tensor is not None and tensor.device.type == "xla" else None


def _of_process() -> Optional[Any]:
    xla_model = sys.modules.get("torch_xla.core.xla_model")
    return None if xla_model is None else xla_model.xla_device()


def _to_device(tensor: Any, device: Any) -> Any:
    return tensor.to(device)
