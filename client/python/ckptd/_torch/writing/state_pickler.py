"""Pickles a state as torch.save does, with its storages by reference, and lists which bytes of which storages
it needs.

The references are to storages and never to tensors, so that views, strides, tied weights, and conjugate and
negative bits need no special case. The names of torch that this uses are unchanged since torch 2.1.
"""

import collections
import gc
import io
import pickle
import types
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from ckptd._torch.gpu.devices import devices
from ckptd._torch.writing.state_form import is_plain
from ckptd._torch.writing.zip_layout import archive_of

_TypedStorage = torch.storage.TypedStorage
_UntypedStorage = torch.UntypedStorage
_rebuild_v2 = torch._utils._rebuild_tensor_v2
_rebuild_v3 = getattr(torch._utils, "_rebuild_tensor_v3", None)
_STORAGE_TYPES: Dict[Any, Any] = {
    torch.float64: torch.DoubleStorage,
    torch.float32: torch.FloatStorage,
    torch.float16: torch.HalfStorage,
    torch.bfloat16: torch.BFloat16Storage,
    torch.int64: torch.LongStorage,
    torch.int32: torch.IntStorage,
    torch.int16: torch.ShortStorage,
    torch.int8: torch.CharStorage,
    torch.uint8: torch.ByteStorage,
    torch.bool: torch.BoolStorage,
    torch.complex64: torch.ComplexFloatStorage,
    torch.complex128: torch.ComplexDoubleStorage,
}
# For these dtypes torch refers to the untyped storage, and stores the dtype beside it.
_NEW_DTYPES = frozenset(
    getattr(torch.storage, "_new_dtypes", lambda: ())() if _rebuild_v3 is not None else ()
)
_STORAGE_TYPES.update((dtype, _UntypedStorage) for dtype in _NEW_DTYPES)
_Tensor, _OrderedDict = torch.Tensor, collections.OrderedDict
_cpu = torch.device("cpu")
_EMPTY_ORDERED_DICT = (_OrderedDict, ())
_NO_STORAGES = frozenset(
    (str, int, float, bool, type(None), tuple, list, dict, type, types.FunctionType, _Tensor, _OrderedDict)
)
_GLOBALS = (type, types.FunctionType, types.BuiltinFunctionType)
# A storage is kept whole if no more than this share of it is unused: alignment gaps in a flat buffer are no
# reason to take it apart.
_TOLERATED_WASTE = 1 / 16

Interval = Tuple[int, int]  # Bytes [begin, end) of a storage.


class Record(NamedTuple):
    """A storage record of the archive: the bytes [begin, end) of a storage."""

    storage: Any
    begin: int
    end: int
    dtype: Any = None  # The dtype of the tensors that use it; None if they have several, or it is not known.


class PickledState(NamedTuple):
    """A pickle with references to storage records."""

    pickled: bytes
    records: List[Record]  # In the order of their keys 0, 1, ...
    globals: Set[Any]  # The classes and functions that the pickle names.
    on_device: List[Any]  # The tensors that are not in the CPU's memory.


def pickle_state(obj: Any, compact: bool) -> PickledState:
    """Pickles an object.

    compact: of a storage with many unused bytes, record only those that tensors use.
    """
    collecting = gc.isenabled()
    gc.disable()  # Nothing that is made here is garbage, and a collection takes as long as the pickling.
    try:
        first = _Pickler({})
        pickled = first.run(obj)
        components = first.components() if compact else {}
        if not components:
            return PickledState(pickled, first.records, first.globals, first.on_device)
        # A storage is much larger than what is used of it: pickle again, without the rest. Keep `first` until
        # then, because a new storage may get the identity of a freed one.
        second = _Pickler(components)
        pickled = second.run(obj)
        del first
        return PickledState(pickled, second.records, second.globals, second.on_device)
    finally:
        if collecting:
            gc.enable()


class _Reference(tuple):  # type: ignore[type-arg]
    """Stands for a storage inside the pickle: (storage type, key, location, count, dtype)."""

    __slots__ = ()


