"""A StorageWriter of DCP that saves through ckptd."""

import copy
import dataclasses
import functools
import os
import pickle
import threading
import uuid
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ckptd._paths import step_of
from ckptd._saving.part import Part
from ckptd._saving.save import LevelName, Save
from ckptd._torch.tensor_file import TensorFile
from ckptd.dcp import _directory, _names
from ckptd.dcp._async import SaveFuture
from ckptd.dcp._process import Place, place_of, process
from ckptd.dcp._repeated import RepeatedSave
from ckptd.dcp._stager import Stager
from ckptd.retention import Keep, keep_of_arguments

_WAIT = ("committed", "sealed")
_ADMISSION_SECONDS = 120.0


@dataclasses.dataclass
class Assignment:
    """Which rank of how many writes a plan. It travels with the plan."""

    rank: int
    world_size: int


class Options(NamedTuple):
    """What the user chose for a Writer, beside its path."""

    single_file_per_rank: bool
    thread_count: int
    overwrite: Optional[bool]
    keep: Optional[Keep]
    metrics: Optional[Mapping[str, float]]
    step: Optional[int]
    wait: LevelName
    timeout: float


class _Saving(threading.local):
    """One save. DCP calls a writer from one thread in each save, and from several in saves that overlap."""

    place: Optional[Place] = None  # From reset(); by default the Writer's.
    number = 0  # Of this save among those of its place, the same on all ranks.
    save_id = ""
    rank: Optional[int] = None
    use_collectives = True
    part: Optional[Part] = None  # Of the rank that writes metadata, until that is written.
    is_unfinished = False  # Something may have been set aside.
    repeated: Optional[RepeatedSave] = None  # Set by save_async(): the other ranks do not need the metadata.
    metadata: Optional[Metadata] = None  # Then the coordinator's.
    saved: Optional[SaveFuture] = None  # In the thread of async_save(): what stage() has saved.
    save: Optional[Save] = None


