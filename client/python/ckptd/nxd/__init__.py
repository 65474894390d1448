"""NeuronX Distributed's checkpoints, through ckptd: the same functions, the same files.

    import ckptd.nxd as nxd

    nxd.save_checkpoint("/data/ckpts", f"step_{step}", model, optimizer, scheduler, {"step": step}, use_xser=True, async_save=True)
    user_content = nxd.load_checkpoint("/data/ckpts", model=model, optimizer=optimizer, scheduler=scheduler)

Whatever else neuronx_distributed has is found here, too, where it is installed. docs/nxd.md says what is different.
"""

import importlib
import logging
import os
from typing import Any, Optional, Sequence, Union

from ckptd import errors
from ckptd.nxd import _foreign, _loading, _names, _parts
from ckptd.nxd._process import Job, Settings, process
from ckptd.nxd._sources import Committed, Foreign
from ckptd.nxd._topology import Topology, is_known

__all__ = [
    "NoCheckpoint",
    "Topology",
    "configure",
    "finalize_checkpoint",
    "has_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]

_log = logging.getLogger("ckptd")
_Path = Union[str, "os.PathLike[str]"]


class NoCheckpoint(errors.NotFound, RuntimeError):
    """There is nothing to load: a RuntimeError, as NxD raises it."""


def configure(
    endpoint: Optional[str] = None,
    topology: Optional[Topology] = None,
    *,
    commit_timeout: float = 600.0,
    timeout: float = 3600.0,
    pool_bytes: Optional[int] = None,
    safe_globals: Sequence[Any] = (),
    weights_only: Optional[bool] = None,
) -> None:
    """What NxD's functions have no parameters for; each call says all of it anew. On every rank, before the first save or load.

    endpoint: the daemon; None: $CKPTD_ENDPOINT, else the node's service, else a private daemon that all ranks of this user on
    this machine share, with a pool of pool_bytes (None: a quarter of the memory).
    topology: this rank's coordinates; None: NxD's, where it is initialised, else the process group as pure data parallelism.
    commit_timeout: seconds from a save's first rank to its last. timeout: seconds to wait for the disk after that.
    safe_globals: classes that the states of models and optimizers may hold beside those of torch. weights_only: True refuses
    other classes in user content and schedulers' states, too; False allows all of them everywhere, which may run code.
    """
    for name, seconds in (("commit_timeout", commit_timeout), ("timeout", timeout)):
        if seconds <= 0:
            raise ValueError(f"{name} is {seconds}; it is more than 0 seconds")
    process.configure(
        Settings(endpoint, topology, commit_timeout, timeout, pool_bytes, tuple(safe_globals), weights_only)
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
) -> None:
    """Saves a checkpoint. Every rank calls it alike. On return everything is copied: all of it may change at once.

    async_save: back after that one copy; the checkpoint gets its `done` by itself when it is durable, also if all ranks have
    been killed by then. Its failure is raised by the next save_checkpoint() or finalize_checkpoint(), on every rank, and that
    save is not begun. Otherwise it returns when the checkpoint is durable and published.

    num_kept_ckpts: how many of ckptd's checkpoints stay; None and -1: all. num_workers is accepted and not needed.
    ValueError says which argument cannot be; ckptd.CkptdError why the save was refused or has failed.
    """
    root = _local(checkpoint_dir_str)
    _names.check_tag(tag)
    if use_zero1_dcp:
        raise ValueError(
            "use_zero1_dcp=True is not supported: NxD itself cannot load what it saves by it; leave it out, ZeRO-1 state is saved "
            "by all ranks at once anyway, and loads with another dp, too"
        )
    kept = _kept(num_kept_ckpts)
    wanted = _parts.Wanted(
        model,
        optimizer,
        scheduler,
        user_content,
        use_xser,
        zero1_optimizer,
        avoid_saving_lower_precision_weights,
        process.settings.trust().states,
    )
    _parts.check(process.topology(), wanted)
    process.finish()
    process.save(process.job(root), tag, wanted, kept, wait=not async_save)


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
    """Loads a checkpoint and returns its user content, or None. Every rank calls it alike.

    tag: None is the latest, the same on every rank; where one rank finds it damaged, all of them load the next older one.
    NoCheckpoint, a RuntimeError, when there is none. Also what NxD itself has saved is loaded: by its tag, or, where ckptd has no
    checkpoint, the latest by NxD's rule. By its tag, weights that NxD's converter has written without markers are loaded, too.
    num_workers is accepted and not needed.
    """
    root = _local(path)
    targets = _loading.Targets(model, optimizer, scheduler, strict)
    if use_zero1_dcp:
        raise ValueError("use_zero1_dcp=True is not supported: no release of NxD can load what it saves by it")
    _loading.check(targets)
    process.settle()
    if tag is not None:
        _names.check_tag(tag)
        return _load_tag(root, tag, targets)
    if not _foreign.is_root_of_ckptd(root):
        return _load_latest_foreign(root, targets)  # Which may be read-only: no daemon is asked.
    job = process.job(root)
    first, job.resumed = not job.resumed, True
    if first:
        return job.run.restore(lambda checkpoint: _load_latest(root, job, checkpoint, targets))
    try:
        checkpoint = job.run.open()
    except errors.NotFound:
        return _load_latest(root, job, None, targets)
    with checkpoint:
        return _load_latest(root, job, checkpoint, targets)


def has_checkpoint(checkpoint_dir_str: _Path) -> bool:
    """Whether there is a checkpoint to load. A save that an earlier launch has handed over is waited for, once it is known which
    rank this is (a process group, $RANK and $WORLD_SIZE, or a topology).
    """
    root = _local(checkpoint_dir_str)
    if not _foreign.is_root_of_ckptd(root) or not is_known(process.settings.topology):
        return _foreign.any_finished(root)
    process.settle()
    if _foreign.any_finished(root):
        return True
    job = process.job(root)
    for info in job.run.list(show_all=True):
        if info.level == "sealed" and info.attempt < job.run.attempt:
            info = job.run._ended(info.tag, process.settings.timeout)
        if info.level in ("committed", "sealed"):  # Sealed still: the disk is slow, and resuming waits for it, too.
            return True
    return False


def finalize_checkpoint() -> None:
    """Waits until the last save is durable; raises when it has failed. Done at the end of the process, too, but there it only
    logs.
    """
    process.finish()


def _load_tag(root: str, tag: str, targets: _loading.Targets) -> Any:
    if not _foreign.is_ours(root, tag):
        if not _foreign.may_be_loaded(root, tag):
            raise _nothing(root, tag)
        return _load_foreign(root, tag, targets)
    job = process.job(root)
    with job.run.open(tag) as checkpoint:
        return _loading.load(Committed(checkpoint), job.topology, targets, process.settings.trust())


def _load_foreign(root: str, tag: str, targets: _loading.Targets) -> Any:
    return _loading.load(Foreign(root, tag), process.topology(), targets, process.settings.trust())


def _load_latest(root: str, job: Job, checkpoint: Any, targets: _loading.Targets) -> Any:
    foreign = _foreign.finished(root)
    if not checkpoint:
        return _load_latest_foreign(root, targets)
    committed = checkpoint.info.time
    if foreign and committed is not None and foreign[-1].done_ns > committed.timestamp() * 1e9:
        _log.warning(
            "ckptd: %s is loaded, ckptd's latest; NxD has written %s into %s since: load it by its tag, or adopt it "
            "(ckptctl adopt)",
            checkpoint.tag,
            foreign[-1].tag,
            root,
        )
    return _loading.load(Committed(checkpoint), job.topology, targets, process.settings.trust())


def _load_latest_foreign(root: str, targets: _loading.Targets) -> Any:
    foreign = _foreign.finished(root)
    if not foreign:
        raise _nothing(root)
    _log.info("ckptd: %s has checkpoints of NxD alone: its latest is %s", root, foreign[-1].tag)
    return _load_foreign(root, foreign[-1].tag, targets)


def _nothing(root: str, tag: Optional[str] = None) -> NoCheckpoint:
    if tag is None:
        return NoCheckpoint(f"Error: no checkpoint under directory {root}", reason="NO_CHECKPOINT")
    begun = _foreign.is_there(root, tag)
    why = "it has no `done`: its save was not finished, or its removal was begun" if begun else "it is not there"
    return NoCheckpoint(
        f"Error: no checkpoint {tag} under directory {root}: {why}", reason="NO_CHECKPOINT", tag=tag
    )


def _local(directory: _Path) -> str:
    text = os.fspath(directory)
    if text.startswith("s3://"):
        raise ValueError(
            f'the directory is "{text}"; ckptd saves to a file system of this node and not to S3 yet: give a local path, and copy '
            "finished checkpoints from there (aws s3 sync)"
        )
    return os.path.abspath(text)


def _kept(number: Optional[int]) -> Optional[int]:
    if number is None or number == -1:
        return None
    if number < 1:
        raise ValueError(
            f"num_kept_ckpts is {number}; it is at least 1, and None or -1 keeps all (NxD would delete every checkpoint, this one "
            "included)"
        )
    return number


def __getattr__(name: str) -> Any:
    """So that `import ckptd.nxd as nxd` stands for `import neuronx_distributed as nxd`."""
    if not name.startswith("_"):
        try:
            return getattr(importlib.import_module("neuronx_distributed"), name)
        except ImportError:
            pass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