class _Pickler(pickle.Pickler):
    def __init__(self, components: Dict[int, List[Interval]]) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer, protocol=2)
        self._components = components  # Identity of a storage -> its parts that become records of their own.
        self.records: List[Record] = []
        self.globals: Set[Any] = set()
        self.on_device: List[Any] = []
        self._has_stand_in = devices().in_cpu_memory
        # Identity of a storage, or (identity, begin of the component) -> key.
        self._keys: Dict[Any, str] = {}
        self._references: Dict[Any, _Reference] = {}
        self._dtypes: Dict[int, Any] = {}  # Address -> dtype.
        self._whole: Set[int] = set()  # Storages whose bytes are all used, or whose user does not tell which.
        self._used: Dict[int, List[Interval]] = {}  # The used bytes of the other storages.
        self._largest: Dict[int, int] = {}  # The largest element that tensors have in them, in bytes.

    def run(self, obj: Any) -> bytes:
        self.dump(obj)
        return self._buffer.getvalue()

    # These two methods are called for every object in the state, and the user waits for them: keep them fast.

    def persistent_id(self, obj: Any) -> Any:
        kind: Any = type(obj)
        if kind in _NO_STORAGES:
            return None
        if kind is _Reference:
            # A new tuple each time, as torch makes it: the pickle shows the difference.
            kind, key, location, count, _ = obj
            return ("storage", kind, key, location, count)
        if isinstance(obj, _TypedStorage):
            storage: Any = obj._untyped_storage
            dtype, count = obj.dtype, obj._size()
            kind = getattr(torch, obj._pickle_storage_type())
        elif torch.is_storage(obj):
            storage, dtype, count = obj, None, obj.nbytes()
            kind = torch.serialization.normalize_storage_type(type(obj))
        else:
            return None
        self._check_dtype(storage, dtype or torch.uint8)
        identity = storage._cdata
        self._whole.add(identity)
        size = storage.nbytes()
        if storage.device.type == "meta":
            size = 0
        elif dtype is not None:
            size = count * dtype.itemsize
        return ("storage", kind, self._key(identity, storage, 0, size, dtype), _location(storage), count)

    def reducer_override(self, obj: Any) -> Any:
        # Nearly all of a checkpoint is plain tensors. This gives the same bytes as their own __reduce_ex__,
        # in a quarter of the time.
        kind = type(obj)
        if kind is _Tensor:
            return self._reduce(obj)
        if kind is _OrderedDict:
            return NotImplemented if obj or obj.__dict__ else _EMPTY_ORDERED_DICT
        if isinstance(obj, _GLOBALS):
            self.globals.add(obj)
        elif isinstance(obj, _Tensor) and (not obj.is_cpu or self._has_stand_in):
            # What is pickled of a Parameter is its .data, which does not count the changes of its values.
            self.on_device.append(obj)
        return NotImplemented

    def _reduce(self, tensor: Any) -> Any:
        dtype = tensor.dtype
        storage_type = _STORAGE_TYPES.get(dtype)  # The table has no quantized dtype.
        if storage_type is None or not is_plain(tensor):
            return NotImplemented
        storage = tensor.untyped_storage()
        if not tensor.is_cpu or self._has_stand_in:
            self.on_device.append(tensor)
        identity = storage._cdata
        offset = tensor.storage_offset()
        if identity in self._components:
            item = dtype.itemsize
            begin, end = self._component(identity, offset * item)
            reference = self._references.get((identity, begin))
            if reference is None or reference[4] is not dtype:
                self._check_dtype(storage, dtype)
                reference = self._refer(storage_type, dtype, (identity, begin), storage, begin, end)
            # begin is a multiple of item. A tensor without elements may begin anywhere.
            offset = max(0, offset - begin // item)
        else:
            reference = self._references.get(identity)
            if reference is None or reference[4] is not dtype:
                size = storage.nbytes()
                if storage_type is not _UntypedStorage:
                    # torch counts elements, and loads no storage of another size. No tensor has the bytes after them.
                    size -= size % dtype.itemsize
                self._check_dtype(storage, dtype)
                reference = self._refer(storage_type, dtype, identity, storage, 0, size)
                if tensor.nbytes == size:
                    self._whole.add(identity)
            if identity not in self._whole:
                self._use(identity, tensor, offset)
        # tuple(), as torch does: a torch.Size would be pickled as a torch.Size.
        arguments: Tuple[Any, ...] = (
            reference,
            offset,
            tuple(tensor.size()),
            tensor.stride(),
            tensor.requires_grad,
            _OrderedDict(),
        )
        if storage_type is _UntypedStorage:
            return _rebuild_v3, (*arguments, dtype)
        return _rebuild_v2, arguments

    def _refer(self, kind: Any, dtype: Any, place: Any, storage: Any, begin: int, end: int) -> _Reference:
        unit = 1 if kind is _UntypedStorage else dtype.itemsize
        key = self._key(place, storage, begin, end, dtype)
        reference = self._references[place] = _Reference(
            (kind, key, _location(storage), (end - begin) // unit, dtype)
        )
        return reference

    def _use(self, identity: int, tensor: Any, offset: int) -> None:
        """Records which bytes of its storage a tensor uses."""
        item = tensor.element_size()
        last = offset
        for count, step in zip(tensor.size(), tensor.stride()):
            if count == 0:
                last = offset - 1  # Without elements it uses no byte: begin == end below.
                break
            last += (count - 1) * step
        self._used.setdefault(identity, []).append((offset * item, (last + 1) * item))
        self._largest[identity] = max(item, self._largest.get(identity, 0))

    def _key(self, place: Any, storage: Any, begin: int, end: int, dtype: Any) -> str:
        key = self._keys.get(place)
        if key is None:
            key = self._keys[place] = str(len(self.records))
            self.records.append(Record(storage, begin, end, dtype))
        else:
            record = self.records[int(key)]
            if record.dtype is not dtype:
                self.records[int(key)] = record._replace(dtype=None)
        return key

    def _check_dtype(self, storage: Any, dtype: Any) -> None:
        """Refuses a storage that is viewed as two dtypes, as torch.save does: it could not be loaded."""
        if storage.device.type == "meta":
            return
        if dtype in _NEW_DTYPES:
            dtype = torch.uint8  # torch treats their storages as bytes.
        address = storage.data_ptr()
        if address and self._dtypes.setdefault(address, dtype) != dtype:
            raise RuntimeError(
                f"Cannot save multiple tensors or storages that view the same data as different types ({self._dtypes[address]} "
                f"and {dtype}): clone one of them"
            )

    def _component(self, identity: int, at: int) -> Interval:
        for begin, end in self._components[identity]:
            if begin <= at < end:
                return begin, end
        return self._components[identity][0]  # A tensor without elements may be anywhere.

    def components(self) -> Dict[int, List[Interval]]:
        """Returns the used intervals of each storage that has many unused bytes."""
        found = {}
        for identity, intervals in self._used.items():
            if identity in self._whole:
                continue
            # The offset of a tensor in its record is a number of its elements, so a record begins where an element
            # of every dtype may begin. Sizes of elements are powers of two.
            largest = self._largest[identity]
            merged = _merge([(begin - begin % largest, end) for begin, end in intervals if begin < end])
            used = sum(end - begin for begin, end in merged)
            if used < self.records[int(self._keys[identity])].end * (1 - _TOLERATED_WASTE):
                found[identity] = merged
        return found


def _location(storage: Any) -> str:
    return "cpu" if storage.device == _cpu else str(torch.serialization.location_tag(storage))


def _merge(intervals: List[Interval]) -> List[Interval]:
    """Joins intervals that overlap or touch.

    So no byte is saved twice, and tensors that shared memory still share it.
    """
    merged: List[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged or [(0, 0)]


def refused_by_weights_only(found: Set[Any]) -> Optional[List[str]]:
    """Returns the names of the globals that torch.load(weights_only=True) refuses; None if torch is older
    than 2.6.
    """
    find = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    if find is None:
        return None
    named = []
    for item in found:
        try:
            pickle.dumps(item, 2)
            named.append(item)
        except Exception:  # It is no global: the pickle names it in another way.
            continue
    return sorted(find(io.BytesIO(archive_of(pickle.dumps(named, 2), True))))
