"""Makes NxD's own functions go through ckptd, also where a library has imported them by name."""

import importlib
from typing import Any, Callable, Dict, Tuple

from ckptd._patches import Patches

_PACKAGE = "neuronx_distributed"
_patches = Patches()

restore = _patches.restore  # Undoes replace(). No-op if it was not called.


def replace(functions: "Dict[Tuple[str, str], Callable[..., Any]]") -> None:
    """Replaces functions of NxD, by (module, name), in every module that has them. No-op if that has been done.

    A release of NxD without one of the functions does not need it.

    Raises:
        ImportError: NxD is not installed, or cannot be imported.
    """
    if _patches:
        return
    named = {(importlib.import_module(f"{_PACKAGE}.{module}"), name): ours for (module, name), ours in functions.items()}
    _patches.replace_everywhere({getattr(*key): ours for key, ours in named.items() if hasattr(*key)})


def original(module: str, name: str) -> "Callable[..., Any]":
    """Returns NxD's own function. ImportError without NxD."""
    found: Callable[..., Any] = _patches.stock(importlib.import_module(f"{_PACKAGE}.{module}"), name)
    return found
