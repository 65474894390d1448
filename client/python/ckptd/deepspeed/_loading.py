"""Loading: the same checkpoint on every rank, verified before DeepSpeed changes anything."""

import contextlib
import copy
import inspect
import logging
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ckptd import errors
from ckptd._adapters import bucket, root_paths
from ckptd._adapters.ranks import from_all_ranks, from_first_rank
from ckptd._checkpoint_info import CheckpointInfo
from ckptd._checkpoint_paths import is_committed, warn_unverified
from ckptd._paths import open_regular
from ckptd.deepspeed import _classes, _names, _universal, _whole_weights
from ckptd.deepspeed._needed import needed_files
from ckptd.deepspeed._process import MEET_SECONDS, Place, await_sealed, process
from ckptd.deepspeed._resharding.reshard import Resharded, reshard
from ckptd.deepspeed._saved_parts import Files
from ckptd.restore import Checkpoint, has_pointer, open_root

_log = logging.getLogger("ckptd")
_LATEST = "latest"


class Opened:
    """A checkpoint while an engine loads it; a context manager. What this rank needs is loaded before the engine asks.

    If ckptd has not committed it, load() reads as DeepSpeed does, and a warning in the log says so.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.folder = _names.Folder(place.root)  # From which DeepSpeed believes to load.
        self._checkpoint: Optional[Checkpoint] = None
        self._values: Dict[str, Any] = {}
        self._resharded = Resharded({}, [])
        self._weights: Optional[Dict[str, Any]] = None

    def load_files(self, engine: Any, arguments: Mapping[str, Any]) -> None:
        """Loads the files that this rank's engine will ask for. arguments: those of load_checkpoint()."""
        self._checkpoint = process.open(self.place)
        if self._checkpoint is None:
            there = root_paths.of(self.place.root)
            if not there.is_directory or not there.exists(self.place.tag):
                raise errors.NotFound(
                    f"there is no checkpoint {self.place.path}", reason="NO_CHECKPOINT", tag=self.place.tag
                )
            warn_unverified(self.place.path)
        files = Files(self.place.path, self._checkpoint)
        self._resharded = reshard(engine, arguments, files) or self._resharded
        if _whole_weights.are_needed(engine, arguments):
            self._weights = _whole_weights.whole_weights(self.place.path, files)
            _log.info(
                "ckptd: the weights are those of the tag %s, verified; without the optimizer's state DeepSpeed alone would load "
                "those of the tag that %s names",
                self.place.tag,
                _LATEST,
            )
        if self._checkpoint is not None:
            self.folder.show(self.place.tag, self._checkpoint.files)
            for name in needed_files(engine, arguments, self._checkpoint.files):
                if name not in self._resharded.values:
                    self._values[name] = _classes.load(self._checkpoint, name)

    def model_files(self) -> List[str]:
        """Returns the paths of the model's files that stand for this rank's own; empty if it has its own."""
        return [os.path.join(self.folder.of(self.place.tag), name) for name in self._resharded.model_files]

    def take_weights(self) -> Optional[Dict[str, Any]]:
        """Returns the weights of the whole model, once; None if the engine does not need them."""
        weights, self._weights = self._weights, None
        return weights

    def load(self, path: str, map_location: Any) -> Any:
        """Returns a file's value. It is not kept: DeepSpeed changes it."""
        name = _names.file_in(self.folder.of(self.place.tag), path)
        if name in self._resharded.values:
            return _with_own_containers(self._resharded.values[name])  # DeepSpeed asks for the model's twice.
        if self._checkpoint is None or not name:
            return read_file(path, map_location)
        if name in self._values:
            return self._values.pop(name)
        return _classes.load(self._checkpoint, name, map_location)

    def close(self) -> None:
        """Ends the lease. May be called more than once."""
        checkpoint, self._checkpoint = self._checkpoint, None
        self._values, self._resharded, self._weights = {}, Resharded({}, []), None
        self.folder.close()
        if checkpoint is not None:
            checkpoint.close()

    def give_up(self) -> None:
        """Ends the lease of a checkpoint that could not be loaded. Damage that was found here is not raised again."""
        with contextlib.suppress(errors.Corrupt):
            self.close()

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _with_own_containers(value: Any) -> Any:
    """Returns a copy of a state with the same tensors."""
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update((key, _with_own_containers(each)) for key, each in value.items())
        return made
    return [_with_own_containers(each) for each in value] if type(value) is list else value


