"""Lightning's checkpoints through ckptd: training goes on after one copy, and what is written is whole or not there.

    trainer = Trainer(plugins=[ckptd.lightning.CheckpointIO()], callbacks=[ModelCheckpoint("/data/ckpts")])

For strategies whose rank 0 saves the whole state, such as DDP. docs/lightning.md has what is different.
"""

import concurrent.futures
import contextlib
import importlib
import logging
import os
import sys
import threading
import time
from typing import Any, Dict, List, Literal, NamedTuple, Optional, Set

import torch

from ckptd import errors
from ckptd._adapters import bucket, lightning_files
from ckptd._adapters.lightning_files import CheckpointFile, local_path
from ckptd._adapters.node_process import ADMISSION_SECONDS, Place, Process, await_sealed, has_ended, place_of
from ckptd._adapters.ranks import from_first_rank
from ckptd._adapters.removal import await_removal
from ckptd._checkpoint_paths import has_manifest, warn_unverified
from ckptd._patches import Patches
from ckptd._paths import check_folder
from ckptd._saving.file_values import Torch
from ckptd._saving.save import Save
from ckptd._saving.save_options import StageName, check_stage
from ckptd.restore import open_root
from ckptd.retention import Keep, keep_of_arguments

__all__ = ["CheckpointIO", "configure"]

_log = logging.getLogger("ckptd")
_OLD_FILE = "checkpoint.ckpt"  # The file in a checkpoint that an older version of ckptd has saved as a directory.
_MAX_FAILURES = 100  # The same as in Run.failures().
_HPC = "hpc_ckpt_"  # Begins the names of checkpoints after which Lightning asks SLURM to end the job.

# Lightning is published under two names, with the same classes in each. The plugin is built on either, and registers with the
# one that the Trainer is of (_replace_methods), which may be imported later.
_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _import_base() -> Any:
    loaded = [name for name in _NAMES if name in sys.modules]
    for name in [*loaded, *_NAMES]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f"{name}.plugins.io")
    raise ImportError("ckptd.lightning needs Lightning: install lightning or pytorch-lightning")


_io: Any = _import_base()

process = Process("lightning")
configure = process.configure  # See Process.configure.
_lock = threading.RLock()  # Guards the plugins' lists of saves, removals and links: commits are reported in another thread.
_publishing = threading.RLock()  # Taken before _lock: a file is published, and so synced, without that, which saves wait for.


class _Saving:
    """A save that the plugin has begun, until the file is there or the save has failed."""

    def __init__(self, file: CheckpointFile, save: Optional[Save], error: Optional[BaseException] = None) -> None:
        """save: None if it could not begin."""
        self.file = file
        self.error = error  # Why it has failed; None while it is in flight.
        self._save = save
        self._committed: Optional["concurrent.futures.Future[Save]"] = save.future("committed") if save else None

    def call_at_end(self, function: Any) -> None:
        if self._committed is not None:
            self._committed.add_done_callback(lambda _: function())

    def wait(self, deadline: float) -> None:
        """Waits until the save has ended, one way or the other, at most until a time.monotonic()."""
        if self._save is not None:
            process.await_saves([self._save], deadline)

    def has_ended(self) -> bool:
        return self._save is None or self._committed is None or self._committed.done() or has_ended(self._save)

    def publish(self, may_be_gone: bool) -> None:
        """Makes the file of a committed save. Sets the error of one that has failed.

        may_be_gone: retention, or a later save of the file, may have removed the checkpoint.
        """
        if self._save is None:
            return
        try:
            self._save.wait("committed", 0.0)
            lightning_files.link(self.file)
        except errors.CkptdError as error:
            self.error = error
        except OSError as error:
            if may_be_gone and not os.path.lexists(self.file.data):
                _log.debug("ckptd: %s has been removed already", self.file.data)
                return
            self.error = errors.CheckpointFailed(
                f"{self.file.path} is committed as {self.file.data}, and cannot be linked from there: {error}; the next "
                "fit() that saves there tries again",
                reason="SAVE_ABORTED",
                tag=self.file.tag,
            )


class _Removal(NamedTuple):
    """A checkpoint that ModelCheckpoint has removed, and the save that took its place."""

    file: CheckpointFile
    successor: Optional[_Saving]


