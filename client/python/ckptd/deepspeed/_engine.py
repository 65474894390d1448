"""A checkpoint engine of DeepSpeed that saves and loads through ckptd."""

import inspect
import logging
import os
import time
import warnings
from typing import Any, Callable, Dict, NamedTuple, NoReturn, Optional

from ckptd import errors
from ckptd._saving.file_values import Torch
from ckptd._saving.part import Part
from ckptd._saving.save import LevelName, Save
from ckptd.deepspeed import _config, _hooks, _names
from ckptd.deepspeed._loading import Opened, load_checkpoint, read_file
from ckptd.deepspeed._process import Place, process
from ckptd.retention import Keep, keep_of_arguments

_log = logging.getLogger("ckptd")
_WAIT = ("sealed", "committed")
_LATEST = "latest"


class _Asked(NamedTuple):
    """What save_checkpoint() was asked for, beside the states."""

    save_dir: str
    save_latest: bool
    step: Optional[int]


class _Saving:
    """The save that goes on in this process."""

    def __init__(self, place: Place, pointers: Dict[str, str], step: Optional[int]) -> None:
        self.place = place
        self.pointers = pointers
        self.step = step
        self.is_begun = False  # The run has heard of it, and ends it by itself if this rank cannot begin.
        self.part: Optional[Part] = None  # None until this rank's first file.


