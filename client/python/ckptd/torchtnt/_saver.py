"""The callback that saves."""

import concurrent.futures
import inspect
import itertools
import logging
import math
import os
from typing import Any, Dict, List, NamedTuple, Optional

from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torchtnt.framework.callbacks.base_checkpointer import BaseCheckpointer
from torchtnt.framework.callbacks.checkpointer_types import KnobOptions
from torchtnt.framework.state import EntryPoint
from torchtnt.framework.utils import get_timing_context
from torchtnt.utils.checkpoint import BestCheckpointConfig
from torchtnt.utils.distributed import get_world_size

import ckptd.dcp
from ckptd import errors
from ckptd._adapters import root_paths
from ckptd._adapters.ranks import from_first_rank, is_distributed
from ckptd._saving.save_options import StageName, check_stage
from ckptd.dcp._process import process
from ckptd.retention import Keep
from ckptd.torchtnt import _app_state, _names
from ckptd.torchtnt._restore import Restoring, name_of

_log = logging.getLogger("ckptd")
_ENDS = ("on_train_end", "on_predict_end")
# The name of the argument for a checkpoint's path: checkpoint_path in release 0.2.4, and checkpoint_id since.
_PATH_ARGUMENT = next(
    name for name in inspect.signature(BaseCheckpointer._checkpoint_impl).parameters if name.startswith("checkpoint_")
)


class _Decision(NamedTuple):
    """The decisions of the first rank before a save."""

    name: _names.Name
    exists: bool  # The state is saved already, and the save at the end of training is left out.
    committed: List[int]  # The asynchronous saves that have ended since the last decision, by their numbers.
    failed: Dict[int, str]  # Those that have failed, and why.


class _AsyncSave(NamedTuple):
    """An asynchronous save that was in flight when the callback looked last."""

    path: str
    future: Any

    def wait(self) -> Optional[BaseException]:
        """Waits for the end. Returns why there is no checkpoint; None if there is one."""
        timeout = process.settings.timeout
        try:
            error: Optional[BaseException] = self.future.exception(timeout)
            return error
        except concurrent.futures.TimeoutError:
            return errors.WaitTimeout(f"{self.path} was not committed within {timeout:g} seconds", reason="WAIT_TIMEOUT")


