"""Pickles an object as torch.save does, tensors by reference, and says which bytes of which storages belong
to it.

Storages are named, never tensors: views, strides, tied weights, conjugate and negative bits need no case of
their own. The names of torch that this needs are unchanged from torch 2.1 on.
"""

import collections
import gc
import io
import pickle
import types
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

_TypedStorage = torch.storage.TypedStorage
_UntypedStorage = torch.UntypedStorage
_rebuild_v2 = torch._utils._rebuild_tensor_v2
_rebuild_v3 = getattr(torch._utils, "_rebuild_tensor_v3", None)
_has_names = getattr(torch.Tensor, "has_names", None)  # Named tensors: of older torch. It refuses them.
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
# Of these torch names the untyped storage, and the dtype beside it.
_NEW_DTYPES = frozenset(
    getattr(torch.storage, "_new_dtypes", lambda: ())() if _rebuild_v3 is not None else ()
)
_STORAGE_TYPES.update((dtype, _UntypedStorage) for dtype in _NEW_DTYPES)
_Tensor, _strided, _OrderedDict = torch.Tensor, torch.strided, collections.OrderedDict
_cpu = torch.device("cpu")
_EMPTY_ORDERED_DICT = (_OrderedDict, ())
_NO_STORAGES = frozenset(
    (str, int, float, bool, type(None), tuple, list, dict, type, types.FunctionType, _Tensor, _OrderedDict)
)
_GLOBALS = (type, types.FunctionType, types.BuiltinFunctionType)
# A storage of which at most this share is used by no tensor is kept whole: alignment gaps in a flat buffer
# are no reason to take it apart.
_TOLERATED_WASTE = 1 / 16

Interval = Tuple[int, int]  # Bytes [begin, end) of a storage.


class Record(NamedTuple):
    """One storage record of the archive: the bytes [begin, end) of a storage."""

    storage: Any
    begin: int
    end: int


class Skeleton(NamedTuple):
    pickled: bytes
    records: List[Record]  # In the order of their keys 0, 1, ...
    globals: Set[Any]  # Classes and functions that the pickle names.


