"""Replaces functions and methods of a framework by those of its adapter, and puts them back."""

import functools
import inspect
import sys
from typing import Any, Callable, List, Mapping, Tuple


class Patches:
    """The replacements of one adapter; true if there are any. As a context manager it undoes them at its end.

    Not thread-safe: an adapter is installed and uninstalled by one thread.
    """

    def __init__(self) -> None:
        self._replaced: List[Tuple[Any, str, Any]] = []  # (module or class, name, what was there)

    def __bool__(self) -> bool:
        return bool(self._replaced)

    def replace(self, owner: Any, name: str, ours: Any) -> None:
        """Replaces an attribute of a module or class. AttributeError if there is none."""
        # Not getattr(): of a static method that returns the bare function, which restore() would make an ordinary method.
        self._replaced.append((owner, name, inspect.getattr_static(owner, name)))
        setattr(owner, name, ours)

    def wrap(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        """Replaces a function, or a method, by ours(the stock one, *its arguments)."""
        wrapper: Any = with_stock(ours, getattr(owner, name))
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        self.replace(owner, name, staticmethod(wrapper) if is_static else wrapper)

    def replace_everywhere(self, functions: "Mapping[Callable[..., Any], Callable[..., Any]]") -> None:
        """Replaces functions in all modules that are loaded, which may have imported them, under any name."""
        by_id = {id(stock): ours for stock, ours in functions.items()}
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if id(value) in by_id:
                    self.replace(module, name, by_id[id(value)])

    def stock(self, owner: Any, name: str) -> Any:
        """Returns the framework's own attribute, whether it has been replaced or not."""
        for other, replaced, before in self._replaced:
            if other is owner and replaced == name:
                return before
        return getattr(owner, name)

    def restore(self) -> None:
        """Puts back what was there. No-op if nothing was replaced."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            setattr(owner, name, before)

    def __enter__(self) -> "Patches":
        return self

    def __exit__(self, *_: Any) -> None:
        self.restore()


def with_stock(ours: Callable[..., Any], stock: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls ours(stock, *its arguments). Its ``__wrapped__`` is the stock one, as it is called."""

    @functools.wraps(stock)
    def wrapper(*args: Any, **options: Any) -> Any:
        return ours(wrapper.__wrapped__, *args, **options)

    return wrapper
