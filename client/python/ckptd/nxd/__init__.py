"""NeuronX Distributed's checkpoint functions, through ckptd: the same signatures, the same files.

    import ckptd.nxd as nxd

    nxd.save_checkpoint("/data/ckpts", f"step_{step}", model, optimizer, scheduler, {"step": step}, async_save=True)
    user_content = nxd.load_checkpoint("/data/ckpts", model=model, optimizer=optimizer, scheduler=scheduler)

Where neuronx_distributed is installed, all its other names are available here, too. docs/nxd.md lists the
differences.
"""

import importlib
import logging
import os
from typing import Any, Mapping, Optional, Sequence, Union

from ckptd import errors
from ckptd._adapters import root_paths
from ckptd.nxd import _foreign, _install, _loading, _names, _parts, checkpointing
from ckptd.nxd._errors import NoCheckpoint, NoFile, NoTag
from ckptd.nxd._process import Job, Settings, process
from ckptd.nxd._sources import Committed, Foreign
from ckptd.nxd._topology import Topology, is_known
from ckptd.retention import Keep, keep_of_arguments
from ckptd.run import Run
from ckptd.uploads import Upload

__all__ = [
    "NoCheckpoint",
    "NoFile",
    "NoTag",
    "Topology",
    "checkpointing",
    "configure",
    "finalize_checkpoint",
    "has_checkpoint",
    "install",
    "load_checkpoint",
    "save_checkpoint",
    "uninstall",
]

_log = logging.getLogger("ckptd")
_Path = Union[str, "os.PathLike[str]"]


def configure(
    endpoint: Optional[str] = None,
    topology: Optional[Topology] = None,
    *,
    commit_timeout: float = 600.0,
    timeout: float = 3600.0,
    pool_bytes: Optional[int] = None,
    safe_globals: Sequence[Any] = (),
    weights_only: Optional[bool] = None,
    upload: Optional[Upload] = None,
    share_unchanged: bool = False,
) -> None:
    """Sets what NxD's functions have no parameters for. Call it on every rank, before the first save or load.

    A later call replaces all settings, after waiting for the save that is in flight.

    Args:
        endpoint (str, optional): the daemon's endpoint. Default: ``$CKPTD_ENDPOINT``, else the node's
            service, else a private daemon that all ranks of this user on this machine share
        topology (Topology, optional): this rank's coordinates. Default: NxD's, if it is initialised, else the
            process group as pure data parallelism
        commit_timeout (float): seconds from a save's first rank to its last. Default: 600
        timeout (float): seconds to wait for the disk after that. Default: 3600
        pool_bytes (int, optional): the most memory of a private daemon. Default: a quarter of this machine's
            memory
        safe_globals (Sequence): classes that files may hold, beside those of torch, and in user content and
            schedulers' states numpy's, ``argparse.Namespace`` and datetimes.
        weights_only (bool, optional): ``False`` allows all classes, which may run code, for files that you trust.
            Default: refuse others, which NxD would load
        upload (Upload, optional): the bucket to which the daemon copies the checkpoints, and from which this job goes
            on if the root has lost them, for a process that saves to one root. Default: none
        share_unchanged (bool): share files that have not changed since the newest checkpoint with it, as
            :meth:`ckptd.Client.run` does. Default: ``False``

    Raises:
        ValueError: a timeout is not more than 0 seconds.
    """
    errors.check_seconds(commit_timeout=commit_timeout, timeout=timeout)
    process.configure(
        Settings(
            endpoint, topology, commit_timeout, timeout, pool_bytes, tuple(safe_globals), weights_only, upload, share_unchanged
        )
    )


