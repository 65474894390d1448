"""Copies the tensors of a file from devices straight into the daemon's memory, on streams of their own."""

import contextlib
import ctypes
import itertools
import threading
from array import array
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from ckptd._memory import copies
from ckptd._memory.image import Memory
from ckptd._memory.native import Pieces
from ckptd._torch.gpu import change_hooks
from ckptd._torch.gpu.devices import devices
from ckptd._torch.gpu.pinning import pinning_of

# A device's queue has room for about a thousand entries. To add another one takes until one of them is done, and holds
# up whatever else the process gives its devices: so a batch is queued when the one _BATCHES before it is done.
_BATCH = 200
_BATCHES = 4
_QUEUED_SECONDS = 600.0  # For the copies of one file to be queued, while the memory is pinned.

# Such as statistics that a forward pass changes, which torch does not count for all of its layers.
_SMALL_BYTES = 64 << 10

# What a file begins, see filler().
Fill = Callable[[Memory, int, bool], "copies.Copies"]
_Records = List[Tuple[int, Any]]  # (offset in the file, Record) of each.


def filler(on_devices: "Sequence[Tuple[int, Any]]", tensors: "Sequence[Any]") -> Fill:
    """Returns a function that begins to copy records from devices to the memory of a file, which begins at an
    offset in it; and whether the training goes on before the copies are done.

    Args:
        on_devices: (offset in the file, Record) of each. TypeError if one is on a device that is not CUDA's.
        tensors: those that use the records, to notice a change.
    """
    by_device: "Dict[Any, _Records]" = {}
    for one in on_devices:
        by_device.setdefault(one[1].storage.device, []).append(one)
    kinds = sorted({device.type for device, own in by_device.items() if not devices().has(own[0][1].storage)})
    if kinds:
        raise TypeError(
            f"tensors on {', '.join(kinds)} cannot be saved from that device: copy them to the CPU first (tensor.cpu())"
        )
    return lambda memory, base, overlaps: DeviceCopies(by_device, tensors, memory, base, overlaps)


class DeviceCopies(copies.Copies):
    """The copies of one file, queued in the order of the file behind what computes the values now."""

    def __init__(
        self,
        by_device: "Dict[Any, _Records]",
        tensors: "Sequence[Any]",
        memory: Memory,
        base: int,
        overlaps: bool,
    ) -> None:
        """Queues the copies, unless that would take long: then finish() does."""
        if overlaps:
            change_hooks.install()
            tensors = _large(by_device, tensors)
            by_device = {device: _with_snapshots(own) for device, own in by_device.items()}
        self._kept: Any = (by_device, memory)  # Until the copies are done.
        self._base = base
        self._versions = [(tensor, _version(tensor)) for tensor in tensors] if overlaps else []
        self._changed = ""
        self._changes_lock = threading.Lock()
        self._looks_for_changes = True
        self._finish_lock = threading.Lock()
        self._queued = threading.Event()
        self._events: List[Tuple[Any, Any]] = []  # (device, when its copies are done)
        self._pieces = {devices().stream(device): _pieces(own) for device, own in by_device.items()}
        self._chunks = _chunks(memory)
        begins, end = self._begins()
        self.count = len(begins)
        # Ranges of the part's bytes with _BATCH copies each.
        self._batches = list(zip(begins[::_BATCH], [*begins[_BATCH::_BATCH], end]))
        for stream in self._pieces:
            devices().follow_current(stream)
        others = sum(one.count for one in copies.in_flight())
        copies.begun(self)
        if others + self.count <= _BATCH * _BATCHES and all(done is None or done.is_set() for _, _, done in self._chunks):
            self._queue()

    def finish(self) -> None:
        with self._finish_lock:
            try:
                self._queue()
                for _, event in self._events:
                    devices().await_event(event)
                self._look_for_changes()
            except BaseException:
                self._await_queued()
                raise
            finally:
                self._queued.set()
                self._kept = None
                self._versions, self._chunks, self._pieces, self._batches = [], [], {}, []
                copies.ended(self)

    def _await_queued(self) -> None:
        """Waits for what is queued already: nothing must be written once the save has ended."""
        for stream in self._pieces:
            with contextlib.suppress(RuntimeError):
                devices().await_event(devices().record(stream))

    def hold_devices(self) -> None:
        if not self._queued.wait(_QUEUED_SECONDS):
            raise TimeoutError(f"the daemon's memory was not pinned within {_QUEUED_SECONDS:g} s")
        self._look_for_changes()
        for device, event in self._events:
            devices().hold_current(device, event)

    def changed(self) -> str:
        return self._changed

    def _look_for_changes(self) -> None:
        """Looks for changes for the last time: what changes the tensors from now on comes after the copies."""
        with self._changes_lock:
            if not self._looks_for_changes:
                return
            self._looks_for_changes = False
            for tensor, version in self._versions:
                if _version(tensor) != version:
                    self._changed = f"{str(tensor.dtype).partition('.')[2]}{list(tensor.shape)} on {tensor.device}"
                    return

    def _begins(self) -> "Tuple[List[int], int]":
        """Returns where in the part the copies begin, in order, and where the last one ends."""
        begins = sorted(self._base + offset for pieces in self._pieces.values() for offset in pieces.offsets)
        end = self._base + max(pieces.offsets[-1] + pieces.lengths[-1] for pieces in self._pieces.values())
        # What reaches from one chunk into the next takes several copies.
        return sorted([*begins, *(begin for begin, _ in self._chunk_begins() if begins[0] < begin < end)]), end

    def _chunk_begins(self) -> "Iterator[Tuple[int, Optional[threading.Event]]]":
        """Yields where in the part each chunk begins, and when it is pinned."""
        begin = 0
        for _, size, pinned in self._chunks:
            yield begin, pinned
            begin += size

    def _queue(self) -> None:
        """Queues the copies, those of each chunk once it is pinned. No-op if they are queued."""
        if self._queued.is_set():
            return
        addresses, sizes, _ = zip(*self._chunks)
        segments = array("Q", addresses), array("Q", itertools.accumulate(sizes))
        queued: "List[List[Tuple[Any, Any]]]" = []  # Of each batch, as self._events.
        for begin, end in self._batches:
            if len(queued) >= _BATCHES:
                for _, event in queued[-_BATCHES]:
                    devices().await_event(event)
            for chunk_begin, pinned in self._chunk_begins():
                if chunk_begin < end and pinned is not None and not pinned.is_set():
                    self._copy(segments, begin, chunk_begin)
                    begin = max(begin, chunk_begin)
                    pinned.wait(_QUEUED_SECONDS)
            self._copy(segments, begin, end)
            queued.append([(stream.device, devices().record(stream)) for stream in self._pieces])
        self._events = queued[-1]
        self._queued.set()

    def _copy(self, segments: "Tuple[array[int], array[int]]", begin: int, end: int) -> None:
        """Queues the copies into the bytes [begin, end) of the part."""
        first, last = max(begin - self._base, 0), end - self._base
        if first < last:
            for stream, pieces in self._pieces.items():
                devices().copy(stream, segments, self._base, pieces, first, last)


