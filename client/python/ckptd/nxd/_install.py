"""Makes NxD's own functions go through ckptd, also where a library has imported them by name."""

import importlib
import sys
from typing import Any, Callable, Dict, List, Tuple

_PACKAGE = "neuronx_distributed"
_replaced: List[Tuple[Any, str, Any]] = []  # (module, name, what was there)


def replace(functions: "Dict[Tuple[str, str], Callable[..., Any]]") -> None:
    """Replaces functions of NxD, by (module, name), in every module that has them. No-op if that has been done.

    A release of NxD without one of the functions does not need it.

    Raises:
        ImportError: NxD is not installed, or cannot be imported.
    """
    if _replaced:
        return
    by_id = {}
    for (module, name), ours in functions.items():
        theirs = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name, None)
        if theirs is not None:
            by_id[id(theirs)] = ours
    for owner in list(sys.modules.values()):
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if id(value) in by_id:
                _replaced.append((owner, name, value))
                setattr(owner, name, by_id[id(value)])


def restore() -> None:
    """Undoes replace(). No-op if it was not called."""
    while _replaced:
        owner, name, before = _replaced.pop()
        setattr(owner, name, before)


def original(module: str, name: str) -> "Callable[..., Any]":
    """Returns NxD's own function. ImportError without NxD."""
    theirs = importlib.import_module(f"{_PACKAGE}.{module}")
    for owner, known, before in _replaced:
        if owner is theirs and known == name:
            return before  # type: ignore[no-any-return]
    return getattr(theirs, name)  # type: ignore[no-any-return]
