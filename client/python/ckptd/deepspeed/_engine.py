"""A checkpoint engine of DeepSpeed that saves and loads through ckptd."""

import inspect
import logging
import os
import time
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ckptd import errors
from ckptd._adapters import root_paths
from ckptd._adapters.node_process import ADMISSION_SECONDS
from ckptd._saving.file_values import Torch
from ckptd._saving.part import Part
from ckptd._saving.save import LevelName, Save
from ckptd._saving.save_options import StageName, check_stage
from ckptd.deepspeed import _config, _hooks, _names
from ckptd.deepspeed._loading import Opened, load_checkpoint, read_file
from ckptd.deepspeed._process import Place, process
from ckptd.retention import Keep, keep_of_arguments

_log = logging.getLogger("ckptd")
_WAIT = ("sealed", "committed")
_LATEST = "latest"


class _Asked(NamedTuple):
    """The arguments of save_checkpoint(), beside the states."""

    root: str
    folder: _names.Folder  # Where DeepSpeed believes to save.
    save_latest: bool
    step: Optional[int]


class _Saving(NamedTuple):
    """The checkpoint that this process saves."""

    place: Place
    folder: str  # The directory of the checkpoint, as DeepSpeed has it.
    part: Optional[Part]  # None for save_16bit_model(), whose file is in no checkpoint.


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
            finishes even if all ranks are killed; or ``"committed"``: durable and published. A save to another
            ``save_dir`` than the last one, whose name ends with a number (``checkpoint-100``), always waits for that:
            its program removes earlier ones next, as the Trainer of transformers does. Default: ``"sealed"``
        stage (str): as in :meth:`ckptd.Run.save`: with ``"overlap"`` a GPU copies the states beside the next forward and
            backward pass, the optimizer's step waits for it, and ``save_checkpoint`` does not wait for ``"sealed"``: what
            fails later is logged, and is in ``run(save_dir).failures()``. Default: ``"blocking"``
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
        stage: StageName = "blocking",
        timeout: float = ADMISSION_SECONDS,
    ) -> None:
        if wait not in _WAIT:
            raise ValueError(f'wait is "{wait}"; it must be "sealed" or "committed"')
        errors.check_seconds(timeout=timeout)
        self.name = "ckptd"
        self._keep = keep_of_arguments(retention, num_kept_ckpts)
        self._wait = wait
        self._stage = check_stage(stage)
        self._timeout = timeout
        self._asked: Optional[_Asked] = None  # While save_checkpoint() runs.
        self._saving: Optional[_Saving] = None
        self._opened: Optional[Opened] = None  # While load_checkpoint() runs.
        self._last_dir = ""  # The save_dir of the last save.
        self._is_alone = False  # The save has a save_dir of its own, which its program may remove for the next one.
        if config_params is not None:
            self._set_config(config_params)
        _hooks.prepare()

    # ---- what DeepSpeed calls, in its order

    def create(self, info: Any) -> None:
        """Begins a checkpoint. info: DeepSpeed's CheckpointCommitInfo; in releases before 0.17, the tag.

        Every rank begins it here, before the first state is copied: later some wait for others in collectives.
        """
        self._abort("another checkpoint has begun")
        asked, tag = self._asked, info if isinstance(info, str) else info.tag
        if asked is None:
            place = Place(os.path.abspath(getattr(info, "save_dir", "")), tag)
            self._saving = _Saving(place, place.path, None)
            return
        place = Place(asked.root, tag)
        run = process.join(place.root, (), self._timeout)
        run.retention = self._keep
        # No file of a bucket can be replaced in one step with what it names: there the newest checkpoint is the latest.
        pointers = {_LATEST: tag} if asked.save_latest and root_paths.of(asked.root).is_directory else {}
        part = run.begin(tag, step=asked.step, pointers=pointers, timeout=self._timeout, stage=self._stage)
        self._saving = _Saving(place, asked.folder.of(tag), part)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory, unless it is the checkpoint's own: that one appears when it is committed."""
        if self._saving is None or _names.file_in(self._saving.folder, path) is None:
            _names.check_directory(path)
            os.makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict: Any, path: str) -> None:
        """Copies a state into the daemon's memory. When it returns, the state may change, unless a GPU copies it with
        ``stage="overlap"``.

        A file that is not in the checkpoint's directory, as of ``save_16bit_model``, is on disk when it returns.
        """
        saving = self._saving
        name = _names.file_in(saving.folder, path) if saving is not None else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.UnsafeGlobalsWarning)  # DeepSpeed loads any class.
            if saving is None or saving.part is None or not name:
                _names.write_file(path, state_dict)
            else:
                saving.part.add(name, Torch(state_dict))

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

    def begin_save(self, config: Any, save_dir: str, save_latest: bool, step: Optional[int]) -> str:
        """Notes what save_checkpoint() was asked for. Returns the directory for DeepSpeed."""
        root = _names.root_of(save_dir)
        self._set_config(config)
        self._asked = _Asked(root, _names.Folder(root), save_latest, step)
        self._is_alone = save_dir != self._last_dir and _names.is_numbered(save_dir)
        self._last_dir = save_dir
        return self._asked.folder.path if not root_paths.of(root).is_directory else save_dir

    def end_save(self, error: Optional[BaseException]) -> None:
        """Ends the checkpoint for all ranks if this one's save_checkpoint() has failed."""
        if error is not None:
            self._abort(f"{type(error).__name__}: {error}")
        if self._asked is not None:
            self._asked.folder.close()
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

    def model_files(self) -> List[str]:
        """Returns the paths of the model's files to load in the place of this rank's own, if it has none; else empty."""
        return self._opened.model_files() if self._opened is not None else []

    def whole_weights(self, engine: Any) -> Optional[Dict[str, Any]]:
        """Returns the weights of the whole model for an engine of stage 3 that loads no optimizer's state."""
        if engine.load_universal_checkpoint():
            return {}  # DeepSpeed reads those of a universal checkpoint elsewhere, and does not use these.
        return self._opened.take_weights() if self._opened is not None else None

    # ---- this rank's part

    def _set_config(self, config: Any) -> None:
        _config.check(config)
        kept = _config.num_kept_ckpts(config)
        if self._keep is None and kept is not None:
            self._keep = Keep(last=kept)

    def _seal(self) -> None:
        """Hands this rank's part over, and waits as it was asked to. No-op without a part."""
        saving, self._saving = self._saving, None
        if saving is None or saving.part is None:
            return
        save = saving.part.seal()
        process.add(saving.place, save)
        save.future().add_done_callback(lambda done: _report(saving.place, done))
        self._await(save)

    def _await(self, save: Save) -> None:
        if self._stage == "blocking":
            # If another rank fails, this raises its error now, long before the time limit of DeepSpeed's barrier.
            save.wait("sealed", process.settings.commit_timeout)
        if self._wait == "committed" or self._is_alone:
            save.wait("committed", process.settings.timeout)

    def _abort(self, why: str) -> None:
        """Ends an unfinished save for all ranks. No-op if there is none."""
        saving, self._saving = self._saving, None
        if saving is not None and saving.part is not None:
            saving.part.abort(why)

    def __repr__(self) -> str:
        return "<ckptd.deepspeed.CheckpointEngine>"


def _report(place: Place, done: Any) -> None:
    error = done.exception()
    if error is not None:
        _log.error("ckptd: %s is not a checkpoint: %s", place.path, error)