class CheckpointEngine(_hooks.HookedEngine):
    """Saves and loads DeepSpeed's checkpoints through ckptd.

        engine, _, _, _ = deepspeed.initialize(...)
        engine.checkpoint_engine = ckptd.deepspeed.CheckpointEngine(num_kept_ckpts=3)

    ``save_dir`` is ckptd's root, and DeepSpeed's tag is the checkpoint's. Assign it on every rank, before the first
    save or load. :func:`install` does that for every engine to come.

    Making one also prepares DeepSpeed's class of engines: ``save_checkpoint`` and ``load_checkpoint`` of an engine with
    another checkpoint engine stay as they are.

    Args:
        config_params (optional): DeepSpeed's configuration. By default that of the engine that it is assigned to
        num_kept_ckpts (int, optional): how many of ckptd's checkpoints in a ``save_dir`` to keep. Default:
            ``checkpoint.num_kept_ckpts`` of the configuration, else all
        retention (Keep, optional): in the place of ``num_kept_ckpts``: which checkpoints to keep
        wait (str): what ``save_checkpoint`` waits for: ``"sealed"``: every rank's part is with the daemon, which
            finishes even if all ranks are killed; or ``"committed"``: durable and published. Default: ``"sealed"``
        timeout (float): seconds to wait for room, and for ranks that do not save. Default: 120

    Raises:
        ValueError: an argument, or a key of the configuration, cannot be served.
        ImportError: DeepSpeed cannot be imported.
    """

    def __init__(
        self,
        config_params: Any = None,
        *,
        num_kept_ckpts: Optional[int] = None,
        retention: Optional[Keep] = None,
        wait: LevelName = "sealed",
        timeout: float = 120.0,
    ) -> None:
        if wait not in _WAIT:
            raise ValueError(f'wait is "{wait}"; it must be "sealed" or "committed"')
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout}; it must be more than 0 seconds")
        self.name = "ckptd"
        self._keep = keep_of_arguments(retention, num_kept_ckpts)
        self._wait = wait
        self._timeout = timeout
        self._asked: Optional[_Asked] = None  # While save_checkpoint() runs.
        self._saving: Optional[_Saving] = None
        self._opened: Optional[Opened] = None  # While load_checkpoint() runs.
        if config_params is not None:
            self._set_config(config_params)
        _hooks.prepare()

    # ---- what DeepSpeed calls, in its order

    def create(self, info: Any) -> None:
        """Begins a checkpoint. info: DeepSpeed's CheckpointCommitInfo; in releases before 0.17, the tag."""
        self._abort("another checkpoint has begun")
        asked, tag = self._asked, info if isinstance(info, str) else info.tag
        save_dir = info.save_dir if asked is None else asked.save_dir
        save_latest = info.save_latest if asked is None else asked.save_latest
        pointers = {_LATEST: tag} if save_latest else {}
        self._saving = _Saving(Place(os.path.abspath(save_dir), tag), pointers, asked.step if asked else None)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory, unless it is the checkpoint's own: that one appears when it is committed."""
        if self._saving is None or _names.file_in(self._saving.place, path) is None:
            os.makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict: Any, path: str) -> None:
        """Copies a state into the daemon's memory. When it returns, the state may change.

        A file that is not in the checkpoint's directory, as of ``save_16bit_model``, is on disk when it returns.
        """
        saving = self._saving
        name = _names.file_in(saving.place, path) if saving is not None else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.UnsafeGlobalsWarning)  # DeepSpeed loads any class.
            if saving is None or not name:
                _names.write_file(path, state_dict)
            else:
                self._add(saving, name, Torch(state_dict))

    def load(self, path: str, map_location: Any = None) -> Any:
        """Loads a file, verified, from the daemon's memory where it still is. Loads any class, as DeepSpeed."""
        if self._opened is not None:
            return self._opened.load(path, map_location)
        return read_file(path, map_location)

    def commit(self, info: Any) -> bool:
        """Hands this rank's part over. No-op if there is none."""
        self._seal()
        return True

    def is_decoupled(self) -> bool:
        """Returns True: then DeepSpeed leaves ``latest`` to ckptd, which writes it after the commit.

        DeepSpeed asks at the end of ``save_checkpoint()``, before its barrier: then it hands this rank's part over.
        """
        self._seal()
        return True

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        """Returns whether a rank saves the states of the model, as in DeepSpeed's own engine."""
        return dp_rank == 0

    def preserves_storage_sharing(self) -> bool:
        """Returns False: views need no clone, because what no tensor uses of a storage is not saved."""
        return False

    def set_commit_info(self, info: Any) -> None:
        """No-op: the daemon commits."""

    def get_commit_info(self) -> None:
        """Returns None: there is never anything for the trainer to commit."""

    def cleanup(self) -> None:
        """Waits for the saves in flight, as the end of the process does."""
        process.await_all(time.monotonic() + process.settings.timeout)

    # ---- what the hooks of DeepSpeed's engine call

    def begin_save(self, config: Any, save_dir: str, save_latest: bool, step: Optional[int]) -> None:
        """Notes what save_checkpoint() was asked for."""
        _names.check_directory(save_dir)
        self._set_config(config)
        self._asked = _Asked(save_dir, save_latest, step)

    def end_save(self, error: Optional[BaseException]) -> None:
        """Ends the checkpoint for all ranks if this one's save_checkpoint() has failed."""
        if error is not None:
            self._abort(f"{type(error).__name__}: {error}")
        self._asked = self._saving = None

    def load_checkpoint(self, engine: Any, stock: Callable[..., Any], asked: inspect.BoundArguments) -> Any:
        """Chooses and verifies a checkpoint, and has DeepSpeed load it."""
        self._set_config(engine._config)

        def load(opened: Opened) -> Any:
            self._opened = opened
            try:
                return stock(*asked.args, **asked.kwargs)
            finally:
                self._opened = None

        return load_checkpoint(engine, load, stock, asked)

    # ---- this rank's part

    def _set_config(self, config: Any) -> None:
        _config.check(config)
        kept = _config.num_kept_ckpts(config)
        if self._keep is None and kept is not None:
            self._keep = Keep(last=kept)

    def _add(self, saving: _Saving, name: str, value: Any) -> None:
        if saving.part is not None:
            saving.part.add(name, value)
        else:
            run, saving.is_begun = self._run(saving.place), True
            saving.part = run.begin(saving.place.tag, files={name: value}, **self._options(saving))

    def _seal(self) -> None:
        """Hands this rank's part over, and waits until the other ranks have."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        if saving.part is not None:
            save = saving.part.seal()
        elif self._asked is None:
            return  # Of save_16bit_model(), which is no checkpoint.
        else:
            save = self._run(saving.place).save(saving.place.tag, files={}, **self._options(saving))
        process.add(saving.place, save)
        save.future().add_done_callback(lambda done: _report(saving.place, done))
        self._await(save)

    def _await(self, save: Save) -> None:
        # If another rank fails, this one hears of it here, and not by the time limit of DeepSpeed's barrier.
        save.wait("sealed", process.settings.commit_timeout)
        if self._wait == "committed":
            save.wait("committed", process.settings.timeout)

    def _abort(self, why: str) -> None:
        """Ends an unfinished save for all ranks. No-op if there is none."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        if saving.part is not None:
            saving.part.abort(why)
        elif self._asked is not None and not saving.is_begun:
            try:
                self._run(saving.place).save(saving.place.tag, files=_NoFiles(why), **self._options(saving))
            except (errors.CkptdError, _Aborted) as error:
                _log.debug("ckptd: %s: %s", saving.place.tag, error)

    def _run(self, place: Place) -> Any:
        run = process.run(place.root)
        run.retention = self._keep
        return run

    def _options(self, saving: _Saving) -> Dict[str, Any]:
        return {"step": saving.step, "pointers": saving.pointers, "timeout": self._timeout}

    def __repr__(self) -> str:
        return "<ckptd.deepspeed.CheckpointEngine>"


class _Aborted(Exception):
    pass


class _NoFiles(Dict[str, Any]):
    """Files that cannot be had, so that Run.save() ends the save for all ranks."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why

    def items(self) -> NoReturn:
        raise _Aborted(self._why)


def _report(place: Place, done: Any) -> None:
    error = done.exception()
    if error is not None:
        _log.error("ckptd: %s is not a checkpoint: %s", place.path, error)