class Writer(StorageWriter, Stager):
    """Saves a checkpoint through ckptd, in DCP's format: ``dcp.save(state, storage_writer=Writer("/ckpts/step-10"))``.

    The parent of the path is ckptd's root, and its last component the tag. ``dcp.save`` returns when the
    checkpoint is committed: durable, under its name in one step, and read by the stock reader, too. When the
    call returns, every tensor has been copied once, into the daemon's memory, and may change.

    ``dcp.async_save`` with a Writer returns after that copy: it plans, copies and hands over on the calling
    thread, and its thread only waits for the commit.

    Args:
        path (str or os.PathLike): the checkpoint's directory. ``checkpoint_id`` of the call replaces it.
        single_file_per_rank (bool): one file for each rank rather than one for each value. Default: ``True``
        sync_files (bool): accepted for compatibility: a committed checkpoint is always synced.
        thread_count (int): the number of files of each rank, as DCP's writer has it. Default: 1
        per_thread_copy_ahead (int): accepted for compatibility and ignored.
        cache_staged_state_dict (bool): accepted for compatibility and ignored: nothing is staged twice.
        overwrite (bool, optional): ``False`` refuses a directory that holds a checkpoint; ``True`` replaces
            one that DCP's own writer has written, too. Default: replace only what ckptd has committed
        num_kept_ckpts (int, optional): how many of ckptd's checkpoints in the root to keep. Default: all
        retention (Keep, optional): which of ckptd's checkpoints in the root to keep; not beside ``num_kept_ckpts``.
            Default: all
        metrics (Mapping[str, float], optional): named values of this checkpoint, for ``Keep(best=)``
        step (int, optional): the step of this checkpoint, for ``Keep(every=)``. Default: the number at the end of
            its name
        wait (str): what ``dcp.save`` waits for: ``"committed"``, or ``"sealed"``: every rank's part is with
            the daemon, which finishes even if all ranks are killed. Default: ``"committed"``
        timeout (float): seconds to wait for room, and for ranks that do not save. Default: 120

    Raises:
        ValueError: an argument is not supported.
        Refused: a retention argument is out of its range.
    """

    def __init__(
        self,
        path: "str | os.PathLike[str]",
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: Optional[bool] = None,
        _extensions: Any = None,
        serialization_format: Any = None,
        *,
        num_kept_ckpts: Optional[int] = None,
        retention: Optional[Keep] = None,
        metrics: Optional[Mapping[str, float]] = None,
        step: Optional[int] = None,
        wait: LevelName = "committed",
        timeout: float = _ADMISSION_SECONDS,
    ) -> None:
        super().__init__()
        Stager.__init__(self)
        if wait not in _WAIT:
            raise ValueError(f'wait is "{wait}"; it must be "committed" or "sealed"')
        if thread_count < 1:
            raise ValueError(f"thread_count is {thread_count}; it must be at least 1")
        if _extensions:
            raise ValueError(
                "_extensions transform the files as a stream, and ckptd lays them out in place: leave them out, or use "
                "torch.distributed.checkpoint.FileSystemWriter"
            )
        if getattr(serialization_format, "value", "torch_save") != "torch_save":
            raise ValueError(
                f"serialization_format is {serialization_format}, and a Writer writes TORCH_SAVE: leave it out, or use "
                "ckptd.dcp.HuggingFaceWriter, as DCP's HuggingFaceStorageWriter"
            )
        self._path = place_of(path)
        keep = keep_of_arguments(retention, num_kept_ckpts)
        self.options = Options(single_file_per_rank, thread_count, overwrite, keep, metrics, step, wait, timeout)
        self._now = _Saving()

    # ---- StorageWriter, in the order of the calls

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        """Begins another save; to ``checkpoint_id``, if that is given."""
        self._abandon("another save has begun")
        if checkpoint_id:
            self._now.place = place_of(checkpoint_id)

    def storage_meta(self) -> StorageMeta:
        """Returns the ids of the checkpoint and of this save, which it begins: DCP calls it first, on every rank."""
        self._now.number = process.count(self._place)
        self._now.save_id = str(uuid.uuid4())
        return self._meta()

    def _meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self._place.path, save_id=self._now.save_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Takes over this rank's place in the save."""
        self._abandon("another save has begun")
        self._now.rank = kwargs.get("rank")
        self._now.use_collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuses an existing checkpoint where ``overwrite=False`` was given."""
        self._now.saved = self._staged_by(plan)
        if self._now.saved is not None:
            return dataclasses.replace(plan, items=[])
        if self.options.overwrite is False and _directory.holds_checkpoint(self._place.path):
            raise RuntimeError(
                f"Checkpoint already exists and self.overwrite=False: {self._place.path}; save under another name, or "
                "leave overwrite out"
            )
        if self._now.rank is not None and not self._now.use_collectives:
            plan = dataclasses.replace(plan, storage_data=Assignment(self._now.rank, _world_size()))
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        """Tells each rank which one it is. Only the coordinator calls it."""
        if self._now.saved is not None:
            return plans
        if self._now.use_collectives or self._now.rank in (None, 0):
            self._now.is_unfinished = True
            _directory.make_way(self._place, self.options.overwrite)
        return [
            plan
            if isinstance(plan.storage_data, Assignment)
            else dataclasses.replace(plan, storage_data=Assignment(rank, len(plans)))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        """Copies this rank's values into the daemon's memory.

        An error ends the save for all ranks.
        """
        done: "Future[List[WriteResult]]" = Future()
        if self._now.saved is not None:
            self._now.saved.result(process.settings.timeout)
            done.set_result([])
            return done
        who: Assignment = plan.storage_data
        run = process.run(self._place.root, who.rank, who.world_size)
        run.retention = self.options.keep
        run._membership.advance_ordinal(self._place.tag, self._now.number)
        files = self._files(plan, planner)
        arguments: Any = {
            "files": files,
            "step": step_of(self._place.tag) if self.options.step is None else self.options.step,
            "metrics": self.options.metrics,
            "timeout": self.options.timeout,
        }
        if who.rank == 0 or not self._now.use_collectives:
            self._now.part = run.begin(self._place.tag, **arguments)
        else:
            self._remember(run.save(self._place.tag, **arguments))
        repeated = self._now.repeated
        done.set_result(files.results if repeated is None else repeated.outgoing(who.rank, files.results))
        return done

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        """Adds the metadata, hands the part over, and waits for what ``wait`` names.

        Only the coordinator calls it, when all ranks have written; without collectives every rank does.
        """
        if self._now.saved is not None:
            vars(metadata).update(vars(self._now.saved.result()))
            return
        assert self._now.part is not None  # write_data() has begun it.
        if self._now.repeated is not None:
            results = self._now.repeated.incoming(results)
        try:
            with self._now.part as part:
                for name, value in self._last_files(metadata, results):
                    part.add(name, value)
            if self._now.repeated is not None:
                self._now.metadata = copy.copy(metadata)
                metadata.state_dict_metadata, metadata.storage_data, metadata.planner_data = {}, {}, {}
            self._remember(part.save)
            part.save.wait(self.options.wait, process.settings.timeout)
            if self.options.wait == "sealed" and _directory.has_aside(self._place):
                settle = functools.partial(_directory.settle, self._place)
                part.save.future("committed").add_done_callback(lambda _: settle())
                self._now.is_unfinished = False
        finally:
            self._now.part = None
            if self._now.is_unfinished:
                self._now.is_unfinished = False
                _directory.settle(self._place)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:
        """Returns whether it is a path, and no URL."""
        return "://" not in os.fspath(checkpoint_id)

    @property
    def checkpoint_id(self) -> str:
        """The absolute path of the checkpoint."""
        return self._place.path

    # ---- the files

    def _files(self, plan: SavePlan, planner: SavePlanner) -> "Files":
        """Returns this rank's files."""
        return _ItemFiles(plan, planner, self.options)

    def _last_files(self, metadata: Metadata, results: List[List[WriteResult]]) -> Iterator[Tuple[str, Any]]:
        """Returns the files that are made when all ranks have written; completes the metadata."""
        metadata.version = _names.FORMAT_VERSION
        metadata.storage_data = {one.index: one.storage_data for of_rank in results for one in of_rank}
        metadata.storage_meta = self._meta()
        name = _names.metadata_file(None if self._now.use_collectives else self._now.rank)
        yield name, pickle.dumps(metadata)

    # ---- the rest

    @property
    def save(self) -> Optional[Save]:
        """The save that this thread has made last with this Writer."""
        return self._now.save

    @property
    def _place(self) -> Place:
        return self._now.place or self._path

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError(
            "a ckptd.dcp.Writer cannot go to another process: use dcp.async_save with AsyncCheckpointerType.THREAD, or call "
            "ckptd.dcp.install(), which needs neither a thread nor a process"
        )

    def save_repeated(
        self, state_dict: Any, repeated: Optional[RepeatedSave], arguments: Dict[str, Any]
    ) -> Optional[Metadata]:
        """Calls dcp.save() with short messages, if `repeated` is given. Then only the coordinator returns the
        metadata; the other ranks return None.
        """
        self._now.repeated, self._now.metadata = repeated, None
        try:
            metadata: Metadata = _names.stock_save(state_dict, storage_writer=self, **arguments)
            if repeated is None:
                return metadata
            repeated.confirm()
            return self._now.metadata
        except BaseException:
            if repeated is not None:
                repeated.clear()
            raise
        finally:
            self._now.repeated = self._now.metadata = None

    def _remember(self, save: Save) -> None:
        self._now.save = save
        process.add(self._place, save)

    def _abandon(self, why: str) -> None:
        """Ends a save that another rank's failure has left without metadata, and undoes what it replaced."""
        part, self._now.part = self._now.part, None
        if part is not None:
            part.abort(why)
        if self._now.is_unfinished:
            self._now.is_unfinished = False
            _directory.settle(self._place)

    def __repr__(self) -> str:
        return f"<ckptd.dcp.Writer {self._place.path}>"