def save_checkpoint(
    checkpoint_dir_str: _Path,
    tag: str,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    user_content: Any = None,
    num_workers: int = 8,
    use_xser: bool = False,
    num_kept_ckpts: Optional[int] = None,
    async_save: bool = False,
    zero1_optimizer: bool = False,
    use_zero1_dcp: bool = False,
    avoid_saving_lower_precision_weights: bool = False,
    retention: Optional[Keep] = None,
    metrics: Optional[Mapping[str, float]] = None,
) -> None:
    """Saves a checkpoint. Every rank calls it with the same arguments.

    When it returns, everything has been copied, and may change.

    Args:
        checkpoint_dir_str (str or os.PathLike): the root: a directory, or ``s3://BUCKET/PREFIX`` for a run on one node.
        tag (str): the checkpoint's name. In a bucket one that has a checkpoint is refused (``TAG_TAKEN``).
        model, optimizer, scheduler, user_content: what to save, as in NxD.
        num_workers (int): accepted for compatibility and ignored.
        use_xser (bool): a file for each tensor, as in NxD. Default: ``False``
        num_kept_ckpts (int, optional): how many of ckptd's checkpoints to keep; ``None`` and -1 keep all.
        async_save (bool): return after the one copy. The checkpoint gets its ``done`` by itself when it is
            durable, even if all ranks have been killed by then. If it fails, the next :func:`save_checkpoint`
            or :func:`finalize_checkpoint` raises the error on every rank, and that save is not begun.
            Otherwise the call returns when the checkpoint is durable and published, and when those that
            ``num_kept_ckpts`` or ``retention`` no longer keeps are gone. Default: ``False``
        zero1_optimizer (bool): the optimizer is sharded by ZeRO-1; needed only where ``optimizer`` is a dict.
            Default: ``False``
        use_zero1_dcp (bool): not supported.
        avoid_saving_lower_precision_weights (bool): with ``use_xser``, leave out weights that the optimizer's
            master weights have. Default: ``False``
        retention (Keep, optional): which of ckptd's checkpoints to keep, in the place of ``num_kept_ckpts``. The
            number at the end of the tag is the step. NxD has no such argument. Default: all
        metrics (Mapping[str, float], optional): named values of this checkpoint, for ``Keep(best=)``. NxD has no
            such argument

    Raises:
        ValueError: an argument is not supported.
        ckptd.CkptdError: the save was refused or has failed.
    """
    root = root_paths.name_of(checkpoint_dir_str)
    _names.check_tag(tag)
    if use_zero1_dcp:
        raise ValueError(
            "use_zero1_dcp=True is not supported, because NxD itself cannot load what it saves with it; leave it out: all "
            "ranks save ZeRO-1 state at once anyway, and it loads with another dp, too"
        )
    keep = keep_of_arguments(retention, _kept(num_kept_ckpts))
    arguments = _parts.SaveArguments(
        model,
        optimizer,
        scheduler,
        user_content,
        use_xser,
        zero1_optimizer,
        avoid_saving_lower_precision_weights,
        process.settings.allowed_classes().states,
    )
    _parts.check(process.topology(), arguments)
    process.finish()
    topology = process.topology()
    process.save(
        process.job(root),
        tag,
        lambda deferred: _parts.files(topology, arguments, deferred),
        keep,
        metrics,
        wait=not async_save,
    )


