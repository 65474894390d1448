"""A StorageWriter of DCP that saves through ckptd in the layout of Hugging Face: safetensors files."""

import json
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ckptd._memory import native
from ckptd._torch.writing.safetensors_file import Piece, lay_out
from ckptd.dcp import _names
from ckptd.dcp._files import Assignment, Files
from ckptd.dcp._hugging_face import staged_files
from ckptd.dcp._hugging_face.safetensors import INDEX_FILE, SUFFIX
from ckptd.dcp._hugging_face.staged_files import AttachedFile, FileRef, InlineFile, StagedFile, StagedFileRef
from ckptd.dcp._writer import Writer


class HuggingFaceWriter(Writer):
    """Saves a checkpoint of tensors through ckptd, as DCP's ``HuggingFaceStorageWriter`` lays it out.

    What it saves is read by ``ckptd.dcp.Reader``, ``HuggingFaceStorageReader``, and the ``safetensors`` package;
    a consolidated checkpoint by what reads models of Hugging Face, too.

    Args:
        path (str or os.PathLike): the checkpoint's directory. ``checkpoint_id`` of the call replaces it.
        fqn_to_index_mapping (Mapping[str, int], optional): the number of the file that each tensor goes into, from 1.
            Default: one file
        thread_count (int): accepted for compatibility and ignored.
        save_distributed (bool): every rank saves what it has. ``False``: one rank saves all. Default: ``False``
        enable_consolidation (bool): with ``save_distributed``, puts the pieces together, so that each file has
            whole tensors. They pass through rank 0, in memory, before the call returns; those of ranks on other
            machines or in other PID namespaces pass through the process group, too, and take their size twice on rank
            0. The checkpoint appears with all its files at once, and has no folder of pieces. Default: ``False``
        thread_count_consolidation (int): accepted for compatibility and ignored.
        options: ``overwrite``, ``num_kept_ckpts``, ``retention``, ``metrics``, ``wait`` and ``timeout`` of
            :class:`Writer`.

    Raises:
        ValueError: an argument is not supported.
    """

    repeats_plans = False

    def __init__(
        self,
        path: Any,
        fqn_to_index_mapping: Optional[Mapping[str, int]] = None,
        thread_count: int = 1,
        save_distributed: bool = False,
        enable_consolidation: bool = False,
        thread_count_consolidation: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        self._layout = _Layout(fqn_to_index_mapping, save_distributed)
        self._consolidates = save_distributed and enable_consolidation
        self._own: Dict[MetadataIndex, Any] = {}  # The coordinator's tensors, while it consolidates.
        self._staged_file: Optional[StagedFile] = None  # This rank's file for the coordinator.

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        """Tells each rank which one it is. Refuses what the layout cannot hold. Only the coordinator calls it."""
        saving = [rank for rank, plan in enumerate(plans) if plan.items]
        if not self._layout.save_distributed and len(saving) > 1:
            raise ValueError(
                f"ranks {saving} have tensors to save, and without save_distributed=True one rank saves all: give that, or "
                "planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True) for a state that every rank has whole"
            )
        if not self._now.use_collectives:
            raise ValueError("use_collectives=False is not possible with safetensors files: leave it out")
        prepared = super().prepare_global_plan(plans)
        for plan in prepared:
            if isinstance(plan.storage_data, Assignment):  # None if the thread of async_save() has nothing left to do.
                plan.storage_data.coordinator = staged_files.place()
        return prepared

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        """Copies this rank's tensors: into the daemon's memory, or to where the coordinator finds them."""
        try:
            return super().write_data(plan, planner)
        except BaseException:  # Its traceback keeps this Writer, so free what is large now.
            self._staged_file = None
            self._own.clear()
            raise

    def _files(self, plan: SavePlan, planner: SavePlanner) -> Files:
        self._staged_file = None
        if not self._consolidates:
            return _ShardFiles(plan, planner, self._layout)
        return _Contribution(plan, planner, self._layout, self._hand_over, self._own)

    def _last_files(self, metadata: Metadata, results: List[List[WriteResult]]) -> Iterator[Tuple[str, Any]]:
        if self._consolidates:
            try:
                yield from _Consolidation(metadata, self._layout, self._own).files(results)
            finally:
                self._own.clear()
        elif not self._layout.save_distributed:
            files = {one.index.fqn: one.storage_data.relative_path for of_rank in results for one in of_rank}
            yield INDEX_FILE, _index(files, sum(one.size_in_bytes for of_rank in results for one in of_rank))

    def _hand_over(self, assignment: Assignment, image: Any) -> FileRef:
        """Stages this rank's file for the coordinator, or puts it into the message if that cannot attach it."""
        if assignment.coordinator != staged_files.place():
            return InlineFile(image, native.save_threads(1))
        self._staged_file = StagedFile(assignment.rank, image, native.save_threads(1))
        return self._staged_file.ref


class _Layout(NamedTuple):
    """The assignment of tensors to files."""

    indexes: Optional[Mapping[str, int]]
    save_distributed: bool

    def index_of(self, name: str) -> int:
        if self.indexes is None:
            return 1
        if name not in self.indexes:
            raise ValueError(f'fqn_to_index_mapping has no file for "{name}"; it has {len(self.indexes)} names')
        return self.indexes[name]

    def file(self, index: int, shard: Optional[int] = None) -> str:
        count = max(self.indexes.values()) if self.indexes else 1
        prefix = "" if shard is None else f"shard-{shard:05d}-"
        return f"{prefix}model-{index:05d}-of-{count:05d}{SUFFIX}"


class _ShardFiles(Files):
    """This rank's pieces, in files of their own."""

    def __init__(self, plan: SavePlan, planner: SavePlanner, layout: _Layout) -> None:
        super().__init__(plan, planner)
        self._layout = layout

    def items(self) -> Any:
        self.results.clear()
        shard = self._plan.storage_data.rank + 1 if self._layout.save_distributed else None
        buckets: Dict[int, List[Any]] = {}
        for item in self._plan.items:
            buckets.setdefault(self._layout.index_of(item.index.fqn), []).append(item)
        for number, items in sorted(buckets.items()):
            name = self._layout.file(number, shard)
            file, placed = lay_out([self._piece(item) for item in items], sharded=True)
            for item in items:
                begin, size = placed[item.index.fqn]
                self.results.append(
                    WriteResult(item.index, size, _names.storage_info(name, begin, size, begin))
                )
            yield name, file.image()

    def _piece(self, item: Any) -> Piece:
        if _names.is_bytes(item):
            raise ValueError(
                f'"{item.index.fqn}" is no tensor, and safetensors files hold tensors only: leave it out of the state, or save with '
                "ckptd.dcp.Writer"
            )
        tensor: Any = self._planner.resolve_data(item)
        tensor = tensor.detach()
        return Piece(item.index.fqn, tensor.dtype, tuple(tensor.shape), tuple(item.tensor_data.chunk.offsets), [tensor])


class _Place(NamedTuple):
    """The place of a piece's elements, for the coordinator."""

    file: Optional[FileRef]  # None: among its own tensors.
    offset: int  # In bytes, in the memory of that file.


class _Contribution(_ShardFiles):
    """This rank's pieces, which the coordinator puts into the files."""

    def __init__(self, plan: SavePlan, planner: SavePlanner, layout: _Layout, hand_over: Any, own: Dict[Any, Any]) -> None:
        super().__init__(plan, planner, layout)
        self._hand_over = hand_over
        self._own = own

    def items(self) -> Any:
        self.results.clear()
        self._own.clear()
        items, rank = self._plan.items, self._plan.storage_data.rank
        pieces = [self._piece(item) for item in items]
        if rank == 0:  # The coordinator reads its own tensors where they are.
            self._own.update((item.index, piece.parts[0]) for item, piece in zip(items, pieces))
            self.results += [WriteResult(item.index, 0, _Place(None, 0)) for item in items]
        elif items:
            file, placed = lay_out(pieces, sharded=True)
            ref = self._hand_over(self._plan.storage_data, file.image())
            self.results += [WriteResult(item.index, 0, _Place(ref, placed[item.index.fqn][0])) for item in items]
        return iter(())


class _Consolidation:
    """Puts the pieces of all ranks together."""

    def __init__(self, metadata: Metadata, layout: _Layout, own: Mapping[MetadataIndex, Any]) -> None:
        self._metadata = metadata
        self._layout = layout
        self._own = own
        self._attached: Dict[StagedFileRef, AttachedFile] = {}

    def files(self, results: List[List[WriteResult]]) -> Iterator[Tuple[str, Any]]:
        """Returns the files with all tensors, whole, and their index. Each is used before the next is asked for."""
        try:
            yield from self._files([one for of_rank in results for one in of_rank])
        finally:
            for attached in self._attached.values():
                attached.free()

    def _files(self, results: List[WriteResult]) -> Iterator[Tuple[str, Any]]:
        names: Dict[str, str] = {}
        total = 0
        for number, of_file in sorted(self._whole_tensors(results).items()):
            file, placed = lay_out(of_file, sharded=False)
            total += sum(size for _, size in placed.values())
            names.update((piece.name, self._layout.file(number)) for piece in of_file)
            yield self._layout.file(number), file.image()
        yield INDEX_FILE, _index(names, total)

    def _whole_tensors(self, results: List[WriteResult]) -> Dict[int, List[Piece]]:
        """Returns the tensors of each file."""
        pieces: Dict[str, List[Tuple[Tuple[int, ...], Any]]] = {}
        for one in results:
            pieces.setdefault(one.index.fqn, []).append((tuple(one.index.offset or ()), self._tensor(one)))
        files: Dict[int, List[Piece]] = {}
        for name, found in pieces.items():
            about: Any = self._metadata.state_dict_metadata[name]
            shape = tuple(about.size)
            parts = _joined(shape, sorted(found, key=lambda each: each[0]))
            piece = Piece(name, about.properties.dtype, shape, (0,) * len(shape), parts)
            files.setdefault(self._layout.index_of(name), []).append(piece)
        return files

    def _tensor(self, result: WriteResult) -> Any:
        index, place = result.index, result.storage_data
        if place.file is None:
            return self._own[index]
        about: Any = self._metadata.state_dict_metadata[index.fqn]
        sizes = next(chunk.sizes for chunk in about.chunks if index.offset in (None, chunk.offsets))
        dtype = about.properties.dtype
        size = sizes.numel() * dtype.itemsize
        return self._bytes_of(place.file)[place.offset : place.offset + size].view(dtype).view(sizes)

    def _bytes_of(self, ref: FileRef) -> torch.Tensor:
        if isinstance(ref, InlineFile):
            return ref.bytes
        if ref not in self._attached:
            self._attached[ref] = AttachedFile(ref)
        return self._attached[ref].bytes


def _joined(shape: Tuple[int, ...], pieces: List[Tuple[Tuple[int, ...], Any]]) -> List[Any]:
    """Returns tensors whose elements, one after another, are those of the whole tensor."""
    if all(tuple(tensor.shape[1:]) == shape[1:] for _, tensor in pieces):
        return [tensor for _, tensor in pieces]
    whole = torch.empty(shape, dtype=pieces[0][1].dtype)
    for offsets, tensor in pieces:
        place = whole
        for dimension, (offset, length) in enumerate(zip(offsets, tensor.shape)):
            place = place.narrow(dimension, offset, length)
        place.copy_(tensor)
    return [whole]


def _index(files: Mapping[str, str], total: int) -> bytes:
    return json.dumps({"metadata": {"total_size": total}, "weight_map": dict(files)}, indent=2).encode()