class CheckpointIO(_io.TorchCheckpointIO):  # type: ignore[misc]
    """Saves and loads Lightning's checkpoints through ckptd.

    A checkpoint is the file that Lightning names, as ``torch.save`` writes it, and is there when it is whole and durable. A
    save returns after one copy; the end of ``fit()`` waits until all are committed, and :meth:`wait` waits within it.
    The file is a hard link to the one in a directory that ckptd commits, in ``.ckptd-lightning`` beside it.
    What Lightning itself has saved is loaded, replaced and removed as before.

    Args:
        num_kept_ckpts (int, optional): how many checkpoints of a folder to keep, beside what ``ModelCheckpoint``
            removes. Default: all
        retention (Keep, optional): which ones to keep; not beside ``num_kept_ckpts``. Default: all
        timeout (float): seconds to wait for room. Default: 120
        stage (str): as in :meth:`ckptd.Run.save`: ``"overlap"`` copies from a GPU beside the next forward and backward
            pass. Default: ``"blocking"``
        on_failure (str): what a failed save does. ``"raise"``: one that cannot begin raises at once, and one that fails
            later raises from the next save, which is made before, or from the end of ``fit()``. ``"warn"``: training goes
            on, and the failure is logged at once, at the next save and at the end of ``fit()``, with how many there were.
            Default: ``"raise"``

    Raises:
        ValueError: ``on_failure`` or ``stage`` is another one, or both ``num_kept_ckpts`` and ``retention`` are given.
    """

    def __init__(
        self,
        *,
        num_kept_ckpts: Optional[int] = None,
        retention: Optional[Keep] = None,
        timeout: float = ADMISSION_SECONDS,
        stage: StageName = "blocking",
        on_failure: "Literal['raise', 'warn']" = "raise",
    ) -> None:
        super().__init__()
        if on_failure not in ("raise", "warn"):
            raise ValueError(f'on_failure is "{on_failure}"; it must be "raise" or "warn"')
        self._keep = keep_of_arguments(retention, num_kept_ckpts)
        self._timeout = timeout
        self._stage = check_stage(stage)
        self.raises = on_failure == "raise"  # Read by the replacements of Lightning's methods below.
        self._folders: List[str] = []  # The folders of the Trainer's ModelCheckpoints.
        self._in_flight: List[_Saving] = []
        self._newest: Dict[str, _Saving] = {}  # The last save of each root.
        self._removals: List[_Removal] = []  # Carried out when the saves in their places are committed.
        self._links: Dict[str, List[str]] = {}  # Path of a link -> the checkpoints in flight that it will lead to, one after the other.
        self._prepared: Set[str] = set()  # Folders in which the saves of earlier launches have ended.
        self._num_saves = 0  # In this fit().
        self._num_failed = 0
        self._failed: List[_Saving] = []
        self._untold: List[_Saving] = []  # Those that have failed since the last save, wait() or end of fit().
        _replace_methods()

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Saves a checkpoint; returns when it is copied. Its values may change then.

        Raises:
            ckptd.CkptdError: it, or an earlier one, has failed; not with ``on_failure="warn"``.
        """
        if storage_options is not None:
            raise TypeError("storage_options are for remote files, and ckptd saves to this machine: leave them out")
        file = self._file(path)
        self._warn_of_failures(list(self._untold))
        with _lock:
            # A removal or a link that was to come is of the file that this save replaces.
            self._removals = [removal for removal in self._removals if removal.file != file]
            self._links.pop(file.path, None)
            lightning_files.unmark_removed(file)
        self._num_saves += 1
        try:
            saving = _Saving(file, self._begin(file, checkpoint))
        except (errors.CkptdError, OSError) as error:
            saving = _Saving(file, None, error)
        with _lock:
            self._newest[file.root] = saving
            self._in_flight.append(saving)
        saving.call_at_end(self._settle)  # After it is listed: the save may have ended already, and this calls at once.
        if saving.error is not None:
            self._settle()
        self._remove()
        if self.raises:
            self._raise_failure(file=None)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: Optional[bool] = None) -> Any:
        """Loads a checkpoint, and verifies every byte; a copy, and what another program has saved, with a warning unverified."""
        trust = process.settings.trust
        weights_only = weights_only if weights_only is not None or trust.weights_only else False
        if _is_remote(path):
            return super().load_checkpoint(path, map_location=map_location, weights_only=weights_only)
        path = local_path(path)
        self._await_file(path)
        if not os.path.lexists(path):
            self.fetch(self._file(path).folder)
        name, place, use_daemon = _OLD_FILE, place_of(path), True
        if not os.path.isdir(path):
            file: Optional[CheckpointFile] = self._file(os.path.realpath(path))
            assert file is not None
            self.repair(file.folder, file.tag)
            if os.path.lexists(path):  # Else it may be one that this user must not link.
                file = lightning_files.find_linked(path)
            if file is not None:
                name, place, use_daemon = file.name, Place(file.root, file.tag), lightning_files.is_unchanged(file)
        opened = process.open(place, use_daemon, as_rank=False)
        if opened is None:
            warn_unverified(path)
            inside = os.path.join(path, _OLD_FILE)
            path = inside if os.path.isfile(inside) else path
            with torch.serialization.safe_globals(list(trust.safe_globals)):
                return super().load_checkpoint(path, map_location=map_location, weights_only=weights_only)
        with opened as checkpoint:
            try:
                return checkpoint.load(name, map_location, weights_only is not False, trust.safe_globals)
            except errors.Corrupt as error:
                if use_daemon:
                    raise
                raise errors.Corrupt(
                    f"{error.args[0]}; if a program has written to {path} on purpose, copy the file and load the copy",
                    reason=error.reason,
                    tag=error.tag,
                    **error.details,
                ) from error

    def remove_checkpoint(self, path: Any) -> None:
        """Removes a checkpoint, not before the one that was saved last is committed. If that fails, it stays."""
        if _is_remote(path):
            super().remove_checkpoint(path)
            return
        file = self._file(path)
        with _lock:
            is_ours = self._is_in_flight(file.path) or lightning_files.is_linked(file) or _is_old(file)
            is_link = self._links.pop(file.path, None) is not None or os.path.islink(file.path)
            if is_ours:
                self._removals.append(_Removal(file, self._newest.get(file.root)))
                self._mark(self._removals[-1])
            elif is_link:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file.path)
        if not is_ours and not is_link:
            super().remove_checkpoint(file.path)
        self._remove()

    def wait(self, path: Any = None, timeout: Optional[float] = None) -> None:
        """Waits until the saves that have begun are committed, and their files are there.

        Args:
            path (str or os.PathLike, optional): only those of this file. Default: all
            timeout (float, optional): seconds to wait. Default: that of :func:`configure`, an hour

        Raises:
            ckptd.CkptdError: one has failed, also before the call if no save and no wait has raised its error.
            ckptd.WaitTimeout: one has not ended. It goes on.
        """
        only = None if path is None else self._file(path)
        with _lock:
            savings = [saving for saving in self._in_flight if only in (None, saving.file)]
        deadline = time.monotonic() + (process.settings.timeout if timeout is None else timeout)
        for saving in savings:
            saving.wait(deadline)
        self._settle()
        for saving in savings:
            if not saving.has_ended():
                raise errors.WaitTimeout(
                    f"the save of {saving.file.path} has not ended; it goes on: wait again, or longer",
                    reason="WAIT_TIMEOUT",
                    tag=saving.file.tag,
                )
        self._remove()
        self._raise_failure(only)

    def failures(self) -> List[BaseException]:
        """Returns the errors of saves that did not become checkpoints, oldest first; the last 100."""
        with _lock:
            return [saving.error for saving in self._failed if saving.error is not None]

    def teardown(self) -> None:
        """Waits until all saves have ended, removes what was to be removed, and disconnects from the daemon."""
        process.await_all(time.monotonic() + process.settings.timeout)
        self._settle()
        if self._keep is not None:
            for saving in self._newest.values():
                with contextlib.suppress(errors.CkptdError):
                    await_removal(process.run(saving.file.root, 0, 1))
        self._remove()  # Needs the daemon, and so comes before close().
        process.close()
        self._folders, self._prepared, self._newest = [], set(), {}
        self._warn_of_failures(self._failed[-1:] if self._num_failed else [])
        self._num_saves = self._num_failed = 0

    def set_up(self, callback: Any, is_global_zero: bool) -> None:
        """Looks at the names of a ModelCheckpoint before training begins, on every rank, and at its folder, on rank 0.

        Raises:
            ckptd.Refused: they are not possible.
        """
        folder = local_path(callback.dirpath)
        self._folders.append(folder)
        for path in _names_of(callback):
            lightning_files.check_name(self._file(path))
        if is_global_zero:
            if callback.save_top_k != 0 or callback.save_last:
                check_folder(folder, "the dirpath of ModelCheckpoint")
            self._prepare(folder)

    def remove_leftovers(self, resumed: Any) -> None:
        """Removes what ModelCheckpoint has removed in earlier launches that were killed before it was gone. Rank 0 calls it.

        resumed: the checkpoint from which training goes on, which stays; None without one.
        """
        stays = os.path.realpath(local_path(resumed)) if resumed and not _is_remote(resumed) else ""
        with _lock:
            for folder in self._folders:
                due = [file for file in lightning_files.due_removals(folder) if file.path != stays]
                self._removals += [_Removal(file, None) for file in due]
        self._remove()

    def exists(self, path: Any) -> bool:
        """Returns whether a checkpoint has a name, on the disk or in a save that is in flight, also of an earlier launch."""
        file = self._file(path)
        self._prepare(file.folder)
        with _lock:
            if any(removal.file == file for removal in self._removals):
                return False
            return file.path in self._links or self._is_in_flight(file.path) or os.path.lexists(file.path)

    def link(self, path: str, linkpath: str) -> None:
        """Makes a link to a checkpoint: now if it is committed, else when it is, so that the link never leads to nothing.

        Until then what is there stays. If nothing is there that can be loaded, it waits for the commit.
        """
        path, linkpath = local_path(path), local_path(linkpath)
        with _lock:
            self._links.setdefault(linkpath, []).append(path)
        if not os.path.exists(linkpath) or (os.path.isdir(linkpath) and not os.path.islink(linkpath)):
            self._await_file(path)
        with _lock:
            self._update_links()

    def fetch(self, folder: str) -> None:
        """Brings the newest checkpoint of the bucket into a folder, if it is newer than all there. All ranks call it: rank 0,
        which saves, asks for it. No-op without a bucket.

        Raises:
            ckptd.CkptdError: the bucket does not answer, on all ranks.
        """
        if bucket.is_resumed_from(process.settings.upload):
            root = os.path.join(folder, lightning_files.ROOT)
            from_first_rank(lambda: process.fetch(root, 0, 1), error_elsewhere=lambda error: error)

    def newest(self, folder: str) -> Optional[str]:
        """Returns the file of the newest checkpoint of a folder; None if there is none."""
        root = os.path.join(folder, lightning_files.ROOT)
        info = open_root(root).latest() if os.path.isdir(root) else None
        return None if info is None else lightning_files.path_of_tag(folder, info.tag)

    def repair(self, folder: str, tag: Optional[str] = None) -> None:
        """Makes the links of a folder that a crash of an earlier launch has prevented, as far as this user may. Any rank
        calls it, before it reads.

        tag: wait only for what earlier launches have sealed of this one.
        """
        root = os.path.join(folder, lightning_files.ROOT)
        if not os.path.isdir(os.path.join(root, ".ckptd")):
            return
        reader = process.run_to_read(root, as_rank=False)
        try:
            if reader is not None:
                await_sealed(reader, process.settings.timeout, tag)
            with _lock:
                lightning_files.repair(folder)
        except (errors.CkptdError, OSError) as error:
            _log.info("ckptd: %s is read as it is: %s", folder, error)

    # ---- saves in flight

    def _file(self, path: Any) -> CheckpointFile:
        return lightning_files.locate(local_path(path), self._folders)

    def _begin(self, file: CheckpointFile, checkpoint: Any) -> Save:
        lightning_files.check_replaceable(file)
        lightning_files.check_name(file)
        os.makedirs(file.root, exist_ok=True)
        run = process.run(file.root, 0, 1)
        run.retention = self._keep
        files = {file.name: Torch(checkpoint)}
        save = run.save(file.tag, files=files, step=checkpoint.get("global_step"), timeout=self._timeout, stage=self._stage)
        process.add(Place(file.root, file.tag), save)
        return save

    def _prepare(self, folder: str) -> None:
        """Waits, once, for the saves of earlier launches, and repairs their links. Rank 0 calls it."""
        root = os.path.join(folder, lightning_files.ROOT)
        if folder in self._prepared:
            return
        self._prepared.add(folder)
        if not os.path.isdir(os.path.join(root, ".ckptd")):
            return
        try:
            await_sealed(process.run(root, 0, 1), process.settings.timeout)
            with _lock:
                self._removals += [_Removal(file, None) for file in lightning_files.repair(folder)]
        except (errors.CkptdError, OSError) as error:
            if self.raises:
                raise
            _log.warning("ckptd: the saves of earlier launches in %s are not known: %s", folder, error)

    def _is_in_flight(self, path: str) -> bool:
        return any(saving.file.path == path for saving in self._in_flight)

    def _await_file(self, path: str) -> None:
        with _lock:
            savings = [saving for saving in self._in_flight if saving.file.path in (path, os.path.realpath(path))]
        for saving in savings:
            saving.wait(time.monotonic() + process.settings.timeout)
        self._settle()

    def _settle(self) -> None:
        """Makes the files of saves that have been committed, and the links to those. The client's thread calls it, too,
        when a save has ended.
        """
        with _publishing:
            with _lock:
                ended = [saving for saving in self._in_flight if saving.has_ended()]
            for saving in ended:
                with _lock:
                    is_saved_again = [other.file for other in self._in_flight].count(saving.file) > 1
                saving.publish(may_be_gone=self._keep is not None or is_saved_again)
                with _lock:
                    if saving in self._in_flight:  # A signal handler may have been here meanwhile.
                        self._in_flight.remove(saving)
                        self._note_failure(saving)
            with _lock:
                self._update_links()

    def _note_failure(self, saving: _Saving) -> None:
        """Counts and logs a save that has failed; no-op for one that is committed."""
        if saving.error is None:
            return
        self._num_failed += 1
        self._failed = [*self._failed, saving][-_MAX_FAILURES:]
        self._untold.append(saving)
        _log.warning("ckptd: %s was not saved: %s", saving.file.path, saving.error)

    def _warn_of_failures(self, failed: List[_Saving]) -> None:
        if self.raises or not failed:
            return
        with _lock:
            self._untold = [saving for saving in self._untold if saving not in failed]
        text = "ckptd: %d of %d saves of this training have failed, the last one, of %s, with: %s"
        _log.warning(text, self._num_failed, self._num_saves, failed[-1].file.path, failed[-1].error)

    def _raise_failure(self, file: Optional[CheckpointFile]) -> None:
        """Raises the first error that no call has raised yet. file: only of this one; None for all."""
        with _lock:
            failed = [saving for saving in self._untold if file in (None, saving.file)]
            self._untold = [saving for saving in self._untold if saving not in failed]
        for saving in failed:
            if saving.error is not None:
                raise saving.error

    def _update_links(self) -> None:
        """Makes the links to those checkpoints that are no longer in flight; not to those that have failed.

        Other threads learn of commits, not always in their order: a link never goes back to an older checkpoint.
        """
        for linkpath, paths in list(self._links.items()):
            ended = [path for path in paths if not self._is_in_flight(path)]
            there = [number for number, path in enumerate(paths) if path in ended and os.path.exists(path)]
            newer = paths[there[-1] + 1 :] if there else paths
            self._links[linkpath] = [path for path in newer if path not in ended]
            if not self._links[linkpath]:
                del self._links[linkpath]
            if there:
                lightning_files.make_symbolic_link(paths[there[-1]], linkpath)
            elif ended:
                _log.warning("ckptd: %s is not a checkpoint, so %s stays as it is", ended[-1], linkpath)

    def _mark(self, removal: _Removal) -> None:
        """Notes a removal for the next launch, in case this one is killed before."""
        if not _is_old(removal.file):
            try:
                lightning_files.mark_removed(removal.file, removal.successor.file if removal.successor else None)
            except OSError as error:
                _log.info("ckptd: if this process is killed, %s stays: %s", removal.file.path, error)

    def _remove(self) -> None:
        """Carries out the removals for which the saves in their places have ended."""
        with _lock:
            linked = {os.path.realpath(linkpath) for linkpath in self._links}  # The present targets, until the links are replaced.
            due = [
                removal
                for removal in self._removals
                if removal.successor not in self._in_flight
                and not self._is_in_flight(removal.file.path)
                and os.path.realpath(removal.file.path) not in linked
            ]
            self._removals = [removal for removal in self._removals if removal not in due]
        for removal in due:
            successor = removal.successor
            if successor is not None and successor.error is not None and successor.file != removal.file:
                lightning_files.unmark_removed(removal.file)
                _log.warning("ckptd: %s stays, because %s was not saved", removal.file.path, successor.file.path)
            elif not _delete(removal.file):
                with _lock:
                    self._removals.append(removal)
        if self._keep is not None:
            with _lock:
                busy = {saving.file.tag for saving in self._in_flight}
                for saving in self._newest.values():
                    lightning_files.unlink_evicted(saving.file.folder, busy)


def _delete(file: CheckpointFile) -> bool:
    """Removes a checkpoint and its file. Returns False if the daemon still needs the checkpoint, or does not answer."""
    try:
        if _is_old(file):
            return process.delete(place_of(file.path))
        lightning_files.unlink(file)  # First: repair() then finds a checkpoint that nothing leads to.
        if not process.delete(Place(file.root, file.tag)):
            return False
        lightning_files.forget(file)
    except (errors.CkptdError, OSError) as error:
        _log.info("ckptd: %s is removed later: %s", file.path, error)
        return False
    return True


def _is_old(file: CheckpointFile) -> bool:
    """Returns whether an older version has saved a checkpoint as a directory of the file's name."""
    return not os.path.islink(file.path) and has_manifest(file.path)