def load_checkpoint(
    path: _Path,
    tag: Optional[str] = None,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    num_workers: int = 8,
    strict: bool = True,
    use_zero1_dcp: bool = False,
) -> Any:
    """Loads a checkpoint. Every rank calls it with the same arguments.

    In a process group it returns when every rank has loaded its part. Where it cannot fill tensors in place, it
    puts those of xser onto the device, one at a time, as NxD does.

    It loads NxD's own checkpoints, too: by tag, whatever its characters, or, if ckptd has none in the root,
    the latest by NxD's rule. Weights that NxD's converter has written without markers are loaded by tag only.

    Args:
        path (str or os.PathLike): the root, or ``s3://BUCKET/PREFIX``, which needs ``pip install ckptd[s3]``.
        tag (str, optional): the checkpoint. With it a bucket is read without becoming its job. Default: the latest, which is
            the same on every rank. If a rank finds it damaged, all ranks load the next older one. If the bucket of
            ``configure(upload=)`` has a newer one than the root, it is fetched first
        model, optimizer, scheduler: what to fill, as in NxD.
        num_workers (int): accepted for compatibility and ignored.
        strict (bool): as in ``load_state_dict``. Default: ``True``
        use_zero1_dcp (bool): not supported.

    Returns:
        The user content, or None.

    Raises:
        NoCheckpoint: there is none; it is a RuntimeError, too.
        NoTag: there is none of this name; it is a NoCheckpoint and a FileNotFoundError.
        NoFile: it was saved without what is to be filled, or with another topology; a FileNotFoundError, too.
        ckptd.CkptdError: the checkpoint is damaged, or does not fit what is to be filled; or, in a process
            group, another rank has failed (``RESUME_FAILED``) or not finished in time (``RESUME_INCOMPLETE``).
    """
    root = root_paths.name_of(path)
    targets = _loading.LoadTargets(model, optimizer, scheduler, strict)
    if use_zero1_dcp:
        raise ValueError("use_zero1_dcp=True is not supported, because no release of NxD can load what it saves with it; leave it out")
    with process.loading():
        _loading.check(targets)
        process.await_pending()
        return _load_tag(*_names.split_tag(root, tag), targets) if tag is not None else _load_newest(root, targets)


def has_checkpoint(checkpoint_dir_str: _Path) -> bool:
    """Returns whether there is a checkpoint to load, in the root or in its bucket (``configure(upload=)``).

    If this process's rank is known (a process group, ``$RANK`` and ``$WORLD_SIZE``, or a topology), it waits
    for a save that an earlier launch has sealed; of a bucket, for one that this node's daemon has.
    """
    root = root_paths.name_of(checkpoint_dir_str)
    process.fetch(root)
    if not root_paths.of(root).is_of_ckptd() or not is_known(process.settings.topology):
        return _foreign.any_finished(root)
    process.await_pending()
    if _foreign.any_finished(root):
        return True
    reader = process.reader(root)
    if reader is None:
        return False
    attempt = reader.attempt if isinstance(reader, Run) else None
    for info in reader.list(show_all=True):
        if info.level == "sealed" and (attempt is None or info.attempt < attempt):
            info = reader._wait_for_end(info.tag, process.settings.timeout)
        # Still sealed if the disk is slow: resuming waits for it, too.
        if info.level in ("committed", "sealed"):
            return True
    return False


def finalize_checkpoint() -> None:
    """Waits until the last save is durable. Raises ``ckptd.CkptdError`` if it has failed.

    It happens at the end of the process, too, where a failure is only logged.
    """
    process.finish()


def install() -> None:
    """Makes NxD's own functions save and load through ckptd, also in libraries that have imported them by name.

    They are save_checkpoint, load_checkpoint, has_checkpoint and finalize_checkpoint of
    neuronx_distributed.trainer.checkpoint, and save and load of neuronx_distributed.parallel_layers.checkpointing,
    which NxD's strategy for Lightning uses. Every rank calls it, before the first save or load.

    Raises:
        ImportError: neuronx_distributed is not installed, or cannot be imported.
    """
    ours = (save_checkpoint, load_checkpoint, has_checkpoint, finalize_checkpoint)
    older = (checkpointing.save, checkpointing.load)
    _install.replace(
        {
            **{("trainer.checkpoint", function.__name__): function for function in ours},
            **{("parallel_layers.checkpointing", function.__name__): function for function in older},
        }
    )


def uninstall() -> None:
    """Undoes :func:`install`. No-op if it was not called."""
    _install.restore()


def _load_tag(root: str, tag: str, targets: _loading.LoadTargets) -> Any:
    there = root_paths.of(root)
    if not there.exists(tag):
        process.fetch(root)
    if not there.is_committed(tag):
        if not _foreign.may_be_loaded(root, tag):
            raise _nothing(root, tag)
        return _load_foreign(root, tag, targets)
    try:
        opened = process.open(root, tag)
    except errors.NotFound as error:  # It has just been removed.
        raise _nothing(root, tag) from error
    with opened as checkpoint:
        return _loading.load(Committed(checkpoint), process.topology(), targets, process.settings.allowed_classes())


