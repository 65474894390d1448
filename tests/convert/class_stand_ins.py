"""Stand-ins for classes of packages that are not installed, so that pickles can name them."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def stand_ins(*classes: type) -> Iterator[None]:
    """Within the context, pickles find each class in the module that its __module__ names."""
    made: dict[str, Any] = {}
    for cls in classes:
        parts = cls.__module__.split(".")
        for end in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        setattr(made[cls.__module__], cls.__name__, cls)
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