def _is_remote(path: Any) -> bool:
    return "://" in os.fspath(path) and not os.fspath(path).startswith("file://")


def _names_of(callback: Any) -> List[str]:
    """Returns paths of the kind that a ModelCheckpoint will ask for, as far as they are known before training."""
    prefixes = [None, callback.CHECKPOINT_NAME_LAST] if callback.save_last else [None]
    try:
        return [callback.format_checkpoint_name({}, prefix) for prefix in prefixes]
    except Exception as error:  # A subclass may need the metrics of a real step.
        _log.debug("ckptd: the names of %s are not known before training: %s", type(callback).__name__, error)
        return []


# ---- the methods of Lightning that look at the disk for what may be in flight. They do as before without this plugin.

_patches = Patches()
_replaced: Set[str] = set()  # The names under which Lightning has the methods below.


def _replace_methods() -> None:
    """Replaces them, once for each name under which Lightning is imported, and makes the plugin one of its plugins."""
    for name in _NAMES:
        if name in sys.modules and name not in _replaced:
            _replace_methods_of(name)
            _replaced.add(name)


def _replace_methods_of(package: str) -> None:
    callback = importlib.import_module(f"{package}.callbacks").ModelCheckpoint
    trainer = importlib.import_module(package).Trainer
    importlib.import_module(f"{package}.plugins.io").CheckpointIO.register(CheckpointIO)
    replacements = (
        (callback, "file_exists", _file_exists),
        (callback, "_link_checkpoint", _link_checkpoint),
        (callback, "_find_last_checkpoints", _find_last_checkpoints),
        (callback, "setup", _set_up),
        (trainer, "save_checkpoint", _save_checkpoint),
        (trainer, "_run_stage", _run_stage),
    )
    for kind, name, _ in replacements:
        if not callable(getattr(kind, name, None)):
            raise RuntimeError(
                f"this version of Lightning has no {kind.__name__}.{name}: ckptd.lightning was tested with 2.6.6; leave the plugin "
                "out, or install that"
            )
    for kind, name, method in replacements:
        _patches.wrap(kind, name, method)


