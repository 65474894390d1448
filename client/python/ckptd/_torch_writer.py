"""Lays out the file that torch.save would write, without making a second copy of the tensors.

A `.pt` is a stored ZIP archive: `data.pkl` (the object, pickled, tensors by reference), then one record
`data/K` for each storage, as raw bytes. We write the skeleton ourselves (_skeleton.py, _zip_layout.py) and
leave holes, into which the storages are copied straight from where they are. The bytes equal those of the
installed torch.save, but for the serialization id and the ZIP CRC fields of the storages, which stay 0; no
torch reads them, and ckptd's own CRC32C of every chunk is what protects the bytes.

A self-check once in a process tells when this torch is not as we know it; then torch.save itself writes, by
its public interface.
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

from ckptd import _accel, _device
from ckptd._accel import Pieces
from ckptd._image import Image, Memory, PiecesImage, WrittenImage
from ckptd._late import Late
from ckptd._skeleton import Record, skeleton, unpicklable_by_weights_only
from ckptd._zip_layout import Layout
from ckptd.errors import UnsafeGlobalsWarning

# From 2.7 on torch writes two records more, and storages in the order of their numbers.
_NUMBERED = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 7)
_KEPT_LAYOUTS = 16

_lock = threading.Lock()
_layouts: "collections.OrderedDict[Any, Layout]" = collections.OrderedDict()
_seen_globals: Set[Any] = set()
_own_writer_works: Optional[bool] = None


def image(obj: Any, views: str = "compact", late: Optional[Late] = None) -> Image:
    """The image of the archive that torch.save(obj) would write.

    views="keep": storages whole, as torch does; "compact": only the parts of them that tensors use. late: what some
    tensors of `obj` stand for.
    """
    global _own_writer_works
    if _own_writer_works is None:
        problem = _self_check()
        _own_writer_works = problem is None
        if problem:
            _warn(
                f"ckptd saves through torch.save, at a higher cost: its own writer does not fit this torch ({problem})",
                RuntimeWarning,
            )
    if _own_writer_works:
        return _lay_out(obj, views == "compact", late)
    if late:
        late.materialise()
    return by_torch(obj)


def _lay_out(obj: Any, compact: bool, late: Optional[Late] = None) -> Image:
    pickled, records, found = skeleton(obj, compact)
    if not found <= _seen_globals:
        _warn_of_unsafe(found)
    sizes = tuple([record.end - record.begin for record in records])
    layout = _layout(len(pickled), sizes)
    glue = layout.filled_glue(zlib.crc32(pickled))
    glue_address, glue_owner = _accel.address_of(glue)
    pickle_address, _ = _accel.address_of(pickled)
    offsets = layout.glue_offsets + array("Q", [layout.pickle_offset])
    lengths = layout.glue_lengths + array("Q", [len(pickled)])
    sources = array("Q", [glue_address + start for start in layout.glue_starts])
    sources.append(pickle_address)
    elsewhere: List[Tuple[int, Record]] = []
    later: List[Tuple[int, Record]] = []
    if not late and all(record.storage.device.type == "cpu" for record in records):
        offsets += layout.storage_offsets
        lengths += array("Q", sizes)
        sources += array("Q", [record.storage.data_ptr() + record.begin for record in records])
    else:
        for offset, size, record in zip(layout.storage_offsets, sizes, records):
            if late and late.has(record.storage):
                if size:
                    later.append((offset, record))
            elif record.storage.device.type == "cpu":
                offsets.append(offset)
                lengths.append(size)
                sources.append(record.storage.data_ptr() + record.begin)
            elif size:
                elsewhere.append((offset, record))
    # Until the copy is done: a reduced object may have made storages of its own, which nobody else holds.
    owners = (obj, records, glue_owner, pickled)
    fill = _filler(elsewhere, later, late)
    return PiecesImage(layout.size, Pieces(offsets, sources, lengths), owners, fill)


def _filler(
    elsewhere: "List[Tuple[int, Record]]", later: "List[Tuple[int, Record]]", late: Optional[Late]
) -> "Optional[Callable[[Memory, int], None]]":
    """Writes what is not in the CPU's memory; None when all is."""
    straight = _device.filler(elsewhere) if elsewhere else None
    if late is None or not later:
        return straight
    late.expect(later)

    def fill(memory: Memory, base: int) -> None:
        if straight is not None:
            straight(memory, base)
        late.fill(later, memory, base)

    return fill


def _layout(pickle_size: int, sizes: Tuple[int, ...]) -> Layout:
    """A trainer's state rarely changes its shape: the last ones are kept."""
    key = (pickle_size, sizes)
    with _lock:
        layout = _layouts.pop(key, None)
    if layout is None:
        layout = Layout(pickle_size, sizes, _NUMBERED)
    with _lock:
        _layouts[key] = layout
        while len(_layouts) > _KEPT_LAYOUTS:
            _layouts.popitem(last=False)
    return layout


def _warn_of_unsafe(found: Set[Any]) -> None:
    with _lock:
        new = found - _seen_globals
        _seen_globals.update(new)
    unsafe = unpicklable_by_weights_only(new)
    if unsafe:
        _warn(
            f"what is being saved holds {', '.join(unsafe)}, which loading refuses by default (weights_only=True): load it with "
            "safe_globals=[...] or weights_only=False, or save plain values instead",
            UnsafeGlobalsWarning,
        )


def _warn(text: str, category: Any) -> None:
    """At the line outside of this package that called."""
    level, frame = 2, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ckptd":
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    warnings.warn(text, category, stacklevel=level)


def _self_check() -> Optional[str]:
    """What is wrong with our own writer on this torch; None when nothing is."""
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
                return f"tensor {name} came back different"
        if back["a"].untyped_storage().data_ptr() != back["view"].untyped_storage().data_ptr():
            return "tensors that share memory came back apart"
    except Exception as error:  # Whatever it is: this torch is not the one that we know.
        return f"{type(error).__name__}: {error}"
    return None


class _Sink:
    """A file for torch.save to write to."""

    def __init__(self, write: "Callable[[Any], None]") -> None:
        self._write = write
        self.error: Optional[Exception] = None  # torch hides it behind one of its own.

    def write(self, data: Any) -> int:
        try:
            self._write(data)
        except Exception as error:
            self.error = error
            raise
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass


def by_torch(obj: Any) -> Image:
    """The same by torch.save's public interface alone: pickled twice, once for the size; no second copy of
    the tensors either.
    """

    def produce(write: "Callable[[Any], None]") -> None:
        options = getattr(torch.serialization, "set_crc32_options", None)
        before = torch.serialization.get_crc32_options() if options is not None else True
        if options is not None:
            options(False)  # The CRC costs three times the copy, and nobody reads it.
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
