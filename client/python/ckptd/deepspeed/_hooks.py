"""The methods of DeepSpeed's engine that this package replaces.

Engines with another checkpoint engine are served as before.
"""

import abc
import functools
import importlib
import inspect
from typing import Any, Callable, Dict, List, Optional

from ckptd.deepspeed import _scripts


class HookedEngine(abc.ABC):
    """A checkpoint engine that is told what the replaced methods are asked for."""

    @abc.abstractmethod
    def begin_save(self, config: Any, save_dir: str, save_latest: bool, step: Optional[int]) -> None:
        """save_checkpoint() begins."""

    @abc.abstractmethod
    def end_save(self, error: Optional[BaseException]) -> None:
        """save_checkpoint() has returned, or failed."""

    @abc.abstractmethod
    def load_checkpoint(self, engine: Any, stock: Callable[..., Any], asked: inspect.BoundArguments) -> Any:
        """Does what load_checkpoint() is asked for. stock: DeepSpeed's own method."""

    @abc.abstractmethod
    def model_files(self) -> List[str]:
        """Returns the paths of the files of the model's state that are to be loaded; empty: DeepSpeed finds them."""


_stock: Dict[str, Callable[..., Any]] = {}  # DeepSpeed's own methods, by name.
_make: Optional[Callable[[Any], Any]] = None  # Makes the checkpoint engine of each new engine.


def prepare() -> None:
    """Replaces the methods. No-op if that has been done. ImportError if DeepSpeed cannot be imported."""
    if _stock:
        return
    kind = importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine
    for ours in (_configure_checkpointing, save_checkpoint, load_checkpoint, _copy_recovery_script, _get_all_ckpt_names):
        stock = getattr(kind, ours.__name__)
        _stock[ours.__name__] = stock
        setattr(kind, ours.__name__, functools.wraps(stock)(ours))


def set_maker(make: Optional[Callable[[Any], Any]]) -> None:
    """Has each new engine get what `make` returns for its configuration; None: DeepSpeed's own choice."""
    global _make
    _make = make


def _configure_checkpointing(engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for DeepSpeed's method that chooses the checkpoint engine."""
    ours = _make(engine._config) if _make is not None else None
    result = _stock["_configure_checkpointing"](engine, *args, **kwargs)
    if ours is not None:
        engine.checkpoint_engine = ours
    return result


def save_checkpoint(engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for DeepSpeedEngine.save_checkpoint."""
    stock, ours = _stock["save_checkpoint"], _ours(engine)
    if ours is None:
        return stock(engine, *args, **kwargs)
    asked = inspect.signature(stock).bind(engine, *args, **kwargs)
    asked.apply_defaults()
    save_latest = asked.arguments["save_latest"]
    if not _has_commit_info():
        asked.arguments["save_latest"] = False  # Releases before 0.17 would write it before the commit.
    ours.begin_save(engine._config, asked.arguments["save_dir"], save_latest, engine.global_steps)
    try:
        result = stock(*asked.args, **asked.kwargs)
    except BaseException as error:
        ours.end_save(error)
        raise
    ours.end_save(None)
    return result


def _copy_recovery_script(engine: Any, save_dir: str, *args: Any, **kwargs: Any) -> None:
    """Stands for DeepSpeed's method that writes its recovery scripts during each save.

    Those that are there already stay: writing them may wait for the file system's journal, in which the daemon makes the
    checkpoint's directory and allocates its files at that time.
    """
    if _ours(engine) is None or not _scripts.are_current(importlib.import_module("deepspeed.utils"), save_dir):
        _stock["_copy_recovery_script"](engine, save_dir, *args, **kwargs)


def load_checkpoint(engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for DeepSpeedEngine.load_checkpoint."""
    stock, ours = _stock["load_checkpoint"], _ours(engine)
    if ours is None:
        return stock(engine, *args, **kwargs)
    asked = inspect.signature(stock).bind(engine, *args, **kwargs)
    asked.apply_defaults()
    return ours.load_checkpoint(engine, stock, asked)


def _get_all_ckpt_names(engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for DeepSpeed's method that finds the files of the model's state, by tensor-parallel rank."""
    ours = _ours(engine)
    chosen = ours.model_files() if ours is not None else []
    return chosen or _stock["_get_all_ckpt_names"](engine, *args, **kwargs)


def _ours(engine: Any) -> Optional[HookedEngine]:
    ours = engine.checkpoint_engine
    return ours if isinstance(ours, HookedEngine) else None


def _has_commit_info() -> bool:
    """Returns whether this release lets a checkpoint engine keep it from writing `latest`."""
    package = importlib.import_module("deepspeed.runtime.checkpoint_engine.checkpoint_engine")
    return hasattr(package.CheckpointEngine, "is_decoupled")
