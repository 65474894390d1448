"""Loads a file into existing tensors: compares everything first, then reads each byte straight to its place."""

import logging
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple

from ckptd import errors
from ckptd._reading.verified_file import VerifiedFile
from ckptd._torch.reading import key_prefix
from ckptd._torch.reading.archive_records import Records, records_of, sizes_of

_log = logging.getLogger("ckptd")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray)
_MAX_SHOWN = 8  # Differences in one message.


class _Pair(NamedTuple):
    where: str  # Its path in the state, such as "model.layers.0.weight".
    saved: Any  # A tensor on the meta device, without bytes; its storage knows where in the file they are.
    target: Any


class LoadPlan:
    """Which bytes of a file go to which tensor. `differences` is empty if the file fits the target."""

    def __init__(self, saved: Any, target: Any) -> None:
        """Compares names, shapes and dtypes; changes nothing.

        Args:
            saved: the file, unpickled to the meta device, or to the CPU for copy().
            target: the state to fill.
        """
        self.differences: List[str] = []
        self._prefix = ""  # The hint for names that differ only by a prefix; empty if they do not.
        self._pairs: List[_Pair] = []
        self._values: List[Tuple[Any, Any, Any]] = []  # (container, key, value) of what is not a tensor.
        self._compare(saved, target, "", None)

    def offsets_known(self, records: Records) -> bool:
        """Returns whether each tensor lies in one of the file's records, where torch says."""
        sizes = sizes_of(records)
        return all(_is_in(sizes, pair.saved) for pair in self._pairs)

    def values_are_plain(self) -> bool:
        """Returns whether the values that are not tensors hold none: on the meta device it would have no bytes."""
        return all(holds_no_tensor(value) for _, _, value in self._values)

    def summary(self) -> str:
        """Returns the first differences as a text."""
        shown = "; ".join(self.differences[:_MAX_SHOWN])
        more = len(self.differences) - _MAX_SHOWN
        text = f"{shown}; and {more} more" if more > 0 else shown
        return f"{self._prefix} ({text})" if self._prefix else text

    def read(self, file: VerifiedFile) -> None:
        """Fills the tensors in the order of the file, and then sets the values that are not tensors."""
        import torch

        from ckptd._torch.gpu import device_fill
        from ckptd._torch.gpu.device_fill import DevicePiece
        from ckptd._torch.gpu.devices import devices

        straight: List[Tuple[int, int, int]] = []
        on_devices: List[DevicePiece] = []
        others: List[_Pair] = []
        filled: List[Any] = []
        end = 0
        for pair in sorted(self._pairs, key=lambda pair: offset_of(pair.saved) or 0):
            offset, size = offset_of(pair.saved) or 0, _extent(pair.saved) * int(pair.saved.element_size())
            if size == 0:
                continue  # It may begin anywhere.
            if offset + size > file.size:
                raise errors.Corrupt(
                    f"its tensors reach {offset + size - file.size} bytes beyond its end",
                    reason="SHORT_FILE",
                )
            if not _is_straight(pair) or offset < end:  # Such as a tied one, which shares its bytes.
                others.append(pair)
                continue
            address, storage = pair.target.data_ptr(), pair.target.untyped_storage()
            if devices().has(storage):
                on_devices.append(DevicePiece(offset, address, size, storage.device))
            else:
                straight.append((offset, address, size))
            filled.append(pair.target)
            end = offset + size
        with torch.no_grad():
            file.scatter(straight)
            device_fill.fill(file, on_devices)
            for target in filled:  # Autograd does not see what native code writes: backward() must refuse the old values.
                torch.autograd.graph.increment_version(target)
            for pair in others:
                _read_one(file, pair.saved, pair.target)
        self._set_values()

    def copy(self) -> None:
        """Fills the target from `saved`, whose bytes are in memory."""
        import torch

        with torch.no_grad():
            for pair in self._pairs:
                pair.target.copy_(pair.saved)
        self._set_values()

    def _set_values(self) -> None:
        for container, key, value in self._values:
            container[key] = value

    def _compare(self, saved: Any, target: Any, where: str, place: "Optional[Tuple[Any, Any]]") -> None:
        import torch

        if isinstance(saved, torch.Tensor):
            return self._compare_tensors(saved, target, where)
        if isinstance(saved, Mapping):
            return self._compare_mappings(saved, target, where)
        if isinstance(saved, (list, tuple)):
            return self._compare_sequences(saved, target, where)
        if isinstance(target, torch.Tensor):
            return self._differ(where, f"{type(saved).__name__} was saved, and the target has a tensor")
        if place is not None and not isinstance(place[0], tuple):
            self._values.append((place[0], place[1], saved))
        elif saved != target:
            self._differ(where, f"{saved!r} was saved, and the target has {target!r}, which cannot be set")

    def _compare_mappings(self, saved: Any, target: Any, where: str) -> None:
        if not isinstance(target, Mapping):
            return self._differ(where, f"a {type(saved).__name__} was saved, and the target has a {type(target).__name__}")
        self._prefix = self._prefix or key_prefix.difference(saved, target)
        for key in saved.keys() - target.keys():
            self._differ(_below(where, key), "was saved, and the target does not have it")
        for key in target.keys() - saved.keys():
            self._differ(_below(where, key), "was not saved")
        for key in saved:
            if key in target:
                self._compare(saved[key], target[key], _below(where, key), (target, key))

    def _compare_sequences(self, saved: Any, target: Any, where: str) -> None:
        if not isinstance(target, (list, tuple)) or len(target) != len(saved):
            there = f"{len(target)}" if isinstance(target, (list, tuple)) else f"a {type(target).__name__}"
            return self._differ(where, f"{len(saved)} elements were saved, and the target has {there}")
        for index, value in enumerate(saved):
            self._compare(value, target[index], _below(where, index), (target, index))

    def _compare_tensors(self, saved: Any, target: Any, where: str) -> None:
        import torch

        if not isinstance(target, torch.Tensor):
            return self._differ(where, f"a tensor was saved, and the target has a {type(target).__name__}")
        if saved.shape != target.shape:
            return self._differ(where, f"{_shape(saved)} was saved, and the target has {_shape(target)}")
        if saved.dtype != target.dtype:
            return self._differ(where, f"{saved.dtype} was saved, and the target has {target.dtype}")
        for tensor, whose in ((saved, "the saved tensor"), (target, "the target")):
            kind = unusual(tensor)
            if kind:
                return self._differ(where, f"{whose} is {kind}: load it without into=")
        if reach_of(saved) > saved.untyped_storage().nbytes():
            return self._differ(where, "the saved tensor reaches beyond its storage")
        if target.is_meta:
            return self._differ(where, "the target is on the meta device, which has no memory")
        self._pairs.append(_Pair(where, saved, target))

    def _differ(self, where: str, how: str) -> None:
        self.differences.append(f"{where or 'the whole state'}: {how}")


