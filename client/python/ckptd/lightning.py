"""Lightning's checkpoints through ckptd: training goes on after one copy, and what is written is whole or not there.

    trainer = Trainer(plugins=[ckptd.lightning.CheckpointIO()], callbacks=[ModelCheckpoint("/data/ckpts")])

For strategies whose rank 0 saves the whole state, such as DDP. docs/dcp.md has what is different.
"""

import importlib
import os
import sys
import time
from typing import Any, List, Optional

from ckptd._checkpoint_paths import has_manifest, warn_unverified
from ckptd._node_process import Place, Process, place_of
from ckptd.retention import Keep, keep_of_arguments

__all__ = ["CheckpointIO"]

_FILE = "checkpoint.ckpt"
_ADMISSION_SECONDS = 120.0

# One distribution has both names; a plugin must be of the one that the job uses.
_name = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
_io: Any = importlib.import_module(f"{_name}.plugins.io")

process = Process("lightning")


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

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Saves a checkpoint; returns when it is copied. Its values may change then."""
        if storage_options is not None:
            raise TypeError("storage_options are for remote files, and ckptd saves to this machine: leave them out")
        place = place_of(path)
        self._unwanted = [other for other in self._unwanted if other != place]
        run = process.run(place.root, 0, 1)
        run.retention = self._keep
        save = run.save(
            place.tag, files={_FILE: checkpoint}, step=checkpoint.get("global_step"), timeout=self._timeout
        )
        process.add(place, save)
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
        if os.path.lexists(place.path) and not has_manifest(place.path):
            super().remove_checkpoint(path)
            return
        self._unwanted.append(place)
        self._remove_unwanted()

    def teardown(self) -> None:
        """Waits until all saves have ended, and then removes what was to be removed."""
        process.await_all(time.monotonic() + process.settings.timeout)
        self._remove_unwanted()

    def _remove_unwanted(self) -> None:
        unwanted, self._unwanted = self._unwanted, []
        for place in unwanted:
            if process.is_saving(place.root) or not process.delete(place):
                self._unwanted.append(place)


def _file_in(place: Place) -> str:
    """Returns the file to load of what has no manifest: a file of Lightning, or the one in a copied directory."""
    inside = os.path.join(place.path, _FILE)
    return inside if os.path.isfile(inside) else place.path
