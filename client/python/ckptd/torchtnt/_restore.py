"""Restoring a unit, from a named checkpoint or from the newest or best one of a directory."""

import logging
import os
from typing import Any, Callable, Dict, Iterable, List, Optional

from torch.distributed.checkpoint.api import CheckpointException  # No Exception, only a BaseException.
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torchtnt.framework.callbacks.checkpointer_types import KnobOptions

import ckptd.dcp
from ckptd import errors
from ckptd._adapters import root_paths
from ckptd._adapters.ranks import from_first_rank, gloo_group
from ckptd.dcp import _directory
from ckptd.dcp import _names as _dcp_names
from ckptd.dcp._process import MEET_SECONDS, Place, await_sealed, process
from ckptd.torchtnt import _app_state, _names

_log = logging.getLogger("ckptd")
_URL = "ckptd://"


def name_of(path: "str | os.PathLike[str]", what: str) -> str:
    """Returns the absolute path of a directory, which may be given as a URL of ckptd://, or the URL of a bucket."""
    text = os.fspath(path)
    return root_paths.name_of(text[len(_URL) :] if text.startswith(_URL) else text, what)


class Restoring:
    """The functions that restore a unit, of the class or of an object of it."""

    @staticmethod
    def restore(
        path: str,
        unit: Any,
        *,
        train_dataloader: Optional[Iterable[Any]] = None,
        eval_dataloader: Optional[Iterable[Any]] = None,
        predict_dataloader: Optional[Iterable[Any]] = None,
        process_group: Any = None,
        restore_options: Any = None,
        knob_options: Optional[KnobOptions] = None,
        planner: Any = None,
        storage_reader: Any = None,
        **others: Any,
    ) -> None:
        """Restores a unit from a checkpoint of ckptd or of TorchTNT itself. All ranks call it.

        Checkpoints of ``evaluate()`` and ``predict()`` leave the model as it is. Every byte of one of ckptd is
        verified.

        Args:
            path (str): the checkpoint's directory, or its URL in a bucket.
            unit (AppStateMixin): the unit.
            train_dataloader, eval_dataloader, predict_dataloader (Iterable, optional): the data loaders to restore,
                if the checkpoint has their states. Default: none
            process_group (ProcessGroup, optional): the ranks that restore. Default: all
            restore_options (RestoreOptions, optional): what to restore. Default: all, and all must be there
            knob_options (KnobOptions, optional): accepted and not used.
            planner (LoadPlanner, optional): of PyTorch Distributed Checkpoint.
            storage_reader (StorageReader, optional): another reader, for example of remote files.

        Raises:
            CheckpointException: the checkpoint is not there, is damaged, or has not what is restored.
        """
        loaders = {"train": train_dataloader, "eval": eval_dataloader, "predict": predict_dataloader}
        _restore(path, unit, loaders, process_group, restore_options, planner, storage_reader)

    @staticmethod
    def restore_with_id(checkpoint_id: "int | str", unit: Any, **arguments: Any) -> None:
        """Restores from a checkpoint id, which is a path. The arguments are those of :meth:`restore`."""
        Restoring.restore(str(checkpoint_id), unit, **arguments)

    @classmethod
    def restore_from_latest(
        cls, dirpath: str, unit: Any, *, process_group: Any = None, file_system: Any = None, **arguments: Any
    ) -> bool:
        """Restores from the newest checkpoint of a directory, by the progress in its name. All ranks call it.

        All ranks pass over damaged checkpoints, and over those whose save did not end. It waits for what an
        earlier launch has handed to the daemon, and, with ``ckptd.dcp.configure(upload=)``, for a newer one of the
        bucket, which is then in the directory.

        Args:
            dirpath (str): the directory, or ``s3://BUCKET/PREFIX``.
            file_system: must be None: ckptd finds the checkpoints by itself.
            arguments: those of :meth:`restore`.

        Returns:
            bool: ``False`` if there is no checkpoint.
        """
        _check_file_system(file_system)
        arguments["process_group"] = process_group
        return _restore_first(
            dirpath, process_group, _names.newest_first, lambda path: cls.restore(path, unit, **arguments)
        )

    @classmethod
    def restore_from_best(
        cls,
        dirpath: str,
        unit: Any,
        metric_name: str,
        mode: str,
        *,
        process_group: Any = None,
        file_system: Any = None,
        **arguments: Any,
    ) -> bool:
        """Restores from the checkpoint of a directory with the best value of a metric, as :meth:`restore_from_latest`.

        Args:
            metric_name (str): the metric.
            mode (str): ``"min"`` if the lowest value is the best, ``"max"`` if the highest is.

        Returns:
            bool: ``False`` if no checkpoint has the metric.
        """
        _check_file_system(file_system)
        if mode not in ("min", "max"):
            raise ValueError(f'mode is "{mode}"; it must be "min" or "max"')
        arguments["process_group"] = process_group
        return _restore_first(
            dirpath,
            process_group,
            lambda names: _names.best_first(names, metric_name, mode),
            lambda path: cls.restore(path, unit, **arguments),
        )


