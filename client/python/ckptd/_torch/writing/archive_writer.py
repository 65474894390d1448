"""Lays out the file that torch.save would write, without a second copy of the tensors.

A `.pt` is a stored ZIP archive: `data.pkl` (the pickled object, with its storages by reference), then a
record `data/K` with the raw bytes of each storage. This module makes everything around the storages
(state_pickler.py, zip_layout.py), and the storages are copied straight from where they are into the holes.
The bytes equal those of the installed torch.save, except the serialization id and the ZIP CRC fields of the
storages, which stay 0. torch reads neither; ckptd's own CRC32C of every chunk protects the bytes.

A self-check, once in a process, finds out whether the installed torch is as expected. If it is not,
torch.save itself writes, through its public interface.
"""

import collections
import io
import sys
import threading
import warnings
import zlib
from array import array
from typing import Any, Callable, List, Optional, Set, Tuple

import torch

from ckptd._memory import native
from ckptd._memory.copies import Copies
from ckptd._memory.image import Image, Memory, PiecesImage, WrittenImage
from ckptd._memory.native import Pieces
from ckptd._torch.gpu import device_copy
from ckptd._torch.gpu.devices import devices
from ckptd._torch.writing.deferred_tensors import DeferredTensors
from ckptd._torch.writing.known_states import pickle_known
from ckptd._torch.writing.state_pickler import Record, refused_by_weights_only
from ckptd._torch.writing.zip_layout import Layout
from ckptd.errors import UnsafeGlobalsWarning

# Since 2.7 torch writes two more records, and storages in the order of their numbers.
NUMBERED = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 7)
_KEPT_LAYOUTS = 16

_lock = threading.Lock()
_layouts: "collections.OrderedDict[Any, Layout]" = collections.OrderedDict()
_seen_globals: Set[Any] = set()
_own_writer_works: Optional[bool] = None


def image(
    obj: Any,
    views: str = "compact",
    deferred: Optional[DeferredTensors] = None,
    counts_non_finite: bool = False,
) -> Image:
    """Returns the image of the archive that torch.save(obj) would write.

    Args:
        views: "keep" saves storages whole, as torch does; "compact" only the parts that tensors use.
        deferred: what the placeholders in `obj` stand for.
        counts_non_finite: a PiecesImage counts NaNs and infinities in the CPU's memory while it is written.
    """
    if own_writer_works():
        return _lay_out(obj, views == "compact", deferred, counts_non_finite)
    if deferred:
        deferred.materialise()
    return image_by_torch_save(obj)


def own_writer_works() -> bool:
    """Returns whether the installed torch is as expected. Warns, the first time, if it is not."""
    global _own_writer_works
    if _own_writer_works is None:
        problem = _self_check()
        _own_writer_works = problem is None
        if problem:
            warn_caller(
                f"ckptd's own writer does not work with this version of torch ({problem}); saving uses torch.save, which is slower",
                RuntimeWarning,
            )
    return _own_writer_works


def _lay_out(
    obj: Any, compact: bool, deferred: Optional[DeferredTensors] = None, counts_non_finite: bool = False
) -> Image:
    pickled, records, found, on_device = pickle_known(obj, compact)
    if not found <= _seen_globals:
        _warn_of_unsafe(found)
    sizes = tuple([record.end - record.begin for record in records])
    layout = _layout(len(pickled), sizes)
    glue = layout.filled_glue(zlib.crc32(pickled))
    glue_address, glue_owner = native.address_of(glue)
    pickle_address, _ = native.address_of(pickled)
    offsets = layout.glue_offsets + array("Q", [layout.pickle_offset])
    lengths = layout.glue_lengths + array("Q", [len(pickled)])
    sources = array("Q", [glue_address + start for start in layout.glue_starts])
    sources.append(pickle_address)
    in_memory: List[Record] = []
    on_devices: List[Tuple[int, Record]] = []
    deferred_records: List[Tuple[int, Record]] = []
    is_host = devices().is_host
    if not deferred and all(is_host(record.storage) for record in records):
        offsets += layout.storage_offsets
        lengths += array("Q", sizes)
        sources += array("Q", [record.storage.data_ptr() + record.begin for record in records])
        in_memory = records
    else:
        for offset, size, record in zip(layout.storage_offsets, sizes, records):
            if deferred and deferred.has(record.storage):
                if size:
                    deferred_records.append((offset, record))
            elif is_host(record.storage):
                offsets.append(offset)
                lengths.append(size)
                sources.append(record.storage.data_ptr() + record.begin)
                in_memory.append(record)
            elif size:
                on_devices.append((offset, record))
    # Kept until the copy is done: a __reduce__ may have made storages that nothing else refers to.
    owners = (obj, records, glue_owner, pickled)
    fill = filler(on_devices, on_device, deferred_records, deferred)
    formats = None
    # A record of several dtypes, or of unknown ones, is not one array of numbers: its tensors are counted singly.
    if counts_non_finite and all(record.dtype is not None for record in in_memory):
        formats = array("B", bytes(len(offsets) - len(in_memory)))
        formats.extend(_format_of(record.dtype) for record in in_memory)
    return PiecesImage(layout.size, Pieces(offsets, sources, lengths), owners, fill, formats)