def _load_newest(root: str, targets: _loading.LoadTargets) -> Any:
    if not root_paths.of(root).is_of_ckptd() and not process.is_resumed_from_bucket():
        return _load_latest_foreign(root, targets)  # Without a daemon: the root may be read-only.
    job = process.job(root)
    first, job.resumed = not job.resumed, True
    if first:
        # The time of the settings: the bucket's checkpoint may be large.
        timeout = min(process.settings.timeout, 86400.0) if process.is_resumed_from_bucket() else 60.0
        return job.run.restore(lambda checkpoint: _load_latest(root, job, checkpoint, targets), timeout)
    try:
        checkpoint = job.run.open()
    except errors.NotFound:
        return _load_latest(root, job, None, targets)
    with checkpoint:
        return _load_latest(root, job, checkpoint, targets)


def _load_foreign(root: str, tag: str, targets: _loading.LoadTargets) -> Any:
    return _loading.load(Foreign(root, tag), process.topology(), targets, process.settings.allowed_classes())


def _load_latest(root: str, job: Job, checkpoint: Any, targets: _loading.LoadTargets) -> Any:
    foreign = _foreign.finished(root)
    if not checkpoint:
        return _load_latest_foreign(root, targets)
    committed = checkpoint.info.time
    if foreign and committed is not None and foreign[-1].done_ns > committed.timestamp() * 1e9:
        _log.warning(
            "ckptd: loading %s, the latest checkpoint of ckptd; NxD has written %s into %s since: load that by its tag, or "
            "adopt it (ckptctl adopt)",
            checkpoint.tag,
            foreign[-1].tag,
            root,
        )
    return _loading.load(Committed(checkpoint), job.topology, targets, process.settings.allowed_classes())


def _load_latest_foreign(root: str, targets: _loading.LoadTargets) -> Any:
    foreign = _foreign.finished(root)
    if not foreign:
        raise _nothing(root)
    _log.info("ckptd: %s has only checkpoints of NxD; loading the latest, %s", root, foreign[-1].tag)
    return _load_foreign(root, foreign[-1].tag, targets)


def _nothing(root: str, tag: Optional[str] = None) -> NoCheckpoint:
    if tag is None:
        return NoCheckpoint(f"Error: no checkpoint under directory {root}", reason="NO_CHECKPOINT")
    there = root_paths.of(root)
    if not there.exists(tag):
        why = "there is no such directory"
    elif there.is_of_others(tag):
        why = "it has no `done`, so its save was not finished or its removal was begun"
    else:
        why = "it has no manifest, so a save of ckptd there, or the removal of one, has not ended"
    return NoTag(
        f"Error: no checkpoint {tag} under directory {root}: {why}", reason="NO_CHECKPOINT", tag=tag
    )


def _kept(number: Optional[int]) -> Optional[int]:
    if number is None or number == -1:
        return None
    if number < 1:
        raise ValueError(
            f"num_kept_ckpts is {number}; it must be at least 1, or None or -1 to keep all (NxD would delete every checkpoint, "
            "this one included)"
        )
    return number


def __getattr__(name: str) -> Any:
    """Finds other names in neuronx_distributed, so that `import ckptd.nxd as nxd` can replace its import."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        neuronx_distributed = importlib.import_module("neuronx_distributed")
    except ModuleNotFoundError as error:
        if error.name != "neuronx_distributed":
            raise  # NxD is installed, but something that it imports is not.
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r} of its own, and passes other names on to neuronx_distributed, which is "
            "not installed here: install it, or correct the name"
        ) from None
    try:
        return getattr(neuronx_distributed, name)
    except AttributeError:
        raise AttributeError(f"neither {__name__} nor neuronx_distributed has an attribute {name!r}") from None