class CheckpointSaver(Restoring, BaseCheckpointer):
    """Saves TorchTNT's checkpoints through ckptd. It takes the place of ``DistributedCheckpointSaver``.

        train(unit, dataloader, callbacks=[ckptd.torchtnt.CheckpointSaver("/data/ckpts", save_every_n_train_steps=100)])

    Names and contents are those of TorchTNT. A checkpoint appears in one step, when all of it is durable. The
    first rank chooses the name, and so the metric in it.

    Args:
        dirpath (str): the directory of the checkpoints, or ``s3://BUCKET/PREFIX`` for a run on one node; ckptd's root.
        save_every_n_train_steps (int, optional): saves when the steps of training are a multiple. Default: never
        save_every_n_epochs (int, optional): the same for epochs of training. Default: never
        save_every_n_eval_steps (int, optional): the same for steps of evaluation. Default: never
        save_every_n_eval_epochs (int, optional): the same for epochs of evaluation. Default: never
        save_every_n_predict_steps (int, optional): the same for steps of prediction. Default: never
        keep_last_n_checkpoints (int, optional): keeps the newest n that ckptd has saved; beside
            ``best_checkpoint_config`` the best n, and the newest one. Default: all
        best_checkpoint_config (BestCheckpointConfig, optional): the attribute of the unit that is saved as a
            metric. Default: none
        process_group (ProcessGroup, optional): the ranks that save. Default: all
        async_checkpoint (bool): go on when the state is copied, or with ``stage="overlap"`` at once, and not when it is committed. The end of training
            waits for all saves. Default: ``False``
        knob_options (KnobOptions, optional): ``max_per_rank_io_concurrency`` is the number of files of each rank.
            Default: 1 file
        retention (Keep, optional): which checkpoints to keep; not beside ``keep_last_n_checkpoints``. Default: all
        stage (str): as in :meth:`ckptd.Run.save`: with ``"overlap"`` a GPU copies the state beside the next forward and
            backward pass, and the optimizer's step waits for it. Needs ``async_checkpoint``. Default: ``"blocking"``

    Raises:
        ValueError: ``stage`` is another one, or ``"overlap"`` without ``async_checkpoint``; a number is not more than 0, or the mode of ``best_checkpoint_config`` is unknown, or its metric has
            characters that the names of checkpoints cannot have.
        RuntimeError: there are several ranks and no default process group.
        Refused: ``dirpath`` is no directory of this machine and no URL of a bucket, or it cannot be made or written to.
    """

    metadata_fname = ".metadata"  # The name of this attribute in release 0.2.4.
    metadata_fnames = [".metadata"]

    def __init__(
        self,
        dirpath: str,
        *,
        save_every_n_train_steps: Optional[int] = None,
        save_every_n_epochs: Optional[int] = None,
        save_every_n_eval_steps: Optional[int] = None,
        save_every_n_eval_epochs: Optional[int] = None,
        save_every_n_predict_steps: Optional[int] = None,
        keep_last_n_checkpoints: Optional[int] = None,
        best_checkpoint_config: Optional[BestCheckpointConfig] = None,
        process_group: Any = None,
        async_checkpoint: bool = False,
        knob_options: Optional[KnobOptions] = None,
        retention: Optional[Keep] = None,
        stage: StageName = "blocking",
    ) -> None:
        _check_positive(
            save_every_n_train_steps=save_every_n_train_steps,
            save_every_n_epochs=save_every_n_epochs,
            save_every_n_eval_steps=save_every_n_eval_steps,
            save_every_n_eval_epochs=save_every_n_eval_epochs,
            save_every_n_predict_steps=save_every_n_predict_steps,
            keep_last_n_checkpoints=keep_last_n_checkpoints,
        )
        if best_checkpoint_config and not _names.is_readable(best_checkpoint_config.monitored_metric):
            raise ValueError(
                f'best_checkpoint_config names the metric "{best_checkpoint_config.monitored_metric}", which restore_from_best() '
                "would not find in the names of checkpoints; name an attribute of ASCII letters, digits and underscores"
            )
        if check_stage(stage) == "overlap" and not async_checkpoint:
            raise ValueError('stage="overlap" needs async_checkpoint=True: otherwise each save waits until it is committed')
        if get_world_size() > 1 and not is_distributed():
            raise RuntimeError(
                f"this is one of {get_world_size()} ranks, and there is no default process group: call "
                "torch.distributed.init_process_group(), or make an AutoUnit, before the CheckpointSaver"
            )
        # Without the number to keep, TorchTNT's manager of checkpoints removes none.
        folder = name_of(dirpath, "dirpath")
        root_paths.of(folder).check_writable("the dirpath of CheckpointSaver")
        super().__init__(
            folder,
            best_checkpoint_config=best_checkpoint_config,
            process_group=process_group,
        )
        self._every = {
            "on_train_step_end": save_every_n_train_steps,
            "on_train_epoch_end": save_every_n_epochs,
            "on_eval_step_end": save_every_n_eval_steps,
            "on_eval_epoch_end": save_every_n_eval_epochs,
            "on_predict_step_end": save_every_n_predict_steps,
        }
        self._keep = _policy(keep_last_n_checkpoints, best_checkpoint_config, retention)
        self._is_async = async_checkpoint
        self._stage: StageName = stage
        self._files_per_rank = (knob_options or KnobOptions()).max_per_rank_io_concurrency or 1
        self._in_flight: Dict[int, _AsyncSave] = {}  # By their numbers, which are the same on all ranks.
        self._numbers = itertools.count()
        self._last: Optional[_names.Name] = None

    # ---- when to save

    def on_train_start(self, state: Any, unit: Any) -> None:
        """Removes nothing: the daemon does, after commits."""
        self._last = None

    def on_train_step_end(self, state: Any, unit: Any) -> None:
        """Saves if it is time to."""
        self._save_if_due(state, unit, "on_train_step_end", unit.train_progress.num_steps_completed)

    def on_train_epoch_end(self, state: Any, unit: Any) -> None:
        """Saves if it is time to."""
        self._save_if_due(state, unit, "on_train_epoch_end", unit.train_progress.num_epochs_completed)

    def on_train_end(self, state: Any, unit: Any) -> None:
        """Saves if the state is not saved yet. Returns when all saves are committed."""
        self._generate_checkpoint_and_upkeep(state, unit, "on_train_end")

    def on_eval_start(self, state: Any, unit: Any) -> None:
        """Warns that evaluate() neither rates nor removes checkpoints."""
        if state.entry_point == EntryPoint.EVALUATE:
            self._warn_without_training()

    def on_eval_step_end(self, state: Any, unit: Any) -> None:
        """Saves if it is time to."""
        self._save_if_due(state, unit, "on_eval_step_end", unit.eval_progress.num_steps_completed)

    def on_eval_epoch_end(self, state: Any, unit: Any) -> None:
        """Saves if it is time to."""
        self._save_if_due(state, unit, "on_eval_epoch_end", unit.eval_progress.num_epochs_completed)

    def on_eval_end(self, state: Any, unit: Any) -> None:
        """Returns when the saves of evaluate() are committed."""
        if state.entry_point == EntryPoint.EVALUATE:
            self._finish(state, unit)

    def on_predict_start(self, state: Any, unit: Any) -> None:
        """Warns that predict() neither rates nor removes checkpoints."""
        self._warn_without_training()

    def on_predict_step_end(self, state: Any, unit: Any) -> None:
        """Saves if it is time to."""
        self._save_if_due(state, unit, "on_predict_step_end", unit.predict_progress.num_steps_completed)

    def on_predict_end(self, state: Any, unit: Any) -> None:
        """Saves. Returns when all saves are committed."""
        self._generate_checkpoint_and_upkeep(state, unit, "on_predict_end")

    def on_exception(self, state: Any, unit: Any, exc: BaseException) -> None:
        """Returns when the saves in flight have ended. A failure of one is in the log: what counts is `exc`."""
        for save in self._take_in_flight():
            error = save.wait()
            if error is not None:
                _log.error("ckptd: %s is not a checkpoint: %s", save.path, error)

    def _save_if_due(self, state: Any, unit: Any, hook: str, count: int) -> None:
        every = self._every[hook]
        if every and count % every == 0:
            self._generate_checkpoint_and_upkeep(state, unit, hook)

    def _warn_without_training(self) -> None:
        if self._keep or self._best_checkpoint_config:
            _log.warning(
                "ckptd: evaluate() and predict() save no model, so what to keep and best_checkpoint_config do not count for "
                "their checkpoints"
            )

    # ---- saving

    def _generate_checkpoint_and_upkeep(self, state: Any, unit: Any, hook: str) -> bool:
        """Saves, unless the end of training finds the state saved already. Returns whether it has saved.

        Raises:
            CheckpointFailed: an earlier asynchronous save has failed. It is raised once, on all ranks, after this
                save, which may be the last one.
        """
        # Ranks see asynchronous saves end at different times: the first one decides, so that all raise the same failure.
        decision = from_first_rank(lambda: self._decide(state, unit, hook), self._process_group)
        for number in decision.committed:
            _call_hook(unit, state, self._in_flight.pop(number).path)
        for number in decision.failed:
            del self._in_flight[number]
        is_saved = not decision.exists and self._save(state, unit, decision.name, hook)
        if hook in _ENDS:
            self._finish(state, unit)
        for message in decision.failed.values():
            raise errors.CheckpointFailed(message, reason="SAVE_ABORTED")
        return is_saved

    def _save(self, state: Any, unit: Any, name: _names.Name, hook: str) -> bool:
        path = root_paths.join(self.dirpath, str(name))
        if not self._checkpoint_impl(state, unit, hook=hook, **{_PATH_ARGUMENT: path}):
            return False
        self._last = name
        if not self._is_in_flight(path):
            _call_hook(unit, state, path)
        return True

    def _checkpoint_impl(
        self,
        state: Any,
        unit: Any,
        *,
        hook: str,
        checkpoint_id: Optional[str] = None,
        checkpoint_path: Optional[str] = None,
        planner: Any = None,
        storage_writer: Any = None,
        stager: Any = None,
    ) -> bool:
        """Saves to a path. A class that is derived from this one may call it with a planner or writer of its own.

        Args:
            checkpoint_id: the path. In release 0.2.4 it is `checkpoint_path`.
            stager: accepted and not used: the state is copied once, into the daemon's memory.
        """
        path = checkpoint_id or checkpoint_path
        assert path is not None
        arguments = {
            "state_dict": _app_state.to_save(state, unit, hook),
            "checkpoint_id": path,
            "process_group": self._process_group,
            "storage_writer": storage_writer or self._writer(path, state),
            "planner": planner,
        }
        how = "async_save" if self._is_async else "save"
        with get_timing_context(state, f"{self.__class__.__name__}.{how}"):
            if self._is_async:
                saved = ckptd.dcp.async_save(**arguments)
                self._in_flight[next(self._numbers)] = _AsyncSave(path, getattr(saved, "upload_completion", saved))
            else:
                dcp_save(**arguments)
        return True

    def _writer(self, path: str, state: Any) -> Any:
        name = _names.parse(os.path.basename(path))
        metric = name.metric if name else None
        return ckptd.dcp.Writer(
            path,
            thread_count=self._files_per_rank,
            overwrite=True,
            retention=self._keep if state.entry_point in _app_state.TRAINING else None,
            metrics={metric.name: metric.value} if metric else None,
            step=name.step if name else None,
            stage=self._stage,
        )

    def _decide(self, state: Any, unit: Any, hook: str) -> _Decision:
        """Called on the first rank only."""
        name = _name_of(state, unit, self._metric(state, unit))
        ended = {number: save for number, save in self._in_flight.items() if save.future.done()}
        failed = {
            number: f"{save.path} is not a checkpoint: {save.future.exception()}"
            for number, save in ended.items()
            if save.future.exception() is not None
        }
        exists = hook == "on_train_end" and self._is_saved(state, name)
        return _Decision(name, exists, [number for number in ended if number not in failed], failed)

    def _finish(self, state: Any, unit: Any) -> None:
        """Waits for all saves in flight, and raises the first failure."""
        ended = [(save, save.wait()) for save in self._take_in_flight()]
        for save, error in ended:
            if error is not None:
                raise error
            _call_hook(unit, state, save.path)

    def _take_in_flight(self) -> List[_AsyncSave]:
        taken, self._in_flight = self._in_flight, {}
        return list(taken.values())

    def _is_in_flight(self, path: str) -> bool:
        return any(save.path == path for save in self._in_flight.values())

    def _is_saved(self, state: Any, name: _names.Name) -> bool:
        """Returns whether the save at the end of training would add nothing."""
        path = root_paths.join(self.dirpath, str(name))
        if self._is_in_flight(path) or root_paths.of(self.dirpath).has_file(str(name), ".metadata"):
            return True
        saves_in_eval = self._every["on_eval_step_end"] or self._every["on_eval_epoch_end"]
        if state.entry_point != EntryPoint.FIT or saves_in_eval or self._last is None:
            return False
        return self._last.of_phases.get(_names.TRAIN) == name.step  # Evaluation alone since then does not count.

    def _metric(self, state: Any, unit: Any) -> Optional[_names.Metric]:
        """Returns the metric of the unit; None if there is none to save."""
        if self._best_checkpoint_config is None or state.entry_point not in _app_state.TRAINING:
            return None
        attribute = self._best_checkpoint_config.monitored_metric
        found = getattr(unit, attribute, None)
        try:
            value = math.nan if found is None else float(found)
        except (TypeError, ValueError, RuntimeError):  # torch raises the last one for several elements.
            value = math.nan
        if math.isfinite(value):
            return _names.Metric(attribute, value)
        _log.error(
            "ckptd: the unit's %s is %s and no finite number, so the checkpoint is saved without it and is never among the best",
            attribute,
            found,
        )
        return None