def _format_of(dtype: Any) -> int:
    return native.FLOAT_FORMATS.get(dtype_name(dtype), 0)


def dtype_name(dtype: Any) -> str:
    """Returns the name of a dtype without "torch."."""
    return str(dtype).partition(".")[2]


def filler(
    on_devices: "List[Tuple[int, Record]]",
    tensors: List[Any],
    deferred_records: "List[Tuple[int, Record]]",
    deferred: Optional[DeferredTensors],
) -> "Optional[Callable[[Memory, int, bool], Optional[Copies]]]":
    """Returns a function that writes the records that are not in the CPU's memory, see device_copy.filler(); None if all
    are.

    tensors: those that use `on_devices`.
    """
    fill_from_devices = device_copy.filler(on_devices, tensors) if on_devices else None
    if deferred is None or not deferred_records:
        return fill_from_devices
    deferred.expect(deferred_records)

    def fill(memory: Memory, base: int, overlaps: bool) -> Optional[Copies]:
        copies = fill_from_devices(memory, base, overlaps) if fill_from_devices is not None else None
        deferred.fill(deferred_records, memory, base)
        return copies

    return fill


def _layout(pickle_size: int, sizes: Tuple[int, ...]) -> Layout:
    """Returns the layout of a shape. The last ones are cached: a trainer's state rarely changes its shape."""
    key = (pickle_size, sizes)
    with _lock:
        layout = _layouts.pop(key, None)
    if layout is None:
        layout = Layout(pickle_size, sizes, NUMBERED)
    with _lock:
        _layouts[key] = layout
        while len(_layouts) > _KEPT_LAYOUTS:
            _layouts.popitem(last=False)
    return layout


def _warn_of_unsafe(found: Set[Any]) -> None:
    with _lock:
        new = found - _seen_globals
        _seen_globals.update(new)
    unsafe = refused_by_weights_only(new)
    if unsafe:
        warn_caller(
            f"the saved state holds {', '.join(unsafe)}, which loading refuses by default (weights_only=True): load it with "
            "safe_globals=[...] or weights_only=False, or save plain values instead",
            UnsafeGlobalsWarning,
        )


def warn_caller(text: str, category: Any) -> None:
    """Warns at the line outside this package that called into it."""
    level, frame = 2, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ckptd":
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    warnings.warn(text, category, stacklevel=level)


def _self_check() -> Optional[str]:
    """Returns why our own writer does not work with the installed torch, or None."""
    base = torch.arange(6, dtype=torch.float32)
    sample = {
        "a": base,
        "view": base[2:4],
        "b": torch.ones(3, dtype=torch.int64),
        "none": torch.empty(0),
        "n": [1, "x"],
    }
    try:
        written = b"".join(_lay_out(sample, True).stream())
        back = torch.load(io.BytesIO(written), weights_only=True)
        for name, tensor in sample.items():
            if isinstance(tensor, torch.Tensor) and not torch.equal(back[name], tensor):
                return f"tensor {name} was read back with other values"
        if back["a"].untyped_storage().data_ptr() != back["view"].untyped_storage().data_ptr():
            return "tensors that shared memory no longer do"
    except Exception as error:  # Whatever it is, the installed torch is not as expected.
        return f"{type(error).__name__}: {error}"
    return None


class _Sink:
    """A file for torch.save to write to."""

    def __init__(self, write: "Callable[[Any], None]") -> None:
        self._write = write
        self.error: Optional[Exception] = None  # torch hides it behind an error of its own.

    def write(self, data: Any) -> int:
        try:
            self._write(data)
        except Exception as error:
            self.error = error
            raise
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass


def image_by_torch_save(obj: Any) -> Image:
    """Returns the image of an archive that torch.save writes when the image is copied.

    It pickles twice, the first time for the size, and makes no second copy of the tensors either.
    """

    def produce(write: "Callable[[Any], None]") -> None:
        options = getattr(torch.serialization, "set_crc32_options", None)
        before = torch.serialization.get_crc32_options() if options is not None else True
        if options is not None:
            options(False)  # The CRC takes three times as long as the copy, and no reader checks it.
        sink: Any = _Sink(write)
        try:
            torch.save(obj, sink)
        except RuntimeError:
            if sink.error is not None:
                raise sink.error from None
            raise
        finally:
            if options is not None:
                options(before)

    size = 0

    def count(data: Any) -> None:
        nonlocal size
        size += memoryview(data).nbytes

    produce(count)
    return WrittenImage(size, produce)