def read_file(path: str, map_location: Any) -> Any:
    """Loads one file: verified if ckptd has committed it, else as DeepSpeed does."""
    place = _names.place_of_file(path)
    opened = process.open(place) if is_committed(place.path) else None
    if opened is not None:
        with opened as checkpoint:
            return _classes.load(checkpoint, os.path.basename(path), map_location)
    warn_unverified(place.path)
    return _classes.load_file(path, map_location)


def load_checkpoint(
    engine: Any, load: "Callable[[Opened], Any]", stock: Callable[..., Any], asked: inspect.BoundArguments
) -> Any:
    """Loads a checkpoint into an engine, as DeepSpeed's load_checkpoint() with the same arguments.

    Without a tag it is the one that `latest` names; in a bucket, which has no such file, the newest that is not suspect. If that is not there, or a rank finds it damaged, all ranks load the
    next older one. If `latest` itself is gone, they load the newest checkpoint that was saved with it.
    What is in flight is waited for, and a newer checkpoint of the bucket. It may have been saved by another number of
    data-parallel ranks. If the engine loads
    universal checkpoints, and there is none, it is made.

    Args:
        load: has DeepSpeed load an opened checkpoint, with the arguments of `asked`.
        stock: DeepSpeed's own method.
        asked: its arguments.

    Raises:
        errors.Corrupt: the checkpoint of the tag, or every one, is damaged.
        errors.NotFound: there is none of the tag; or none that `latest` names, and no other.
        errors.CheckpointFailed: another rank could not load its files. No engine has changed.
        CannotConvert: the engine loads universal checkpoints, and one cannot be made without loss.
        errors.Refused: it was saved by another number of ranks, and is not of this model; or the bucket does not answer. No
            engine has changed.
    """
    root, tag = _names.root_of(asked.arguments["load_dir"]), asked.arguments["tag"]
    there = root_paths.of(root)
    process.meet((), MEET_SECONDS)
    if tag is None:
        process.join_to_resume(root, ())
    if bucket.is_resumed_from(process.settings.upload):
        _agreed(lambda: _fetched(root, tag))
    if asked.arguments["load_module_only"] and engine.zero_optimization_partition_weights() and not engine.has_moe_layers:
        # Otherwise DeepSpeed does not read the weights, which at stage 3 are in the optimizer's files.
        asked.arguments["load_optimizer_states"] = False
    if engine.load_universal_checkpoint():
        _names.check_directory(root)
        process.await_root(root)
        made = _agreed(lambda: _made_universal(root, tag))
        if made:
            asked.arguments["load_dir"], asked.arguments["tag"] = made
        if asked.arguments["tag"] is not None:
            warn_unverified(os.path.join(asked.arguments["load_dir"], str(asked.arguments["tag"])))
    elif there.is_there():
        process.await_root(root)
        candidates = _agreed(lambda: _candidates(root, tag))
        for number, candidate in enumerate(candidates):
            is_last = number + 1 == len(candidates)
            asked.arguments["tag"] = candidate
            opened = _open_on_all(Place(root, candidate), engine, asked.arguments, is_last)
            if opened is not None:
                with opened:
                    if there.is_directory:
                        return load(opened)
                    asked.arguments["load_dir"] = opened.folder.path
                    return _in_bucket(load(opened), opened.folder.path, root)
    return stock(*asked.args, **asked.kwargs)


def _in_bucket(loaded: Any, folder: str, root: str) -> Any:
    """Returns the result of DeepSpeed's load_checkpoint() with the URL in the place of the folder that stands for it."""
    if isinstance(loaded, tuple) and loaded and isinstance(loaded[0], str):
        return loaded[0].replace(folder, root, 1), *loaded[1:]
    return loaded


def _fetched(root: str, tag: Optional[str]) -> List[str]:
    """Brings what is newer in the bucket into the root, unless a tag is asked for that is there. Returns nothing."""
    if tag is None or not os.path.lexists(os.path.join(root, str(tag))):
        process.fetch(root)
    return []