def load_into(
    file: VerifiedFile, target: Any, load: Callable[..., Any], refuse: Callable[[str], Exception]
) -> None:
    """Fills `target` from a file, or raises refuse(why) before anything is changed. load(map_location[, records])
    unpickles it.
    """
    records = records_of(file)
    saved = try_meta(load, records) if records else None
    plan = LoadPlan(load("cpu") if saved is None else saved, target)
    if plan.differences:
        raise refuse(plan.summary())
    if saved is None:
        plan.copy()
    elif plan.offsets_known(records) and plan.values_are_plain():
        plan.read(file)
    else:  # torch does not tell where all bytes are, or a value holds a tensor: load a second copy in memory.
        LoadPlan(load("cpu"), target).copy()


def try_meta(load: Callable[..., Any], records: Records) -> Any:
    """Returns load("meta", records); None if the file holds what cannot be made there, such as a class that computes
    with its tensors when it is made, or what does not fit its records.
    """
    try:
        return load("meta", records)
    except (errors.CkptdError, OSError):
        raise
    except Exception as error:
        _log.debug("ckptd: the file cannot be loaded without its bytes: %s", error)
        return None


def _below(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _shape(tensor: Any) -> str:
    return str(tuple(tensor.shape))


def holds_no_tensor(value: Any) -> bool:
    """Returns whether a value is of a class that is known to hold no tensor, or a tuple or a set of such values.

    Exactly these classes: an object of a subclass may have attributes.
    """
    import torch

    kind = type(value)
    if kind in (tuple, set, frozenset):
        return all(holds_no_tensor(each) for each in value)
    return kind in _PLAIN or kind in (torch.Size, torch.dtype, torch.device)


def unusual(tensor: Any) -> str:
    """Returns what a tensor is if its bytes are not simply its elements; empty for a plain tensor."""
    import torch

    if tensor.layout is not torch.strided:
        return f"{tensor.layout}"
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_conj() or tensor.is_neg():
        return "a lazy conjugate or negative"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"a {type(tensor).__name__}"
    return ""


def offset_of(saved: Any) -> Optional[int]:
    """Returns where in the file a tensor's first element begins; None if this version of torch does not tell."""
    begin = getattr(saved.untyped_storage(), "_checkpoint_offset", None)
    return None if begin is None else int(begin) + int(saved.storage_offset()) * int(saved.element_size())


def _is_in(sizes: Mapping[int, int], saved: Any) -> bool:
    """Returns whether the storage of a tensor is exactly one of the file's."""
    if offset_of(saved) is None:
        return False
    storage = saved.untyped_storage()
    size = int(storage.nbytes())
    return size == 0 or sizes.get(int(storage._checkpoint_offset)) == size


def reach_of(tensor: Any) -> int:
    """Returns how many bytes of its storage a tensor needs, from the storage's first one on."""
    extent = _extent(tensor)
    return (int(tensor.storage_offset()) + extent) * int(tensor.element_size()) if extent else 0


def _extent(tensor: Any) -> int:
    """Returns how many elements of its storage a tensor spans, from its first to its last."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum(int((size - 1) * stride) for size, stride in zip(tensor.shape, tensor.stride()))


def _is_straight(pair: _Pair) -> bool:
    """Returns whether the target's memory holds the same bytes as the file, in the same order."""
    from ckptd._torch.gpu.devices import devices

    saved, target = pair.saved, pair.target
    storage = target.untyped_storage()
    return bool(
        (devices().is_host(storage) or devices().has(storage))
        and target.stride() == saved.stride()
        and _extent(saved) == saved.numel()
    )


def _read_one(file: VerifiedFile, saved: Any, target: Any) -> None:
    """Fills one tensor by way of a buffer."""
    import torch

    place = torch.empty(_extent(saved), dtype=saved.dtype)
    offset = offset_of(saved)
    assert offset is not None
    file.scatter([(offset, place.data_ptr(), place.nbytes)])
    target.copy_(place.as_strided(saved.shape, saved.stride()))