def _policy(number: Optional[int], best: Any, retention: Optional[Keep]) -> Optional[Keep]:
    if number is None:
        return retention
    if retention is not None:
        raise ValueError("keep_last_n_checkpoints and retention are both given: write retention=ckptd.Keep(...) alone")
    if best is None:
        return Keep(last=number)
    return Keep(best=number, metric=best.monitored_metric, mode=best.mode)


def _name_of(state: Any, unit: Any, metric: Optional[_names.Metric]) -> _names.Name:
    phases = {
        EntryPoint.TRAIN: (_names.TRAIN,),
        EntryPoint.FIT: (_names.TRAIN, _names.EVAL),
        EntryPoint.EVALUATE: (_names.EVAL,),
        EntryPoint.PREDICT: (_names.PREDICT,),
    }[state.entry_point]
    progress = [getattr(unit, f"{phase}_progress") for phase in phases]
    steps = tuple((phase, made.num_steps_completed) for phase, made in zip(phases, progress))
    return _names.Name(progress[0].num_epochs_completed, steps, metric)


def _call_hook(unit: Any, state: Any, path: str) -> None:
    """Calls the unit's on_checkpoint_save() for a committed checkpoint. Units of release 0.2.4 have no such method."""
    hook = getattr(unit, "on_checkpoint_save", None)
    if hook is not None:
        hook(state, checkpoint_id=path)


def _check_positive(**numbers: Optional[int]) -> None:
    for name, number in numbers.items():
        if number is not None and number <= 0:
            raise ValueError(f"{name} is {number}; it must be more than 0, or None")