def _candidates(root: str, tag: Optional[str]) -> List[str]:
    """Returns the tags to try, in order; none if there is no tag, no `latest`, and no checkpoint that was saved with one."""
    run = process.run_to_read(root)
    if run is not None:
        await_sealed(run, process.settings.timeout, None if tag is None else str(tag))
    if tag is not None:
        return [str(tag)]
    latest = _read_latest(root)
    infos = run.list() if run is not None else open_root(root).list()
    if latest is None and not root_paths.of(root).is_directory:
        return _usable(root, infos)
    if latest is None:
        infos = [info for info in infos if not info.damage and has_pointer(os.path.join(root, info.tag), _LATEST)]
        if infos:
            path = os.path.join(root, _LATEST)
            _log.warning("ckptd: %s is missing: the newest checkpoint that was saved with it, %s, is loaded", path, infos[0].tag)
        return [info.tag for info in infos]
    whole = [info for info in infos if not info.damage and info.tag != latest]
    named = next((info.sequence for info in infos if info.tag == latest), None)
    if named is not None:
        whole = [info for info in whole if info.sequence < named]
    # Otherwise it is not there, of another program, or has a damaged manifest: which ones are older is not known.
    tags = [info.tag for info in whole]
    if latest:
        return [latest, *tags]
    path = os.path.join(root, _LATEST)
    if not tags:
        raise errors.NotFound(f"{path} is empty, and there is no other checkpoint", reason="NO_CHECKPOINT")
    _log.warning("ckptd: %s is empty: the newest checkpoint, %s, is loaded", path, tags[0])
    return tags


def _usable(root: str, infos: List[CheckpointInfo]) -> List[str]:
    """Returns the tags of a bucket's checkpoints that can be loaded without being named, newest first; none if it has no checkpoint."""
    tags = [info.tag for info in infos if not info.damage and not info.suspect]
    if infos and not tags:
        raise errors.Corrupt(
            f"all checkpoints in {root} are damaged or suspect, the newest of them {infos[0].tag} ({infos[0].damage or infos[0].suspect}); "
            "load one by its tag",
            reason="CHECKPOINT_DAMAGED",
            tag=infos[0].tag,
        )
    return tags


def _made_universal(root: str, tag: Optional[str]) -> List[str]:
    """Returns the directory and the tag of the universal checkpoint that DeepSpeed is to load; empty: it finds that itself."""
    if not os.path.isdir(root) or (tag is None and os.path.exists(os.path.join(root, _universal.LATEST))):
        return []
    candidates = [Place(root, each) for each in _candidates(root, tag)]
    for number, place in enumerate(candidates):
        try:
            made = _universal.universal_of(place)
            return [] if made is None else [made.root, made.tag]
        except (errors.Corrupt, errors.NotFound) as error:
            if number + 1 == len(candidates):
                raise
            _log.warning("ckptd: loading the next older checkpoint: %s cannot be loaded: %s", place.path, error)
    return []


def _read_latest(root: str) -> Optional[str]:
    if not root_paths.of(root).is_directory:
        return None
    try:
        with open(os.path.join(root, _LATEST), encoding="utf-8", opener=open_regular) as file:
            return file.read().strip()
    except FileNotFoundError:
        return None


# ---- what all ranks do together


def _agreed(find: Callable[[], List[str]]) -> List[str]:
    """Returns what rank 0 finds. If that raises, all ranks raise the same."""
    return from_first_rank(find, error_elsewhere=lambda error: error)


def _open_on_all(
    place: Place, engine: Any, arguments: Mapping[str, Any], is_last: bool
) -> Optional[Opened]:
    """Opens a checkpoint and loads the files that this rank needs.

    Returns:
        None if it is not there, or a rank has found damage, and there is another checkpoint to try.
    """
    opened, failed = Opened(place), None
    try:
        opened.load_files(engine, arguments)
    except Exception as error:  # noqa: BLE001 - The other ranks wait for this one's answer.
        failed = error
    failures = _failures_of_all(failed)
    if not failures:
        return opened
    opened.give_up()
    words = "; ".join(f"rank {rank}: {words}" for rank, (_, words) in failures.items())
    if not is_last and all(is_damage for is_damage, _ in failures.values()):
        _log.warning("ckptd: loading the next older checkpoint: %s cannot be loaded: %s", place.path, words)
        return None
    if failed is not None:
        raise failed
    raise errors.CheckpointFailed(
        f"another rank could not load {place.path}, so nothing was loaded here either: {words}",
        reason="RESUME_FAILED",
        tag=place.tag,
        ranks=list(failures),
    )


def _failures_of_all(failed: Optional[Exception]) -> Dict[int, Tuple[bool, str]]:
    """Returns the ranks that have failed, with whether the checkpoint is damaged or missing, and the error in words."""
    is_damage = isinstance(failed, (errors.Corrupt, errors.NotFound))
    mine = None if failed is None else (is_damage, f"{type(failed).__name__}: {failed}")
    return {rank: failure for rank, failure in enumerate(from_all_ranks(mine)) if failure is not None}
