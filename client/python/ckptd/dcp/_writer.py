"""A StorageWriter of DCP that saves through ckptd."""

import contextlib
import copy
import dataclasses
import functools
import os
import pickle
import threading
import uuid
from typing import Any, Callable, Dict, Iterator, List, Literal, Mapping, NamedTuple, Optional, Tuple, Union

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ckptd import errors
from ckptd._adapters import root_paths
from ckptd._adapters.node_process import ADMISSION_SECONDS
from ckptd._adapters.ranks import is_distributed
from ckptd._membership.launch import checked_rank
from ckptd._paths import step_of
from ckptd._saving.part import Part
from ckptd._saving.save import LevelName, Save
from ckptd._saving.save_options import StageName, check_stage
from ckptd.dcp import _directory, _names
from ckptd.dcp._async import SaveFuture
from ckptd.dcp._files import Assignment, Files, LazyFiles, PlannedFiles, SaveRecord, storage_data_of
from ckptd.dcp._planner_guard import guard
from ckptd.dcp._process import Place, place_of, process
from ckptd.dcp._stager import Stager
from ckptd.retention import Keep, keep_of_arguments

_WAIT = ("committed", "sealed")


class Options(NamedTuple):
    """The options of a Writer, beside its path."""

    single_file_per_rank: bool
    thread_count: int
    overwrite: Optional[bool]
    keep: Optional[Keep]
    metrics: Optional[Mapping[str, float]]
    step: Optional[int]
    wait: "Union[LevelName, Literal['begun']]"  # "begun": nothing, while devices copy.
    timeout: float
    stage: StageName

    @property
    def file_count(self) -> Optional[int]:
        """The number of files of each rank; None: one for each value."""
        return self.thread_count if self.single_file_per_rank else None


class _Saving(threading.local):
    """One save. DCP calls a writer from one thread in each save, and from several in saves that overlap."""

    place: Optional[Place] = None  # The argument of reset(); None: the Writer's own.
    number = 0  # Numbers the saves of this place, the same on all ranks.
    save_id = ""
    members: Tuple[int, ...] = ()  # The ranks of the job that save together; empty: this one without the others.
    rank: Optional[int] = None  # This rank in the process group.
    use_collectives = True
    part: Optional[Part] = None  # Open until the metadata is added, on the rank that writes that.
    is_unfinished = False  # A directory may be set aside, see _make_way().
    record: Optional[SaveRecord] = None
    saved: Optional[SaveFuture] = None  # In the thread of async_save(): the save that stage() has made.
    save: Optional[Save] = None