def skeleton(obj: Any, compact: bool) -> Skeleton:
    """compact: only the bytes of a storage that tensors use, where it has many others."""
    collecting = gc.isenabled()
    gc.disable()  # Nothing that is made here is garbage, and looking for it takes as long as making it.
    try:
        first = _Pickler({})
        pickled = first.run(obj)
        components = first.components() if compact else {}
        if not components:
            return Skeleton(pickled, first.records, first.globals)
        # Something is much larger than what is used of it: once more without the rest. `first` lives on
        # until then, for the identity of a freed storage is given to the next one.
        second = _Pickler(components)
        pickled = second.run(obj)
        del first
        return Skeleton(pickled, second.records, second.globals)
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
        self._components = components  # Storage -> its parts that become records of their own.
        self.records: List[Record] = []
        self.globals: Set[Any] = set()
        self._keys: Dict[Any, str] = {}  # Storage, or (storage, begin of the component).
        self._references: Dict[Any, _Reference] = {}
        self._dtypes: Dict[int, Any] = {}  # Address -> dtype.
        self._whole: Set[int] = (
            set()
        )  # Storages all of whose bytes are used, or whose user does not say which.
        self._used: Dict[int, List[Interval]] = {}  # Of the others.

    def run(self, obj: Any) -> bytes:
        self.dump(obj)
        return self._buffer.getvalue()

    # Called for everything in the object, and for every tensor: what is quick here is what the user waits
    # for.

    def persistent_id(self, obj: Any) -> Any:
        kind: Any = type(obj)
        if kind in _NO_STORAGES:
            return None
        if kind is _Reference:
            # Not the same tuple twice: torch makes a new one, too, and the pickle shows it.
            kind, key, location, count, _ = obj
            return ("storage", kind, key, location, count)
        if isinstance(obj, _TypedStorage):
            storage: Any = obj._untyped_storage
            dtype, count = obj.dtype, obj._size()
            kind = getattr(torch, obj._pickle_storage_type())
        elif torch.is_storage(obj):
            storage, dtype, count = obj, torch.uint8, obj.nbytes()
            kind = torch.serialization.normalize_storage_type(type(obj))
        else:
            return None
        self._check_dtype(storage, dtype)
        identity = storage._cdata
        self._whole.add(identity)
        size = 0 if storage.device.type == "meta" else storage.nbytes()
        return ("storage", kind, self._key(identity, storage, 0, size), _location(storage), count)

    def reducer_override(self, obj: Any) -> Any:
        # Plain tensors are nearly all of a checkpoint: here the same bytes as by their own __reduce_ex__,
        # in a quarter of the time.
        kind = type(obj)
        if kind is _Tensor:
            return self._reduce(obj)
        if kind is _OrderedDict:
            return NotImplemented if obj or obj.__dict__ else _EMPTY_ORDERED_DICT
        if isinstance(obj, _GLOBALS):
            self.globals.add(obj)
        return NotImplemented

    def _reduce(self, tensor: Any) -> Any:
        dtype = tensor.dtype
        storage_type = _STORAGE_TYPES.get(dtype)  # None of the quantized ones is there.
        if (
            storage_type is None
            or tensor.layout is not _strided
            or not (tensor.is_cpu or tensor.is_cuda)
            or tensor.is_nested
            or tensor.is_neg()
            or (dtype.is_complex and tensor.is_conj())
            or tensor._backward_hooks
            or tensor.__dict__
            or (_has_names is not None and _has_names(tensor))
        ):
            return NotImplemented
        storage = tensor.untyped_storage()
        identity = storage._cdata
        offset = tensor.storage_offset()
        if identity in self._components:
            item = dtype.itemsize
            begin, end = self._component(identity, offset * item)
            reference = self._references.get((identity, begin))
            if reference is None:
                self._check_dtype(storage, dtype)
                reference = self._refer(storage_type, dtype, (identity, begin), storage, begin, end)
            offset = max(0, offset - begin // item)  # One without elements may begin anywhere.
        else:
            reference = self._references.get(identity)
            if reference is None:
                size = storage.nbytes()
                self._check_dtype(storage, dtype)
                reference = self._refer(storage_type, dtype, identity, storage, 0, size)
                if tensor.nbytes == size:
                    self._whole.add(identity)
            if identity not in self._whole:
                self._use(identity, tensor, offset)
        if reference[4] is not dtype:
            self._check_dtype(storage, dtype)
        # As torch does, tuple(): a torch.Size would be pickled as one.
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
        key = self._key(place, storage, begin, end)
        reference = self._references[place] = _Reference(
            (kind, key, _location(storage), (end - begin) // unit, dtype)
        )
        return reference

    def _use(self, identity: int, tensor: Any, offset: int) -> None:
        """Remembers which bytes of its storage a tensor reaches."""
        item = tensor.element_size()
        last = offset
        for count, step in zip(tensor.size(), tensor.stride()):
            if count == 0:
                last = offset - 1
                break
            last += (count - 1) * step
        self._used.setdefault(identity, []).append((offset * item, (last + 1) * item))

    def _key(self, place: Any, storage: Any, begin: int, end: int) -> str:
        key = self._keys.get(place)
        if key is None:
            key = self._keys[place] = str(len(self.records))
            self.records.append(Record(storage, begin, end))
        return key

    def _check_dtype(self, storage: Any, dtype: Any) -> None:
        """torch.save refuses it, and could not load it."""
        if storage.device.type == "meta":
            return
        if dtype in _NEW_DTYPES:
            dtype = torch.uint8  # For torch their storages are of bytes.
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
        return self._components[identity][0]  # A tensor without elements; it may be anywhere.

    def components(self) -> Dict[int, List[Interval]]:
        """For each storage of which much is not used: what is."""
        found = {}
        for identity, intervals in self._used.items():
            if identity in self._whole:
                continue
            merged = _merge(intervals)
            used = sum(end - begin for begin, end in merged)
            if used < self.records[int(self._keys[identity])].end * (1 - _TOLERATED_WASTE):
                found[identity] = merged
        return found


def _location(storage: Any) -> str:
    return "cpu" if storage.device == _cpu else str(torch.serialization.location_tag(storage))


def _merge(intervals: List[Interval]) -> List[Interval]:
    """Those that overlap or touch become one: no byte is saved twice, and what shared memory shares it
    still. Empty ones vanish.
    """
    merged: List[Interval] = []
    for begin, end in sorted(intervals):
        if begin == end:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged or [(0, 0)]


def unpicklable_by_weights_only(found: Set[Any]) -> Optional[List[str]]:
    """Which of these globals torch.load(weights_only=True) refuses, by name; None when this torch cannot
    tell (before 2.6).
    """
    from ckptd._zip_layout import archive_of

    find = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    if find is None:
        return None
    named = []
    for item in found:
        try:
            pickle.dumps(item, 2)
            named.append(item)
        except Exception:  # Not a global of its own; the pickle names it by other means.
            continue
    return sorted(find(io.BytesIO(archive_of(pickle.dumps(named, 2), True))))