def _check_file_system(file_system: Any) -> None:
    if file_system is not None:
        raise ValueError(
            f"file_system is {file_system!r}, and ckptd finds its checkpoints in directories of this machine and in buckets by "
            "itself: leave it out; for another remote checkpoint call restore() with its storage_reader"
        )


def _restore(
    path: str, unit: Any, loaders: Dict[str, Any], process_group: Any, options: Any, planner: Any, reader: Any
) -> None:
    """Restores a unit from one checkpoint. All ranks of the group call it.

    Args:
        path: its directory; with a reader, whatever that takes.
        loaders: the data loaders to restore, by phase; None for none.
        options: RestoreOptions. None: the default ones
        planner: DCP's load planner. None: the default one
        reader: DCP's storage reader. None: ckptd's

    Raises:
        CheckpointException: a rank could not load; it has the errors of all ranks.
    """
    options = options or _app_state.RestoreOptions()
    if reader is None:
        path = name_of(path, "checkpoint")
        reader = ckptd.dcp.Reader(path)
    app_state = _app_state.to_restore(unit, options, _names.parse(os.path.basename(path.rstrip("/"))))
    wanted = {phase: loader for phase, loader in loaders.items() if loader is not None}
    meet(process_group)
    with gloo_group(process_group) as group:
        if wanted:
            keys = from_first_rank(lambda: list(reader.read_metadata().state_dict_metadata), group)
            _app_state.add_loaders(app_state, wanted, keys, _log.warning)
        dcp_load(
            _app_state.wrapped(app_state),
            checkpoint_id=path,
            storage_reader=reader,
            planner=planner or DefaultLoadPlanner(allow_partial_load=not options.strict),
            process_group=group,
        )
    _log.info("ckptd: the unit was restored from %s", path)


def _restore_first(
    dirpath: str,
    process_group: Any,
    order: Callable[[List[_names.Name]], List[_names.Name]],
    restore_path: Callable[[str], None],
) -> bool:
    """Restores the first checkpoint of a directory that is not damaged. All ranks of the group call it.

    Args:
        order: returns the names of the checkpoints in the order in which to try them.
        restore_path: restores from a path.

    Returns:
        bool: ``False`` if there is no checkpoint, and nothing was changed.

    Raises:
        Exception: what restoring has raised; if all checkpoints are damaged, that of the last one.
    """
    root = name_of(dirpath, "dirpath")
    meet(process_group)
    process.join_to_resume(root, _dcp_names.ranks_of(_dcp_names.members(process_group, no_dist=False)))
    with gloo_group(process_group) as group:
        names = from_first_rank(lambda: order(checkpoints(root)), group)
    for number, name in enumerate(names):
        path = root_paths.join(root, str(name))
        try:
            restore_path(path)
            return True
        except (CheckpointException, errors.Corrupt) as error:
            damage = _damage_of(error)
            if number + 1 == len(names) or damage is None:
                raise
            _log.warning("ckptd: %s is damaged, and the next one is tried: %s", path, damage)
    return False


def meet(process_group: Any) -> None:
    """Learns on which nodes the ranks of a process group are (None: all). All of them call it, before one reads for all."""
    ranks = _dcp_names.members(process_group, no_dist=False)
    if len(ranks) > 1:
        process.meet(ranks, MEET_SECONDS)


def checkpoints(root: str) -> List[_names.Name]:
    """Returns the names of the checkpoints of a directory: whole ones, saved by any program.

    It waits for those that an earlier launch had sealed, and for a newer one of the bucket.

    Raises:
        Corrupt: there are only damaged ones.
        Refused: the bucket does not answer (``RESTORE_FAILED``).
    """
    process.fetch(root)
    if not root_paths.of(root).is_there():
        return []
    run = process.run_to_read(root)
    if run is not None:
        await_sealed(run, process.settings.timeout)
    is_damaged = {info.tag: bool(info.damage) for info in ckptd.dcp.list(root)}
    named = [(tag, _names.parse(tag)) for tag in _directory.tags(root)]
    # Names that TorchTNT would write otherwise, such as loss=.50, have no path from their parts.
    named = [(tag, name) for tag, name in named if name and str(name) == tag]
    whole = [name for tag, name in named if name and _is_whole(Place(root, tag), is_damaged)]
    if not whole and any(is_damaged.get(tag) for tag, _ in named):
        raise errors.Corrupt(
            f"all checkpoints in {root} are damaged; ckptctl verify says where. To begin anew, move them away",
            reason="CHECKPOINT_DAMAGED",
        )
    return whole


def _is_whole(place: Place, is_damaged: Dict[str, bool]) -> bool:
    """Returns whether a directory is a checkpoint. is_damaged: for those of ckptd, by tag."""
    if is_damaged.get(place.tag):
        _log.warning("ckptd: %s is damaged and is not restored", place.path)
        return False
    if place.tag in is_damaged or os.path.isfile(os.path.join(_directory.readable(place), ".metadata")):
        return True
    _log.warning("ckptd: %s has no .metadata: its save did not end, and it is not restored", place.path)
    return False


def _damage_of(error: BaseException) -> Optional[BaseException]:
    """Returns the damage that a load has failed of; None if it has failed of something else, too."""
    causes = [cause[0] for cause in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    return causes[0] if causes and all(isinstance(cause, errors.Corrupt) for cause in causes) else None