def _is_small(record: Any) -> bool:
    return bool(record.end - record.begin <= _SMALL_BYTES)


def _with_snapshots(on_device: "_Records") -> "_Records":
    """Returns the records with all small ones copied on the device, behind what is queued on the caller's stream: what
    comes later may change them.
    """
    small = [record for _, record in on_device if _is_small(record)]
    if not small:
        return on_device
    with torch.no_grad():
        # Called while the device may have nothing to do: few calls of torch for each record.
        views = torch.empty((len(small), 0), dtype=torch.uint8, device=small[0].storage.device).unbind()
        flat = torch.cat(
            [
                view.set_(record.storage, record.begin, (record.end - record.begin,), (1,))
                for view, record in zip(views, small)
            ]
        ).untyped_storage()
    found, begin = [], 0
    for offset, record in on_device:
        if _is_small(record):
            end = begin + record.end - record.begin
            record, begin = type(record)(flat, begin, end, record.dtype), end
        found.append((offset, record))
    return found


def _large(by_device: "Dict[Any, _Records]", tensors: "Sequence[Any]") -> "List[Any]":
    """Returns the tensors that not only small records have."""
    large = {
        record.storage._cdata for own in by_device.values() for _, record in own if not _is_small(record)
    }
    plain = (torch.Tensor, torch.nn.Parameter)  # Another one may have no storage of its own.
    return [tensor for tensor in tensors if type(tensor) not in plain or tensor.untyped_storage()._cdata in large]


def _pieces(on_device: "_Records") -> Pieces:
    """Returns what a device copies, in the order of the file."""
    return Pieces(
        array("Q", [offset for offset, _ in on_device]),
        array("Q", [record.storage.data_ptr() + record.begin for _, record in on_device]),
        array("Q", [record.end - record.begin for _, record in on_device]),
    )


def _chunks(memory: Memory) -> "List[Tuple[int, int, Optional[threading.Event]]]":
    """Returns (address, bytes, when it is pinned) of the memory; None: it is not to be pinned."""
    if isinstance(memory.owners, list):
        return [chunk for segment in memory.owners for chunk in pinning_of(segment).chunks()]
    begins = array("Q", [0, *memory.segments[1]])
    return [(address, end - begin, None) for address, begin, end in zip(memory.segments[0], begins, begins[1:])]


def _version(tensor: Any) -> int:
    """Returns how often torch has changed a tensor's values."""
    return -1 if tensor.is_inference() else int(tensor._version)


def views(memory: Memory, base: int, size: int) -> "List[Any]":
    """Returns uint8 tensors over the memory at [base, base + size), one for each segment."""
    pieces = memory.pieces(base, size)
    return [
        torch.frombuffer((ctypes.c_char * length).from_address(address), dtype=torch.uint8)
        for address, length in zip(pieces.sources, pieces.lengths)
    ]
