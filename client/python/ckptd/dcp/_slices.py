"""Reads slices of saved tensors: the byte ranges that a load plan needs, many at a time."""

import ctypes
import io
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch

from ckptd.dcp import _names
from ckptd.restore import Checkpoint

_BATCH_BYTES = 256 << 20  # The most memory of buffers beside the targets.
_SMALL_RUN = 4096  # Runs below this are read together with the gaps between them: they are in the same chunks.

_Range = Tuple[str, int, int]  # (file, offset, bytes)


class _Wanted(NamedTuple):
    """The reads of one item of the plan."""

    ranges: List[_Range]
    buffers: List[Any]
    finish: Callable[[], None]


class SliceReader:
    """Collects what a plan needs, and reads it in batches. Used once."""

    def __init__(self, checkpoint: Checkpoint, metadata: Any) -> None:
        self._checkpoint = checkpoint
        self._metadata = metadata
        self._chunk_sizes: Dict[str, Dict[Tuple[int, ...], Tuple[int, ...]]] = {}
        self._ranges: List[_Range] = []
        self._buffers: List[Any] = []
        self._finish: List[Callable[[], None]] = []
        self._buffered = 0

    def add_bytes(self, item: Any, finish: Callable[[bytes], None]) -> None:
        """Adds a pickled object. finish(its bytes) is called when they have been read."""
        info = self._metadata.storage_data[item.storage_index]
        buffer = bytearray(info.length)
        self._add(
            _Wanted(
                [(info.relative_path, info.offset, info.length)], [buffer], lambda: finish(bytes(buffer))
            ),
            info.length,
        )

    def add_tensor(self, item: Any, target: Any, finish: Callable[[], None]) -> None:
        """Adds a slice of a tensor. finish() is called when `target` is filled.

        AssertionError if the target has another size than the slice.
        """
        if tuple(target.size()) != tuple(item.lengths):
            raise AssertionError(
                f"req {item.storage_index} mismatch sizes {target.size()} vs {torch.Size(item.lengths)}"
            )
        info = self._metadata.storage_data[item.storage_index]
        begin = _names.elements_of(info)
        if begin is None or info.transform_descriptors:
            return self._add_archive(item, info, target, finish)
        dtype = self._metadata.state_dict_metadata[item.storage_index.fqn].properties.dtype
        piece = _Slice(info.relative_path, begin, dtype, self._saved_size(item), item.storage_offsets, item.lengths)
        self._add(*piece.into(target, finish))

    def read(self) -> None:
        """Reads what was added and not read yet."""
        self._checkpoint.read_ranges(self._ranges, self._buffers)
        for finish in self._finish:
            finish()
        self._ranges, self._buffers, self._finish, self._buffered = [], [], [], 0

    def _add(self, wanted: _Wanted, buffered: int) -> None:
        if self._buffered and self._buffered + buffered > _BATCH_BYTES:
            self.read()
        self._ranges += wanted.ranges
        self._buffers += wanted.buffers
        self._finish.append(wanted.finish)
        self._buffered += buffered

    def _add_archive(self, item: Any, info: Any, target: Any, finish: Callable[[], None]) -> None:
        """Adds a tensor by reading its whole archive: only torch knows where the elements are in it."""

        def load() -> None:
            saved = torch.load(io.BytesIO(buffer), map_location="cpu", weights_only=True)
            for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                saved = saved.narrow(dimension, offset, length)
            target.copy_(saved)
            finish()

        buffer = bytearray(info.length)
        self._add(_Wanted([(info.relative_path, info.offset, info.length)], [buffer], load), info.length)

    def _saved_size(self, item: Any) -> Tuple[int, ...]:
        """Returns the size of the saved chunk that an item reads from."""
        name, offset = item.storage_index.fqn, item.storage_index.offset
        if name not in self._chunk_sizes:
            chunks = self._metadata.state_dict_metadata[name].chunks
            self._chunk_sizes[name] = {tuple(chunk.offsets): tuple(chunk.sizes) for chunk in chunks}
        sizes = self._chunk_sizes[name]
        return sizes[tuple(offset)] if offset is not None else next(iter(sizes.values()))


class _Slice:
    """A box of a tensor whose elements lie contiguously in a file."""

    def __init__(
        self, file: str, begin: int, dtype: Any, saved: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]
    ) -> None:
        """
        Args:
            begin: where the tensor's elements begin in the file, in bytes.
            saved: the tensor's size; offsets, lengths: the box in it. All in elements.
        """
        self._file = file
        self._dtype = dtype
        self._lengths = tuple(lengths)
        self._item = dtype.itemsize
        # The dimensions from `self._whole` on are read whole, and so a run is one piece.
        self._whole = len(saved)
        while self._whole > 0 and offsets[self._whole - 1] == 0 and lengths[self._whole - 1] == saved[self._whole - 1]:
            self._whole -= 1
        self._strides = _strides(saved)
        self._offsets = tuple(offsets)
        self._begin = begin

    def into(self, target: Any, finish: Callable[[], None]) -> Tuple[_Wanted, int]:
        """Returns how to fill a target, and how many bytes of buffers that takes."""
        size = _count(self._lengths) * self._item
        if size == 0:
            return _Wanted([], [], finish), 0
        runs, run = self._runs()
        if len(runs) > 1 and run < _SMALL_RUN:
            return self._span(runs[0], runs[-1] + run - runs[0], target, finish)
        straight = target.is_cpu and target.dtype == self._dtype and target.is_contiguous() and _is_bare(target)
        place = target if straight else torch.empty(self._lengths, dtype=self._dtype)
        ranges = [(self._file, at, run) for at in runs]
        buffers = [_buffer(place.data_ptr() + number * run, run) for number in range(len(runs))]
        if straight:
            return _Wanted(ranges, buffers, finish), 0

        def copy() -> None:
            target.copy_(place)
            finish()

        return _Wanted(ranges, buffers, copy), size

    def _runs(self) -> Tuple[List[int], int]:
        """Returns where the contiguous runs begin in the file, and how many bytes each has."""
        last = max(self._whole - 1, 0)  # The last dimension that is read in part.
        run = _count(self._lengths[last:]) * self._item
        starts = [self._begin + sum(o * s for o, s in zip(self._offsets, self._strides)) * self._item]
        for length, stride in zip(self._lengths[:last], self._strides):
            starts = [at + number * stride * self._item for at in starts for number in range(length)]
        return starts, run

    def _span(self, begin: int, size: int, target: Any, finish: Callable[[], None]) -> Tuple[_Wanted, int]:
        """Reads everything from the first element of the box to its last."""
        buffer = torch.empty(size, dtype=torch.uint8)

        def copy() -> None:
            target.copy_(buffer.view(self._dtype).as_strided(self._lengths, self._strides))
            finish()

        return _Wanted([(self._file, begin, size)], [_buffer(buffer.data_ptr(), size)], copy), size


def _strides(sizes: Sequence[int]) -> Tuple[int, ...]:
    strides = [1] * len(sizes)
    for dimension in range(len(sizes) - 2, -1, -1):
        strides[dimension] = strides[dimension + 1] * max(sizes[dimension + 1], 1)
    return tuple(strides)


def _count(lengths: Sequence[int]) -> int:
    count = 1
    for length in lengths:
        count *= length
    return count


def _is_bare(tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_conj() and not tensor.is_neg()


def _buffer(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)