class Writer(StorageWriter, Stager):
    """Saves a checkpoint through ckptd, in DCP's format: ``dcp.save(state, storage_writer=Writer("/ckpts/step-10"))``.

    The parent of the path is ckptd's root, and its last component the tag. ``dcp.save`` returns when the
    checkpoint is committed: durable, under its name in one step, and read by the stock reader, too. When the
    call returns, every tensor has been copied once, into the daemon's memory, and may change.

    ``dcp.async_save`` with a Writer returns after that copy: it plans, copies and hands over on the calling
    thread, and its thread only waits for the commit. With ``stage="overlap"`` the copy from a GPU goes on beside
    the next forward and backward pass; ``staging_completion`` is done when it is.

    Args:
        path (str or os.PathLike): the checkpoint's directory, or ``s3://BUCKET/PREFIX/TAG`` for a run on one node.
            ``checkpoint_id`` of the call replaces it.
        single_file_per_rank (bool): one file for each rank rather than one for each value. Default: ``True``
        sync_files (bool): accepted for compatibility: a committed checkpoint is always synced.
        thread_count (int): the number of files of each rank, as DCP's writer has it. Default: 1
        per_thread_copy_ahead (int): accepted for compatibility and ignored.
        cache_staged_state_dict (bool): accepted for compatibility and ignored: nothing is staged twice.
        overwrite (bool, optional): ``False`` refuses a directory that holds a checkpoint; ``True`` replaces
            one that DCP's own writer has written, too. Default: replace only what ckptd has committed. In a bucket nothing is
            replaced
        num_kept_ckpts (int, optional): how many of ckptd's checkpoints in the root to keep. Default: all
        retention (Keep, optional): which of ckptd's checkpoints in the root to keep; not beside ``num_kept_ckpts``.
            Default: all
        metrics (Mapping[str, float], optional): named values of this checkpoint, for ``Keep(best=)``
        step (int, optional): the step of this checkpoint, for ``Keep(every=)``. Default: the number at the end of
            its name
        wait (str): what ``dcp.save`` waits for: ``"committed"``, or ``"sealed"``: every rank's part is with
            the daemon, which finishes even if all ranks are killed. Default: ``"committed"``
        timeout (float): seconds to wait for room, and for ranks that do not save. Default: 120
        stage (str): as in :meth:`ckptd.Run.save`: what ``dcp.async_save`` waits for, of tensors on a GPU. All ranks
            give the same. Default: ``"blocking"``

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
        timeout: float = ADMISSION_SECONDS,
        stage: StageName = "blocking",
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
        self._path = _place_to_save(path)
        keep = keep_of_arguments(retention, num_kept_ckpts)
        self.options = Options(
            single_file_per_rank, thread_count, overwrite, keep, metrics, step, wait, timeout, check_stage(stage)
        )
        self._now = _Saving()

    # ---- StorageWriter, in the order of the calls

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        """Begins another save; to ``checkpoint_id``, if that is given."""
        self._abandon("another save has begun")
        if checkpoint_id:
            self._now.place = _place_to_save(checkpoint_id)

    def storage_meta(self) -> StorageMeta:
        """Returns the ids of the checkpoint and of this save, which it begins: DCP calls it first, on every rank."""
        if self._now.record is None:  # Otherwise save_recorded() has set them, from its arguments.
            self._now.members = _names.members_of_save(self)
        self._join_call()
        return self._begin()

    def _begin(self) -> StorageMeta:
        self._now.number = process.count(self._place, self._ranks)
        self._now.save_id = str(uuid.uuid4())
        return self._meta()

    def _meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self._place.path, save_id=self._now.save_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Takes over this rank's place in the save."""
        self._abandon("another save has begun")
        self._now.rank = kwargs.get("rank")
        self._now.use_collectives = kwargs.get("use_collectives", True)
        # Errors in the other methods reach all ranks through DCP.
        alone = () if self._now.use_collectives else ("create_local_plan", "create_global_plan")
        guard(_names.planner_of_save(), (*alone, "finish_plan"), self._end_for_all)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuses an existing checkpoint where ``overwrite=False`` was given."""
        self._now.saved = self._staged_by(plan)
        if self._now.saved is not None:
            return dataclasses.replace(plan, items=[])
        self.check_overwrite()
        if self._now.rank is not None and not self._now.use_collectives:
            plan = dataclasses.replace(plan, storage_data=self._own_assignment())
        return plan

    def _own_assignment(self) -> Assignment:
        """Returns that of a rank that saves without collectives."""
        return Assignment(self._now.rank or 0, len(self._now.members) or _world_size(), self._now.save_id)

    def check_overwrite(self) -> None:
        """Raises RuntimeError if a checkpoint is there and ``overwrite=False`` was given."""
        if self.options.overwrite is False and _directory.holds_checkpoint(self._place):
            raise RuntimeError(
                f"Checkpoint already exists and self.overwrite=False: {self._place.path}; save under another name, or "
                "leave overwrite out"
            )

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        """Tells each rank which one it is. Only the coordinator calls it."""
        if self._now.saved is not None:
            return plans
        if self._now.use_collectives or self._now.rank in (None, 0):
            self._make_way()
        save_id = self._now.save_id
        return [
            plan
            if isinstance(plan.storage_data, Assignment)
            else dataclasses.replace(plan, storage_data=Assignment(rank, len(plans), save_id))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        """Copies this rank's values into the daemon's memory.

        An error ends the save for all ranks.
        """
        done: "Future[List[WriteResult]]" = Future()
        if self._now.saved is not None:  # This is the thread of async_save(): only the wait is left to do.
            self._now.saved.result(process.settings.timeout)
            done.set_result([])
            return done
        assignment: Assignment = plan.storage_data
        files = self._files(plan, planner)
        if self._now.record is not None:
            self._now.record.plan, self._now.record.files = plan, files
        self._upload(assignment, files)
        done.set_result(files.results)
        return done

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        """Adds the metadata, hands the part over, and waits for what ``wait`` names.

        Only the coordinator calls it, when all ranks have written; without collectives every rank does.
        """
        if self._now.saved is not None:
            vars(metadata).update(vars(self._now.saved.result()))
            return
        assert self._now.part is not None  # write_data() has begun it.
        try:
            with self._now.part as part:
                for name, value in self._last_files(metadata, results):
                    part.add(name, value)
            if self._now.record is not None:
                self._now.record.metadata, self._now.record.results = copy.copy(metadata), results
                # The other ranks, to which DCP sends it, do not need it.
                metadata.state_dict_metadata, metadata.storage_data, metadata.planner_data = {}, {}, {}
            self._remember(part.save)
            self._await(part.save)
        finally:
            self._now.part = None
            self._settle()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:
        """Returns whether it is a path, or the URL of a bucket."""
        return root_paths.is_name(checkpoint_id)

    @property
    def checkpoint_id(self) -> str:
        """The absolute path, or the URL, of the checkpoint.

        DCP's save() asks for it first, on every rank, where an error is not yet one of the many in a CheckpointException:
        ranks that cannot save together raise theirs here.
        """
        self._join_call()
        return self._place.path

    def _join_call(self) -> None:
        """Does what join() does for the call of DCP's save() that this thread is in. No-op outside of one."""
        staged = self._staged_of(_names.state_of_save(self))
        if staged is None:
            self.join(_names.members_of_save(self))
        elif staged.done() and isinstance(staged.exception(), errors.CkptdError):
            staged.result()  # Raises what join() has raised in stage().

    def join(self, members: Tuple[int, ...]) -> None:
        """Joins the run together with the ranks of this save: each of them calls it. No-op the second time.

        Raises:
            CkptdError: they cannot save to this root together; on all of them.
        """
        if members:
            process.join(self._place.root, members, self.options.timeout)

    # ---- the files

    def _files(self, plan: SavePlan, planner: SavePlanner) -> Files:
        """Returns this rank's files."""
        return PlannedFiles(plan, planner, self.options.file_count)

    def _last_files(self, metadata: Metadata, results: List[List[WriteResult]]) -> Iterator[Tuple[str, Any]]:
        """Returns the files that are made when all ranks have written; completes the metadata."""
        metadata.version = _names.FORMAT_VERSION
        metadata.storage_data = storage_data_of(results)
        metadata.storage_meta = self._meta()
        name = _names.metadata_file(None if self._now.use_collectives else self._now.rank)
        if self._now.record is None:
            yield name, pickle.dumps(metadata)
            return
        self._now.record.pickled = _names.MetadataPickle(metadata)
        yield name, self._now.record.pickled.with_storage_meta(metadata.storage_meta)

    # ---- the rest

    repeats_plans = True  # Whether a save may go by the plan of an earlier one.

    @property
    def save(self) -> Optional[Save]:
        """The save that this thread has made last with this Writer."""
        return self._now.save

    @property
    def save_id(self) -> str:
        """The id of the save that this thread has begun last with this Writer, as in the checkpoint's ``storage_meta``;
        empty before the first one.
        """
        return self._now.save_id

    @property
    def _place(self) -> Place:
        return self._now.place or self._path

    @property
    def _ranks(self) -> Tuple[int, ...]:
        """The ranks of the job that save; empty: all."""
        return _names.ranks_of(self._now.members)

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError(
            "a ckptd.dcp.Writer cannot go to another process: use dcp.async_save with AsyncCheckpointerType.THREAD, or call "
            "ckptd.dcp.install(), which needs neither a thread nor a process"
        )

    def save_recorded(
        self,
        state_dict: Any,
        record: SaveRecord,
        planner: SavePlanner,
        process_group: Any,
        no_dist: bool,
        members: Tuple[int, ...],
    ) -> None:
        """Saves through DCP and fills a record. The coordinator does not send the metadata to the other ranks.

        Args:
            members: the ranks of the job that save together; empty: this one without the others.
        """
        self._now.record, self._now.members = record, members
        try:
            _names.save_state(state_dict, self, planner, process_group, no_dist)
        finally:
            self._now.record = None

    def save_again(
        self,
        assignment: Assignment,
        members: Tuple[int, ...],
        images: Dict[str, Any],
        pickled: "Callable[[], _names.MetadataPickle]",
        exchange: "Callable[[Optional[str]], List[Optional[str]]]",
    ) -> StorageMeta:
        """Saves files that are laid out already, as far as ``wait`` says. Returns the ids of this save.

        Every rank calls it, when all of them have agreed to do so.

        Args:
            assignment: this rank's place among those that save.
            members: the ranks of the job that save together; empty: this one without the others.
            images: this rank's files.
            pickled: returns the metadata. Only the coordinator calls it; an error there ends the save on all ranks.
            exchange: sends all ranks why this one has failed, or None, and returns what each has sent.
        """
        self._now.members = members
        meta = self._begin()
        self.set_up_storage_writer(assignment.rank == 0, rank=assignment.rank, use_collectives=True)

        def files() -> Iterator[Tuple[str, Any]]:
            yield from images.items()
            if assignment.rank == 0:
                self._make_way()
                yield _names.metadata_file(), pickled().with_storage_meta(meta)

        try:
            self._upload_on_all_ranks(assignment, LazyFiles(files), exchange)
            part, self._now.part = self._now.part, None
            if part is not None:
                self._remember(part.seal())
            assert self._now.save is not None  # Just made.
            self._await(self._now.save)
        finally:
            self._abandon("a rank could not save its part")  # After a success there is no part left to abandon.
        return meta

    def _upload_on_all_ranks(self, assignment: Assignment, files: Any, exchange: Any) -> None:
        try:
            self._upload(assignment, files)
        except Exception as error:
            exchange(f"{type(error).__name__}: {error}")
            raise
        for rank, why in enumerate(exchange(None)):
            if why is not None:
                tag = self._place.tag
                raise errors.CheckpointFailed(
                    f"rank {rank} could not save {tag}: {why}", reason="SAVE_ABORTED", tag=tag, ranks=[rank]
                )

    def _upload(self, assignment: Assignment, files: Any) -> None:
        """Copies this rank's files into the daemon's memory. Seals them where nothing is to be added."""
        ranks = self._ranks
        # A launch has one number of ranks: those of a process group join as what they are in the job.
        place = checked_rank() if self._now.members else (assignment.rank, assignment.world_size)
        run = process.run(self._place.root, *place)
        run.retention = self.options.keep
        run._membership.advance_ordinal(self._place.tag, self._now.number, ranks)
        options = self.options
        arguments: Any = {
            "files": files,
            "step": step_of(self._place.tag) if options.step is None else options.step,
            "metrics": options.metrics,
            "timeout": options.timeout,
            "ranks": ranks or None,
            "stage": options.stage,
        }
        if assignment.rank == 0 or not self._now.use_collectives:
            self._now.part = run.begin(self._place.tag, **arguments)
        else:
            self._remember(run.save(self._place.tag, **arguments))

    def _end_for_all(self, plan: Any, error: BaseException) -> None:
        """Ends the save for all ranks, which wait for this one, because its planner has failed."""
        if not self._now.use_collectives:
            assignment = self._own_assignment()
        elif isinstance(plan, SavePlan) and isinstance(plan.storage_data, Assignment):
            assignment = plan.storage_data
        else:
            return

        def fail() -> Iterator[Tuple[str, Any]]:
            raise error

        with contextlib.suppress(BaseException):  # The planner's error is what counts.
            self._upload(assignment, LazyFiles(fail))

    def _make_way(self) -> None:
        self._now.is_unfinished = True
        _directory.make_way(self._place, self.options.overwrite)

    def _await(self, save: Save) -> None:
        """Waits for what ``wait`` names."""
        wait = self.options.wait
        if wait != "begun":
            save.wait(wait, process.settings.timeout)
        # A save may still fail: what was set aside stays until its end is known.
        if self._now.is_unfinished and wait != "committed" and _directory.has_aside(self._place):
            settle = functools.partial(_directory.settle, self._place)
            save.future("committed").add_done_callback(lambda _: settle())
            self._now.is_unfinished = False

    def _settle(self) -> None:
        """Gives what _make_way() has set aside its name back, or removes it after a commit. No-op if that was done."""
        if self._now.is_unfinished:
            self._now.is_unfinished = False
            _directory.settle(self._place)

    def _remember(self, save: Save) -> None:
        self._now.save = save
        process.add(self._place, save)

    def _abandon(self, why: str) -> None:
        """Ends a save that another rank's failure has left without metadata, and undoes what it replaced."""
        part, self._now.part = self._now.part, None
        if part is not None:
            part.abort(why)
        self._settle()

    def __repr__(self) -> str:
        return f"<ckptd.dcp.Writer {self._place.path}>"


def _place_to_save(path: "str | os.PathLike[str]") -> Place:
    """Returns place_of() a path. Refuses one that names no folder for the checkpoints of a run: the current directory, or
    ``/``, would become the root.
    """
    place, text = place_of(path), os.fspath(path)
    if place.root != os.sep and os.path.dirname(text.rstrip(os.sep)):
        return place
    otherwise = f"; to have {place.root} as that folder, give the absolute path" if place.root != os.sep else ""
    raise errors.invalid(
        f'the checkpoint id is "{text}", which names no folder for the checkpoints of a run: ckptd would keep its files and its '
        f'checkpoints in {place.root}. Give each checkpoint a name in a folder, such as "{os.path.join(text, "step-1")}"{otherwise}'
    )


def _world_size() -> int:
    return dist.get_world_size() if is_distributed() else 1
