"""Hooks into torch: what changes a state waits for the copies that devices still make of it."""

import threading
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ckptd._memory import copies
from ckptd._patches import with_stock

_lock = threading.Lock()
_are_installed = False


def install() -> None:
    """Installs the hooks, once in the process: before each step of an optimizer, and each replay of a CUDA graph.

    A replayed graph changes tensors without torch's noticing it.
    """
    global _are_installed
    with _lock:
        if _are_installed:
            return
        _are_installed = True
        register_optimizer_step_pre_hook(lambda *_: hold_devices())
        torch.cuda.CUDAGraph.replay = with_stock(_replay, torch.cuda.CUDAGraph.replay)  # type: ignore[method-assign]


def hold_devices() -> None:
    """Has what the caller gives its devices from now on wait for the copies that are in flight."""
    for one in copies.in_flight():
        one.hold_devices()


def _replay(stock: Any, *args: Any) -> Any:
    hold_devices()
    return stock(*args)
