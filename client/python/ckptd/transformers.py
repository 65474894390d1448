"""Checkpoints of transformers' Trainer through ckptd: training goes on after one copy, and what is written is whole or not there.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[ckptd.transformers.CheckpointCallback()])
    trainer.train(resume_from_checkpoint=ckptd.transformers.latest(args.output_dir))

For one process, and for DDP. docs/transformers.md has what is different.
"""

import contextlib
import functools
import logging
import os
import re
import tempfile
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Set

import safetensors.torch
import torch
import transformers
from transformers import modeling_utils, trainer_utils
from transformers import trainer as trainer_module
from transformers.trainer import TRAINER_STATE_NAME

from ckptd import errors
from ckptd._adapters import bucket, trainer_files
from ckptd._adapters.node_process import ADMISSION_SECONDS, Place, Process, await_sealed
from ckptd._adapters.removal import await_removal, unkept
from ckptd._checkpoint_paths import is_committed, warn_unverified
from ckptd._patches import Patches, with_stock
from ckptd._paths import directory_path
from ckptd._saving.file_values import File, Torch
from ckptd._saving.save_options import StageName, check_stage
from ckptd._torch.writing.safetensors_file import Piece, lay_out
from ckptd.restore import open_root
from ckptd.retention import Keep
from ckptd.run import Run

__all__ = ["CheckpointCallback", "configure", "latest", "wait"]

_log = logging.getLogger("ckptd")
_TAG = re.compile(r"checkpoint-(\d+)\Z")  # The names that the Trainer gives to its checkpoints.
_LARGE = ("optimizer.pt", "optimizer.bin", "pytorch_model.bin")  # Files of torch.save with weights or the optimizer's state.
_BEST = "is_best"  # The metric that is 1 for checkpoints that were the best ones when they were saved.
_FORMAT = {"format": "pt"}  # The metadata of safetensors files.

process = Process("transformers")
_verified: Dict[str, List[Any]] = {}  # The checkpoints that this process has verified, by path: _stats() of their files.

@functools.wraps(process.configure)
def configure(endpoint: Optional[str] = None, **options: Any) -> None:  # noqa: D103 - See Process.configure.
    process.configure(endpoint, **options)
    _replace_last_checkpoint()


wait = process.wait  # See Process.wait. Outside of train(), which waits itself unless it raises.


class CheckpointCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Makes a Trainer save its checkpoints through ckptd: ``Trainer(..., callbacks=[CheckpointCallback()])``.

    A checkpoint is the folder ``checkpoint-N`` with the files that the Trainer writes; it appears whole, when all of
    it is durable. The Trainer trains on after one copy of weights and optimizer, and the end of ``train()`` waits
    until all checkpoints are committed. ``save_total_limit`` is obeyed after each commit; the best checkpoint
    stays beside the newest ones. What the Trainer has saved without ckptd stays, and is resumed from as before.

    A save that fails after the copy is logged as a warning, and training goes on. One that cannot begin raises.

    Args:
        retention (Keep, optional): which checkpoints to keep, in the place of ``save_total_limit``.
        timeout (float): seconds to wait for room, and for ranks that do not save. Default: 120
        stage (str): as in :meth:`ckptd.Run.save`: with ``"overlap"`` a GPU copies the weights and the optimizer's state
            beside the next forward and backward pass, and the optimizer's step waits for it. Default: ``"blocking"``

    Raises:
        ValueError: ``stage`` is another one.
        RuntimeError: this version of transformers saves in a way that ckptd does not know.
    """

    def __init__(
        self, *, retention: Optional[Keep] = None, timeout: float = ADMISSION_SECONDS, stage: StageName = "blocking"
    ) -> None:
        self._retention = retention
        self._timeout = timeout
        self._stage = check_stage(stage)
        self._run: Optional[Run] = None  # The run of the last save.
        _replace_methods()

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuses what a checkpoint through ckptd does not do. ValueError or ckptd.Refused, with what to do."""
        for is_wrong, how in (
            (args.deepspeed, "ckptd.deepspeed.install() is for DeepSpeed: leave the callback out"),
            (args.fsdp, "it saves no shards of FSDP: leave it out, or leave fsdp out"),
            (args.push_to_hub, "it cannot push a checkpoint that is still being written: leave push_to_hub out"),
        ):
            if is_wrong:
                raise ValueError(f"ckptd.transformers.CheckpointCallback: {how}")
        directory_path(args.output_dir, "output_dir")  # Refuses URLs.

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuses the same as :meth:`on_init_end`, which Trainer.add_callback() does not call."""
        self.on_init_end(args, state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Waits, at the end of training, until all checkpoints are committed.

        The Trainer then compares the best one with the others on the disk and may remove those, before on_train_end().
        """
        if "train_runtime" not in (logs or {}):
            return
        self._await_all()
        if state.best_model_checkpoint and not os.path.isdir(state.best_model_checkpoint):
            _log.warning("ckptd: the best checkpoint, %s, was not saved, so no other is removed for it", state.best_model_checkpoint)
            state.best_model_checkpoint = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Waits until all checkpoints are committed, and those beyond the limit are gone."""
        self._await_all()

    def _await_all(self) -> None:
        process.await_all(time.monotonic() + process.settings.timeout)
        if self._run is not None and self._run.retention is not None:
            await_removal(self._run)

    def _removed(self) -> Set[str]:
        """Returns the checkpoints that are still there, and that the daemon may be removing."""
        return set(unkept(self._run)) if self._run is not None and self._run.retention is not None else set()

    def save(self, trainer: Any, output_dir: str, write: "Callable[[], None]") -> None:
        """Saves what write() makes the Trainer write to a folder in output_dir. Every rank calls it.

        Raises:
            ckptd.CkptdError: the save was refused, or has failed on another rank.
        """
        args, state = trainer.args, trainer.state
        place = Place(directory_path(output_dir, "output_dir"), f"checkpoint-{state.global_step}")
        if args.world_size > 1:
            process.join(place.root, (), self._timeout)
        run = process.run(place.root, args.process_index, args.world_size)
        run.retention = self._retention or _keep(args.save_total_limit)
        metrics = {_BEST: float(state.best_global_step == state.global_step)}
        # The files that the Trainer writes itself are small; save() has copied them when the folder goes.
        with tempfile.TemporaryDirectory(prefix="ckptd-trainer-") as folder:
            files = _WrittenFiles(trainer, place, os.path.realpath(folder), write)
            save = run.save(
                place.tag, files=files, step=state.global_step, metrics=metrics, timeout=self._timeout, stage=self._stage
            )
        process.add(place, save)
        self._run = run
        save.future("committed").add_done_callback(_log_failure)


def latest(output_dir: "str | os.PathLike[str]", timeout: float = 600.0) -> Optional[str]:
    """Returns the checkpoint to resume from; None if there is none: ``train(resume_from_checkpoint=latest(...))``.

    It is the one of the last step, of ckptd or of the Trainer itself, that is whole; a warning in the log names those
    that are passed over. One of ckptd is read once and verified, on the disk, where the Trainer reads it without its
    checksums. One of the Trainer must have what a resume needs, in files that do not end early. It waits for what an
    earlier job had handed over to the daemon, which writes on when a job is killed.

    With ``configure(upload=)`` the first call of a launch asks the bucket, too: if that has a newer one, it is in
    ``output_dir`` when the call returns.

    Args:
        timeout (float): seconds to wait. Default: 600

    Raises:
        ckptd.Refused: the bucket does not answer (``RESTORE_FAILED``).
        ckptd.CkptdError: no daemon answers, or all checkpoints are damaged.
    """
    root = directory_path(output_dir, "output_dir")
    process.fetch(root, timeout=timeout)
    if not os.path.isdir(root):
        return None
    reader = process.run_to_read(root)
    if reader is not None:
        await_sealed(reader, timeout)
    ours = _committed(reader if reader is not None else open_root(root))
    ours = [tag for tag in ours if os.path.isdir(os.path.join(root, tag))]  # Or else the Trainer has removed it.
    others = sorted((name for name in os.listdir(root) if _step(name) >= 0 and name not in ours), key=_step, reverse=True)
    damage: Optional[errors.Corrupt] = None
    while ours or others:
        newest = ours if not others or (ours and _step(ours[0]) >= _step(others[0])) else others
        path = os.path.join(root, newest.pop(0))
        try:
            lacking = _check(path)
            if not lacking:
                return path
            _log.warning("ckptd: %s is passed over: %s", path, lacking)
        except errors.Corrupt as error:
            _log.warning("ckptd: %s is passed over: %s", path, error)
            damage = error
    if damage is not None:
        raise damage
    return None


def _committed(reader: Any) -> List[str]:
    """Returns the checkpoints that are neither suspect nor known to be damaged, newest first. Raises if all are."""
    reader.latest()
    return [info.tag for info in reader.list() if _step(info.tag) >= 0 and not info.damage and not info.suspect]


def _step(name: str) -> int:
    """Returns the step in the name of a checkpoint; -1 if it is not the name of one."""
    found = _TAG.match(name)
    return int(found.group(1)) if found else -1


def _check(path: str) -> str:
    """Verifies a checkpoint of ckptd. Returns what one of the Trainer lacks; empty if nothing."""
    if is_committed(path):
        _verify(path)
        return ""
    return trainer_files.what_is_missing(path)


def _verify(path: str) -> None:
    """Reads all files of a checkpoint on the disk, once in this process. Corrupt if a byte is not what was saved."""
    root, tag = os.path.split(path)
    with open_root(root).open(tag) as checkpoint:
        before = _stats(path, checkpoint.files)
        if _verified.get(path) != before:
            checkpoint._verify()
            _verified[path] = before


def _stats(path: str, names: Iterable[str]) -> List[Any]:
    """Returns what changes when files are replaced or written to. Corrupt files may be missing."""
    found = []
    for name in [".ckptd/manifest", *names]:
        with contextlib.suppress(OSError):
            stat = os.stat(os.path.join(path, name))
            found.append((name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return found


def _keep(save_total_limit: Optional[int]) -> Optional[Keep]:
    """Returns the newest ones, and the best one beside them; None, which keeps all, without a limit."""
    if save_total_limit is None or save_total_limit <= 0:
        return None
    return Keep(last=save_total_limit, best=1, metric=_BEST, mode="max")


def _log_failure(save: Any) -> None:
    if save.exception() is not None:
        _log.warning("ckptd: a checkpoint was not saved: %s", save.exception())


# ---- what the Trainer writes


class _WrittenFiles(Dict[str, Any]):
    """Files that the Trainer writes while Run.save() asks for them: an error there ends the save on all ranks."""

    def __init__(self, trainer: Any, place: Place, folder: str, write: "Callable[[], None]") -> None:
        """folder: for the small files, until they are copied."""
        super().__init__()
        self._trainer = trainer
        self._place = place
        self._folder = folder
        self._write = write

    def items(self) -> Any:
        with _redirected(self._trainer, self._folder), _captured(self._folder) as large:
            self._write()
        self._correct_best()
        prefix = self._place.tag + "/"
        files = {**{name: File(os.path.join(self._folder, name)) for name in _files_below(self._folder)}, **large}
        return [(name[len(prefix) :], value) for name, value in sorted(files.items())]

    def _correct_best(self) -> None:
        """Gives the best checkpoint, if it is this one, its final name."""
        state = self._trainer.state
        if state.best_global_step != state.global_step:
            return
        state.best_model_checkpoint = self._place.path
        if self._trainer.args.should_save:
            state.save_to_json(os.path.join(self._folder, self._place.tag, TRAINER_STATE_NAME))


def _files_below(folder: str) -> Iterator[str]:
    """Returns the names of all files, relative to the folder."""
    for directory, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(directory, name), folder)


@contextlib.contextmanager
def _redirected(trainer: Any, folder: str) -> Iterator[None]:
    """Makes a Trainer write its checkpoints below a folder. It sets an attribute of this Trainer; others are not affected."""
    trainer._get_output_dir = lambda trial=None: folder
    try:
        yield
    finally:
        del trainer._get_output_dir


@contextlib.contextmanager
def _captured(folder: str) -> Iterator[Dict[str, Any]]:
    """Collects the weights and the optimizer's state that this thread saves below a folder, in the place of writing them.

    So they are copied once, into the daemon's memory.
    """
    found: Dict[str, Any] = {}
    thread, torch_save, save_file = threading.get_ident(), torch.save, safetensors.torch.save_file

    def is_below(path: Any) -> bool:
        return threading.get_ident() == thread and isinstance(path, (str, os.PathLike)) and _is_in(folder, path)

    @functools.wraps(torch_save)
    def save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        if is_below(f) and os.path.basename(f) in _LARGE and not args and not options:
            found[os.path.relpath(f, folder)] = Torch(obj)
        else:
            torch_save(obj, f, *args, **options)

    @functools.wraps(save_file)
    def save_safetensors(tensors: Any, filename: Any, metadata: Any = None) -> None:
        if is_below(filename) and metadata == _FORMAT:
            found[os.path.relpath(filename, folder)] = _safetensors_image(tensors)
        else:
            save_file(tensors, filename, metadata)

    with Patches() as patches:
        patches.replace(torch, "save", save)
        patches.replace(safetensors.torch, "save_file", save_safetensors)
        patches.replace(modeling_utils, "safe_save_file", save_safetensors)  # The same function, imported by name.
        yield found


def _is_in(folder: str, path: Any) -> bool:
    return str(os.path.abspath(path)).startswith(folder + os.sep)


def _safetensors_image(tensors: Mapping[str, Any]) -> Any:
    def piece(name: str, tensor: Any) -> Piece:
        return Piece(name, tensor.dtype, tuple(tensor.shape), (0,) * tensor.dim(), [tensor])

    return lay_out((piece(name, tensor) for name, tensor in tensors.items()), sharded=False)[0].image()


# ---- the methods of Trainer that the callback replaces: the events of callbacks come after a save, and after a load

_patches = Patches()


def _replace_methods() -> None:
    """Replaces them, once. They do as before for a Trainer without the callback."""
    if _patches:
        return
    methods: Dict[str, Callable[..., Any]] = {
        "_save_checkpoint": _save_checkpoint,
        "_load_best_model": _load_best_model,
        "_load_from_checkpoint": _load_from_checkpoint,
        "_finalize_training": _finalize_training,
        "train": _train,
    }
    needed = [(transformers.Trainer, name) for name in methods]
    needed += [(modeling_utils, "safe_save_file"), (trainer_module, "sort_checkpoints")]
    lacking = [name for owner, name in needed if not callable(getattr(owner, name, None))]
    if lacking:
        raise RuntimeError(
            f"transformers {transformers.__version__} has no {', '.join(lacking)}: "
            "ckptd.transformers.CheckpointCallback was tested with 5.23; leave it out, or install that"
        )
    for name, method in methods.items():
        _patches.wrap(transformers.Trainer, name, method)


def _train(stock: Any, trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
    """Chooses what ``resume_from_checkpoint=True`` means: what latest() returns."""
    if resume_from_checkpoint is True and _callback_of(trainer) is not None:
        resume_from_checkpoint = latest(trainer.args.output_dir) or True  # Without one, the Trainer says so.
    elif isinstance(resume_from_checkpoint, (str, os.PathLike)) and not os.path.lexists(resume_from_checkpoint):
        process.fetch(os.path.dirname(os.path.abspath(resume_from_checkpoint)))
    return stock(trainer, resume_from_checkpoint, *args, **options)


_searches = Patches()


def _replace_last_checkpoint() -> None:
    """Has transformers' own get_last_checkpoint() find what is in the bucket, wherever a program has imported it, once."""
    if not _searches and bucket.is_resumed_from(process.settings.upload):
        stock = trainer_utils.get_last_checkpoint
        _searches.replace_everywhere({stock: with_stock(_get_last_checkpoint, stock)})


