"""The methods of DeepSpeed's engine that this package replaces.

Engines with another checkpoint engine are served as before.
"""

import abc
import importlib
import inspect
from typing import Any, Callable, Dict, List, Optional, Tuple

from ckptd._patches import Patches, with_stock
from ckptd.deepspeed import _scripts
from ckptd.deepspeed._waiting import await_saves


class HookedEngine(abc.ABC):
    """A checkpoint engine that the replaced methods call."""

    @abc.abstractmethod
    def begin_save(self, config: Any, save_dir: str, save_latest: bool, step: Optional[int]) -> str:
        """save_checkpoint() begins. Returns the directory that DeepSpeed is to save to."""

    @abc.abstractmethod
    def end_save(self, error: Optional[BaseException]) -> None:
        """save_checkpoint() has returned, or failed."""

    @abc.abstractmethod
    def load_checkpoint(self, engine: Any, stock: Callable[..., Any], asked: inspect.BoundArguments) -> Any:
        """Does what load_checkpoint() is asked for. stock: DeepSpeed's own method."""

    @abc.abstractmethod
    def model_files(self) -> List[str]:
        """Returns the paths of the files of the model's state that are to be loaded; empty: DeepSpeed finds them."""

    @abc.abstractmethod
    def whole_weights(self, engine: Any) -> Optional[Dict[str, Any]]:
        """Returns the weights of the whole model, at stage 3, that load_checkpoint() is to load; None: DeepSpeed finds them."""


_patches = Patches()
_WEIGHTS = "get_fp32_state_dict_from_zero_checkpoint"  # A function, not a method: it does not know its engine.
_loading: Optional[Tuple["HookedEngine", Any]] = None  # The engine whose load_checkpoint() runs.
_make: Optional[Callable[[Any], Any]] = None  # Makes the checkpoint engine of each new engine.


def prepare() -> None:
    """Replaces the methods. No-op if that has been done. ImportError if DeepSpeed cannot be imported."""
    if _patches:
        return
    module = importlib.import_module("deepspeed.runtime.engine")
    kind = module.DeepSpeedEngine
    for ours in (_configure_checkpointing, save_checkpoint, load_checkpoint, _copy_recovery_script, _get_all_ckpt_names):
        _patches.wrap(kind, ours.__name__, ours)
    stock = getattr(module, _WEIGHTS)
    _patches.wrap(module, _WEIGHTS, _whole_weights)
    # zero_to_fp32's other functions call it by its name there. Programs may have imported it from there before.
    _patches.replace_everywhere({stock: with_stock(_recover_weights, stock)})


def set_maker(make: Optional[Callable[[Any], Any]]) -> None:
    """Has each new engine get what `make` returns for its configuration; None: DeepSpeed's own choice."""
    global _make
    _make = make


def _configure_checkpointing(stock: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for DeepSpeed's method that chooses the checkpoint engine."""
    ours = _make(engine._config) if _make is not None else None
    result = stock(engine, *args, **kwargs)
    if ours is not None:
        engine.checkpoint_engine = ours
    return result


def save_checkpoint(stock: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for DeepSpeedEngine.save_checkpoint."""
    ours = _ours(engine)
    if ours is None:
        return stock(engine, *args, **kwargs)
    asked = inspect.signature(stock).bind(engine, *args, **kwargs)
    asked.apply_defaults()
    save_latest = asked.arguments["save_latest"]
    if not _has_commit_info():
        asked.arguments["save_latest"] = False  # Releases before 0.17 would write it before the commit.
    save_dir = ours.begin_save(engine._config, asked.arguments["save_dir"], save_latest, engine.global_steps)
    asked.arguments["save_dir"] = save_dir
    try:
        result = stock(*asked.args, **asked.kwargs)
    except BaseException as error:
        ours.end_save(error)
        raise
    ours.end_save(None)
    return result


def _copy_recovery_script(stock: Any, engine: Any, save_dir: str, *args: Any, **kwargs: Any) -> None:
    """Stands for DeepSpeed's method that writes its recovery scripts during each save.

    Those that are there already stay: writing them may wait for the file system's journal, in which the daemon makes the
    checkpoint's directory and allocates its files at that time.
    """
    if _ours(engine) is None or not _scripts.are_current(importlib.import_module("deepspeed.utils"), save_dir):
        stock(engine, save_dir, *args, **kwargs)


def load_checkpoint(stock: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for DeepSpeedEngine.load_checkpoint."""
    ours = _ours(engine)
    if ours is None:
        return stock(engine, *args, **kwargs)
    asked = inspect.signature(stock).bind(engine, *args, **kwargs)
    asked.apply_defaults()
    global _loading
    _loading = ours, engine
    try:
        return ours.load_checkpoint(engine, stock, asked)
    finally:
        _loading = None


def _whole_weights(stock: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for the function by which load_checkpoint() reads the weights of stage 3 without the optimizer's state."""
    weights = _loading[0].whole_weights(_loading[1]) if _loading is not None else None
    return stock(*args, **kwargs) if weights is None else weights


def _recover_weights(stock: Any, checkpoint_dir: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for the same function elsewhere: waits until the checkpoint, and ``latest``, are there."""
    await_saves(checkpoint_dir)
    return stock(checkpoint_dir, *args, **kwargs)


def _get_all_ckpt_names(stock: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for DeepSpeed's method that finds the files of the model's state, by tensor-parallel rank."""
    ours = _ours(engine)
    chosen = ours.model_files() if ours is not None else []
    return chosen or stock(engine, *args, **kwargs)


def _ours(engine: Any) -> Optional[HookedEngine]:
    ours = engine.checkpoint_engine
    return ours if isinstance(ours, HookedEngine) else None


def _has_commit_info() -> bool:
    """Returns whether this release lets a checkpoint engine keep it from writing `latest`."""
    package = importlib.import_module("deepspeed.runtime.checkpoint_engine.checkpoint_engine")
    return hasattr(package.CheckpointEngine, "is_decoupled")