def _file_exists(stock: Any, callback: Any, filepath: Any, trainer: Any) -> bool:
    plugin = _plugin_of(trainer)
    if plugin is None:
        return bool(stock(callback, filepath, trainer))
    return bool(trainer.strategy.reduce_boolean_decision(trainer.is_global_zero and plugin.exists(filepath), all=False))


def _link_checkpoint(stock: Any, trainer: Any, filepath: str, linkpath: str) -> None:
    plugin = _plugin_of(trainer)
    if plugin is None:
        stock(trainer, filepath, linkpath)
        return
    if trainer.is_global_zero and os.path.abspath(filepath) != os.path.abspath(linkpath):
        plugin.link(filepath, linkpath)
    trainer.strategy.barrier()


def _find_last_checkpoints(stock: Any, callback: Any, trainer: Any) -> Any:
    """Stands for the method that looks on the disk for what ``ckpt_path="last"`` means, before the callback is set up."""
    plugin = _plugin_of(trainer)
    folder = callback._ModelCheckpoint__resolve_ckpt_dir(trainer)
    if plugin is None or _is_remote(folder):
        return stock(callback, trainer)
    folder = os.path.realpath(folder)
    has_bucket = bucket.is_resumed_from(process.settings.upload)
    if has_bucket:
        trainer.strategy.setup_environment()  # Now, and not a little later: the ranks tell each other. It may be called twice.
        plugin.fetch(folder)
    plugin.repair(folder)
    found = stock(callback, trainer)
    if not found and has_bucket and callback.save_last:
        # The bucket has no links, and perhaps only each n-th checkpoint.
        newest = plugin.newest(folder)
        found = {newest} if newest is not None else found
    return found


