"""Notices a planner that fails on one rank after DCP has last asked whether one has failed."""

import weakref
from typing import Any, Callable, Sequence

_OnError = Callable[[Any, BaseException], None]


class _Guard:
    """Stands for a method of one planner, until it is called once."""

    def __init__(self, planner: Any, name: str, on_error: _OnError) -> None:
        self._planner = weakref.ref(planner)  # Which refers to this object.
        self._name = name
        self._on_error = on_error
        self._before = vars(planner).get(name)  # None: the method of its class.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        planner: Any = self._planner()
        self.remove_from(planner)
        try:
            return getattr(planner, self._name)(*args, **kwargs)
        except BaseException as error:
            _remove_all(planner)
            self._on_error(args[0] if args else None, error)
            raise

    def remove_from(self, planner: Any) -> None:
        """Gives the planner its method back."""
        if self._before is None:
            delattr(planner, self._name)
        else:
            setattr(planner, self._name, self._before)


def guard(planner: Any, names: Sequence[str], on_error: _OnError) -> None:
    """Calls on_error(the first argument, the error) if the next call of one of these methods of a planner fails.

    It replaces the guards of an earlier save. No-op for an object without attributes of its own.
    """
    if not hasattr(planner, "__dict__"):
        return
    _remove_all(planner)
    for name in names:
        setattr(planner, name, _Guard(planner, name, on_error))


def _remove_all(planner: Any) -> None:
    for found in [value for value in vars(planner).values() if isinstance(value, _Guard)]:
        found.remove_from(planner)