class Files(Dict[str, Any]):
    """This rank's files, which items() lays out while the run iterates over them: an error there ends the save on
    all ranks.
    """

    def __init__(self, plan: SavePlan, planner: SavePlanner) -> None:
        super().__init__()
        self._plan = plan
        self._planner = planner
        self.results: List[WriteResult] = []


class _ItemFiles(Files):
    """Files in DCP's own format."""

    def __init__(self, plan: SavePlan, planner: SavePlanner, options: Options) -> None:
        super().__init__(plan, planner)
        self._options = options

    def items(self) -> Any:
        self.results.clear()
        rank = self._plan.storage_data.rank
        for number, items in enumerate(self._buckets()):
            if items:
                name = _names.data_file(rank, number)
                yield name, self._lay_out(name, items)

    def _buckets(self) -> List[List[Any]]:
        if self._options.single_file_per_rank:
            return _names.split(self._plan.items, self._options.thread_count)
        return [[item] for item in self._plan.items]

    def _lay_out(self, name: str, items: List[Any]) -> Any:
        """Returns the image of a file: objects first, as in DCP, then tensors."""
        file = TensorFile()
        for item in sorted(items, key=_names.is_bytes, reverse=True):
            data: Any = self._planner.resolve_data(item)
            placed = file.add_bytes(data.getbuffer()) if _names.is_bytes(item) else file.add_archive(data)
            info = _names.storage_info(name, placed.offset, placed.length, placed.elements)
            self.results.append(WriteResult(item.index, placed.length, info))
        return file.image()


def _world_size() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
