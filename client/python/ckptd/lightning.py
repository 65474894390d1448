"""Lightning's checkpoints through ckptd: training goes on after one copy, and what is written is whole or not there.

    trainer = Trainer(plugins=[ckptd.lightning.CheckpointIO()], callbacks=[ModelCheckpoint("/data/ckpts")])

For strategies whose rank 0 saves the whole state, such as DDP. docs/dcp.md has what is different.
"""

import contextlib
import importlib
import logging
import os
import shutil
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Set

from ckptd._checkpoint_paths import has_manifest, warn_unverified
from ckptd._node_process import Place, Process, await_sealed, place_of
from ckptd.retention import Keep, keep_of_arguments

__all__ = ["CheckpointIO"]

_log = logging.getLogger("ckptd")
_FILE = "checkpoint.ckpt"
_ADMISSION_SECONDS = 120.0

# One distribution has both names; a plugin must be of the one that the job uses.
_name = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
_io: Any = importlib.import_module(f"{_name}.plugins.io")

process = Process("lightning")
_lock = threading.RLock()  # For the unwanted checkpoints and links of all plugins: commits are reported in another thread.


class CheckpointIO(_io.TorchCheckpointIO):  # type: ignore[misc]
    """Saves and loads Lightning's checkpoints through ckptd.

    A checkpoint is a directory with the name that Lightning gives it, with the file ``checkpoint.ckpt`` as
    ``torch.save`` writes it. A save returns after one copy; the end of ``fit()`` waits until all are committed.
    What Lightning itself has saved is loaded and removed as before.

    Args:
        num_kept_ckpts (int, optional): how many checkpoints of a folder to keep, beside what ``ModelCheckpoint``
            removes. Default: all
        retention (Keep, optional): which ones to keep; not beside ``num_kept_ckpts``. Default: all
        timeout (float): seconds to wait for room. Default: 120
    """

    def __init__(
        self,
        *,
        num_kept_ckpts: Optional[int] = None,
        retention: Optional[Keep] = None,
        timeout: float = _ADMISSION_SECONDS,
    ) -> None:
        super().__init__()
        self._keep = keep_of_arguments(retention, num_kept_ckpts)
        self._timeout = timeout
        self._unwanted: List[Place] = []  # Removed as soon as newer ones are committed.
        self._links: Dict[str, str] = {}  # What will be a link to a checkpoint, and the path of that, which is in flight.
        self._settled: Set[str] = set()  # Roots in which the saves of earlier launches have ended.
        _replace_methods()

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Saves a checkpoint; returns when it is copied. Its values may change then."""
        if storage_options is not None:
            raise TypeError("storage_options are for remote files, and ckptd saves to this machine: leave them out")
        place = place_of(path)
        with _lock:
            self._unwanted = [other for other in self._unwanted if other != place]
        run = process.run(place.root, 0, 1)
        run.retention = self._keep
        save = run.save(
            place.tag, files={_FILE: checkpoint}, step=checkpoint.get("global_step"), timeout=self._timeout
        )
        process.add(place, save)
        save.future("committed").add_done_callback(lambda _: self._update_links())
        self._remove_unwanted()

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: Optional[bool] = None) -> Any:
        """Loads a checkpoint, and verifies every byte; what Lightning itself has saved unverified, with a warning."""
        place = place_of(path)
        opened = process.open(place, use_daemon=False)
        if opened is None:
            warn_unverified(place.path)
            return super().load_checkpoint(_file_in(place), map_location=map_location, weights_only=weights_only)
        with opened as checkpoint:
            return checkpoint.load(_FILE, map_location=map_location, weights_only=weights_only is not False)

    def remove_checkpoint(self, path: Any) -> None:
        """Removes a checkpoint, not before those that were saved after it are committed."""
        place = place_of(path)
        with _lock:
            is_link = self._links.pop(place.path, None) is not None or os.path.islink(place.path)
        if is_link:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.path)
            return
        if os.path.lexists(place.path) and not has_manifest(place.path):
            super().remove_checkpoint(path)
            return
        with _lock:
            self._unwanted.append(place)
        self._remove_unwanted()

    def teardown(self) -> None:
        """Waits until all saves have ended, and then removes what was to be removed."""
        process.await_all(time.monotonic() + process.settings.timeout)
        self._update_links()
        self._remove_unwanted()

    def exists(self, path: Any) -> bool:
        """Returns whether a checkpoint has a name, on the disk or in a save that is in flight, also of an earlier launch."""
        place = place_of(path)
        if place.root not in self._settled:
            self._settled.add(place.root)
            run = process.run(place.root, 0, 1) if os.path.isdir(os.path.join(place.root, ".ckptd")) else None
            if run is not None:
                await_sealed(run, process.settings.timeout)
        with _lock:
            if place in self._unwanted:
                return False
            return place.path in self._links or process.is_saving_to(place) or os.path.lexists(place.path)

    def link(self, path: str, linkpath: str) -> None:
        """Makes a link to a checkpoint: now if it is committed, else when it is, so that the link never leads to nothing.

        Until then what is there stays. If nothing is there that can be loaded, it waits for the commit.
        """
        place = place_of(path)
        with _lock:
            self._links[os.path.abspath(linkpath)] = place.path
        if not os.path.exists(linkpath) or (os.path.isdir(linkpath) and not os.path.islink(linkpath)):
            process.await_place(place)
        self._update_links()

    def _update_links(self) -> None:
        """Makes the links to those checkpoints that are no longer in flight; not to those that have failed."""
        with _lock:
            for linkpath, path in list(self._links.items()):
                if process.is_saving_to(place_of(path)):
                    continue
                del self._links[linkpath]
                if not os.path.exists(path):
                    _log.warning("ckptd: %s is not a checkpoint, so %s stays as it is", path, linkpath)
                    continue
                if os.path.isdir(linkpath) and not os.path.islink(linkpath):
                    shutil.rmtree(linkpath)  # As Lightning does.
                temporary = f"{linkpath}.{os.getpid()}.new"
                os.symlink(os.path.relpath(path, os.path.dirname(linkpath)), temporary)
                os.replace(temporary, linkpath)

    def _remove_unwanted(self) -> None:
        with _lock:
            unwanted, self._unwanted = self._unwanted, []
            linked = {os.path.realpath(linkpath) for linkpath in self._links}  # Where they lead to until they are replaced.
        kept = [
            place
            for place in unwanted
            if os.path.realpath(place.path) in linked or process.is_saving(place.root) or not process.delete(place)
        ]
        with _lock:
            self._unwanted += kept


def _file_in(place: Place) -> str:
    """Returns the file to load of what has no manifest: a file of Lightning, or the one in a copied directory."""
    inside = os.path.join(place.path, _FILE)
    return inside if os.path.isfile(inside) else place.path


# ---- the methods of Lightning that look at the disk for what may be in flight. They do as before without this plugin.

_stock: Dict[str, Any] = {}


def _replace_methods() -> None:
    """Replaces them, once."""
    callback = importlib.import_module(f"{_name}.callbacks").ModelCheckpoint
    trainer = importlib.import_module(_name).Trainer
    for kind, name, method in (
        (callback, "file_exists", _file_exists),
        (callback, "_link_checkpoint", staticmethod(_link_checkpoint)),
        (trainer, "save_checkpoint", _save_checkpoint),
    ):
        if name in _stock:
            continue
        if not callable(getattr(kind, name, None)):
            raise RuntimeError(
                f"this version of Lightning has no {kind.__name__}.{name}: ckptd.lightning was tested with 2.6.6; leave the plugin "
                "out, or install that"
            )
        _stock[name] = getattr(kind, name)
        setattr(kind, name, method)


def _file_exists(callback: Any, filepath: Any, trainer: Any) -> bool:
    plugin = _plugin_of(trainer)
    if plugin is None:
        return bool(_stock["file_exists"](callback, filepath, trainer))
    return bool(trainer.strategy.reduce_boolean_decision(trainer.is_global_zero and plugin.exists(filepath), all=False))


def _link_checkpoint(trainer: Any, filepath: str, linkpath: str) -> None:
    plugin = _plugin_of(trainer)
    if plugin is None:
        _stock["_link_checkpoint"](trainer, filepath, linkpath)
        return
    if trainer.is_global_zero and os.path.abspath(filepath) != os.path.abspath(linkpath):
        plugin.link(filepath, linkpath)
    trainer.strategy.barrier()


def _save_checkpoint(trainer: Any, filepath: Any, *args: Any, **options: Any) -> None:
    """Stands for Trainer.save_checkpoint: outside of fit() nothing waits for the save later."""
    _stock["save_checkpoint"](trainer, filepath, *args, **options)
    if _plugin_of(trainer) is not None and trainer.is_global_zero and trainer.state.status != "running":
        process.await_place(place_of(filepath))


def _plugin_of(trainer: Any) -> Optional[CheckpointIO]:
    """Returns the plugin of a trainer, which may be wrapped in others."""
    found: Any = trainer.strategy.checkpoint_io
    while found is not None and not isinstance(found, CheckpointIO):
        found = getattr(found, "checkpoint_io", None)
    return found