def _get_last_checkpoint(stock: Any, folder: Any, *args: Any, **options: Any) -> Any:
    process.fetch(directory_path(folder, "folder"))
    return stock(folder, *args, **options)


def _finalize_training(stock: Any, trainer: Any, *args: Any, **options: Any) -> Any:
    """Keeps the Trainer, which lists the checkpoints and looks at each, from those that ckptd is removing meanwhile."""
    callback, listing = _callback_of(trainer), trainer_module.sort_checkpoints
    if callback is None:
        return stock(trainer, *args, **options)

    def sort_checkpoints(*args: Any, **options: Any) -> Any:
        removed = callback._removed()
        return [path for path in listing(*args, **options) if os.path.basename(path) not in removed]

    with Patches() as patches:
        patches.replace(trainer_module, "sort_checkpoints", sort_checkpoints)
        return stock(trainer, *args, **options)


def _save_checkpoint(stock: Any, trainer: Any, model: Any, trial: Any) -> None:
    write, callback = functools.partial(stock, trainer, model, trial), _callback_of(trainer)
    if callback is None:
        write()
    else:
        callback.save(trainer, trainer._get_output_dir(trial=trial), write)


def _load_best_model(stock: Any, trainer: Any) -> None:
    callback = _callback_of(trainer)
    if callback is not None:
        callback._await_all()
        if trainer.state.best_model_checkpoint:
            _verify_or_warn(trainer.state.best_model_checkpoint)
    stock(trainer)


def _load_from_checkpoint(stock: Any, trainer: Any, resume_from_checkpoint: str, *args: Any, **options: Any) -> None:
    if _callback_of(trainer) is not None:
        _verify_or_warn(resume_from_checkpoint)
    stock(trainer, resume_from_checkpoint, *args, **options)


def _verify_or_warn(path: str) -> None:
    """Verifies a checkpoint that the Trainer is about to read; warns of one that ckptd has not committed."""
    path = os.path.abspath(path)
    if is_committed(path):
        _verify(path)
    else:
        warn_unverified(path)


def _callback_of(trainer: Any) -> Optional[CheckpointCallback]:
    callbacks = trainer.callback_handler.callbacks
    return next((found for found in callbacks if isinstance(found, CheckpointCallback)), None)