def _set_up(stock: Any, callback: Any, trainer: Any, module: Any, stage: str) -> None:
    stock(callback, trainer, module, stage)  # First: it sets the dirpath of a callback that has none.
    plugin = _plugin_of(trainer)
    stock_async = tuple(importlib.import_module(f"{package}.plugins.io").AsyncCheckpointIO for package in _replaced)
    if isinstance(trainer.strategy.checkpoint_io, stock_async) and plugin is not None:
        raise errors.invalid(
            "ckptd.lightning.CheckpointIO is in an AsyncCheckpointIO, which begins saves later, so that several would get one "
            "name: leave AsyncCheckpointIO out; a save through ckptd returns after one copy anyway"
        )
    if plugin is not None and stage == "fit" and not trainer.fast_dev_run:
        plugin.set_up(callback, trainer.is_global_zero)


def _save_checkpoint(stock: Any, trainer: Any, filepath: Any, *args: Any, **options: Any) -> None:
    """Stands for Trainer.save_checkpoint: outside of fit(), and before SLURM ends the job, nothing waits for the save later."""
    stock(trainer, filepath, *args, **options)
    if trainer.state.status != "running" or os.path.basename(filepath).startswith(_HPC):
        _await_files(trainer, filepath)


def _run_stage(stock: Any, trainer: Any) -> Any:
    """Stands for the method that trains, after the checkpoint to go on from has been loaded: its end waits for the saves."""
    plugin = _plugin_of(trainer)
    if plugin is not None and trainer.state.fn == "fit" and trainer.is_global_zero:
        plugin.remove_leftovers(trainer.ckpt_path)
    found = stock(trainer)
    if trainer.state.fn == "fit":
        _await_files(trainer)
    return found


def _await_files(trainer: Any, path: Any = None) -> None:
    """Returns on every rank when the files are there that rank 0 has saved, all or one. Raises on every rank if one has failed."""
    plugin = _plugin_of(trainer)
    if plugin is None:
        return
    failure: Optional[errors.CkptdError] = None
    if trainer.is_global_zero:
        try:
            plugin.wait(path)
        except errors.CkptdError as error:
            failure = error  # With on_failure="warn" it is in the log.
    # A collective: rank 0 takes part also after a failure, for which the others would wait otherwise.
    is_saved = trainer.strategy.reduce_boolean_decision(failure is None, all=True)
    if not is_saved and plugin.raises:
        raise failure or errors.CheckpointFailed("rank 0 could not save a checkpoint; its error says why", reason="SAVE_ABORTED")


def _plugin_of(trainer: Any) -> Optional[CheckpointIO]:
    """Returns the plugin of a trainer, which may be wrapped in others."""
    found: Any = trainer.strategy.checkpoint_io
    while found is not None and not isinstance(found, CheckpointIO):
        found = getattr(found, "checkpoint_io", None)
    return found
