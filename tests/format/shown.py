"""Describes an object the way `archive_tool show` describes what it read, for comparison."""

from __future__ import annotations

import collections
import copyreg
import json
import struct
from typing import Any, Dict, List

import torch

STORAGE_DTYPES = torch.storage._dtype_to_storage_type_map()


class Shower:
    """`storages` holds the bytes of each storage, in the order in which the object refers to them."""

    def __init__(self) -> None:
        self.storages: List[bytes] = []
        self.index: Dict[int, int] = {}
        self.alive: List[Any] = []  # Keeps objects alive: the id of a freed object may be reused.

    def show(self, obj: Any) -> Any:
        kind = type(obj)
        simple = getattr(self, "show_" + kind.__name__, None)
        if simple is not None and kind.__module__ == "builtins":
            return simple(obj)
        if isinstance(obj, torch.dtype):
            return ["dtype", str(obj)[len("torch.") :]]
        if kind is torch.Size:
            return ["Size", list(obj)]
        if kind is collections.OrderedDict:
            attributes = self.show(obj.__dict__) if obj.__dict__ else None
            return ["OrderedDict", self.entries(obj.items()), attributes]
        if isinstance(obj, torch.storage.TypedStorage):
            return ["storage", str(obj.dtype)[len("torch.") :], self.storage(obj._untyped_storage)]
        if isinstance(obj, torch.UntypedStorage):
            return ["storage", "untyped", self.storage(obj)]
        if kind in (torch.Tensor, torch.nn.Parameter) and plain(obj):
            return self.tensor(obj)
        if kind.__name__ == "TensorReference":
            return ["TensorReference", obj.tid]
        if kind.__name__ == "_InternalTensorReference":
            dtype = str(obj.dtype)[len("torch.") :]
            return ["_InternalTensorReference", obj.tid, list(obj.shape), dtype, obj.expert_model_parallel]
        return self.other(obj)

    def show_NoneType(self, obj: None) -> Any:
        return ["None"]

    def show_bool(self, obj: bool) -> Any:
        return ["bool", obj]

    def show_int(self, obj: int) -> Any:
        if -(2**63) <= obj < 2**63:
            return ["int", str(obj)]
        size = (obj + (obj < 0)).bit_length() // 8 + 1
        return ["bigint", obj.to_bytes(size, "little", signed=True).hex()]

    def show_float(self, obj: float) -> Any:
        return ["float", str(struct.unpack("<Q", struct.pack("<d", obj))[0])]

    def show_str(self, obj: str) -> Any:
        return ["str", obj.encode("utf-8", "surrogatepass").hex()]

    def show_bytes(self, obj: bytes) -> Any:
        return ["bytes", obj.hex()]

    def show_list(self, obj: List[Any]) -> Any:
        return ["list", [self.show(item) for item in obj]]

    def show_tuple(self, obj: Any) -> Any:
        return ["tuple", [self.show(item) for item in obj]]

    def show_set(self, obj: Any) -> Any:
        return ["set", sorted(dumped(self.show(item)) for item in obj)]

    def show_frozenset(self, obj: Any) -> Any:
        return ["frozenset", sorted(dumped(self.show(item)) for item in obj)]

    def show_dict(self, obj: Dict[Any, Any]) -> Any:
        return ["dict", self.entries(obj.items())]

    def show_bytearray(self, obj: bytearray) -> Any:
        return ["object", "builtins.bytearray", False, ["tuple", [self.show(bytes(obj))]], [], [], None]

    def show_type(self, obj: type) -> Any:
        return ["global", obj.__module__, obj.__name__]

    def show_builtin_function_or_method(self, obj: Any) -> Any:
        return ["global", obj.__module__, obj.__name__]

    def entries(self, items: Any) -> Any:
        return [[self.show(key), self.show(value)] for key, value in items]

    def storage(self, untyped: Any) -> int:
        if untyped._cdata not in self.index:
            self.index[untyped._cdata] = len(self.storages)
            self.alive.append(untyped)
            raw = torch.empty(0, dtype=torch.uint8).set_(untyped) if untyped.nbytes() else torch.empty(0, dtype=torch.uint8)
            self.storages.append(raw.numpy().tobytes())
        return self.index[untyped._cdata]

    def tensor(self, obj: Any) -> Any:
        bits = {name: True for name, is_set in (("conj", obj.is_conj()), ("neg", obj.is_neg())) if is_set}
        fields = {
            "dtype": str(obj.dtype)[len("torch.") :],
            "offset": obj.storage_offset(),
            "shape": list(obj.shape),
            "stride": list(obj.stride()),
            "requires_grad": obj.requires_grad,
            "parameter": isinstance(obj, torch.nn.Parameter),
            "storage": self.storage(obj.untyped_storage()),
            "attributes": self.show(obj.__dict__) if obj.__dict__ else None,
            "bits": self.show(bits) if bits else None,
        }
        return ["tensor", fields]

    def other(self, obj: Any) -> Any:
        """Describes how Python's pickle would build the object."""
        if callable(obj) and isinstance(getattr(obj, "__module__", None), str) and hasattr(obj, "__name__"):
            return ["global", obj.__module__, obj.__name__]
        reduce = copyreg.dispatch_table.get(type(obj))
        made = reduce(obj) if reduce else obj.__reduce_ex__(2)
        if isinstance(made, str):
            return ["global", "torch", made]
        function, arguments, state, items, entries = (*made, None, None, None)[:5]
        by_new = function is copyreg.__newobj__
        if by_new:
            function, *arguments = arguments
        name = getattr(function, "__qualname__", function.__name__)
        shown = self.show(tuple(arguments))
        listed, keyed = [self.show(i) for i in items or ()], self.entries(entries or ())
        state = self.show(state) if state is not None else None
        return ["object", f"{function.__module__}.{name}", by_new, shown, listed, keyed, state]


def plain(tensor: Any) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"


def dumped(shown: Any) -> str:
    """Formats like nlohmann::json::dump()."""
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


