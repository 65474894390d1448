"""Reading pickles with an allow-list of classes, and writing those that name torch_xla's class without having it."""

import _codecs
import collections
import io
import pickle
from types import SimpleNamespace
from typing import Any, Callable, Dict, Sequence, Tuple

import torch

from ckptd import errors


class TensorReference:
    """Stands in an xser file for a tensor that has a file of its own. Known to everybody else as
    torch_xla.utils.serialization.TensorReference, and pickled by that name.
    """

    def __init__(self, tid: int) -> None:
        self.tid = tid


class InternalTensorReference(TensorReference):
    """What NxD leaves there, by mistake, for a tensor inside of a list. Its file is there."""


_REFERENCE = ("torch_xla.utils.serialization", "TensorReference")
_OURS: Dict[Tuple[str, str], Any] = {
    _REFERENCE: TensorReference,
    ("neuronx_distributed.trainer.checkpoint", "_InternalTensorReference"): InternalTensorReference,
}
# No function among them runs anything, whatever its arguments are.
_ALLOWED: Dict[Tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "Counter"): collections.Counter,
    ("_codecs", "encode"): _codecs.encode,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch.storage", "UntypedStorage"): torch.UntypedStorage,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
}
for _builtins in ("builtins", "__builtin__"):
    for _kind in (set, frozenset, complex):
        _ALLOWED[_builtins, _kind.__name__] = _kind
_rebuild_v3 = getattr(torch._utils, "_rebuild_tensor_v3", None)
if _rebuild_v3 is not None:
    _ALLOWED["torch._utils", "_rebuild_tensor_v3"] = _rebuild_v3


def _reader(
    found: "Callable[[str, str], Any]", refuse: "Callable[[str], Exception]", anything: bool
) -> SimpleNamespace:
    """What torch.load takes for a pickle module. found: more classes, or None."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            value = _OURS.get((module, name)) or _ALLOWED.get((module, name)) or found(module, name)
            if value is not None:
                return value
            if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
                return getattr(torch, name)
            if module == "torch" and name.endswith("Storage") and isinstance(getattr(torch, name, None), type):
                return getattr(torch, name)
            if anything:
                return super().find_class(module, name)
            raise refuse(f"{module}.{name}")

    def load(file: Any, **options: Any) -> Any:
        return Unpickler(file, **options).load()

    return SimpleNamespace(
        Unpickler=Unpickler, load=load, UnpicklingError=pickle.UnpicklingError, __name__="ckptd.nxd"
    )


def load(file: Any, what: str, safe_globals: Sequence[Any] = (), anything: bool = False) -> Any:
    """torch.load of an open file onto the CPU. Refused names the first class that is not allowed.

    what: the file's name in messages. anything: every class there is, which may run code.
    """
    more = {(kind.__module__, kind.__qualname__): kind for kind in safe_globals}

    def refuse(name: str) -> Exception:
        return errors.Refused(
            f"{what} holds {name}, which no state of a model or an optimizer needs and which could run code: allow it by "
            "ckptd.nxd.configure(safe_globals=[...]), or everything by configure(weights_only=False) if you trust the file",
            reason="UNSAFE_GLOBALS",
            path=what,
        )

    module = _reader(lambda module, name: more.get((module, name)), refuse, anything)
    return torch.load(file, map_location="cpu", weights_only=False, pickle_module=module)


def image_of_references(state: Any) -> bytes:
    """The file of a state whose tensors were taken out of it. torch.save writes it: it is small."""
    file = io.BytesIO()
    torch.save(state, file, pickle_module=_writer)
    return file.getvalue()


class _Pickler(pickle._Pickler):
    """Python's own, for it lets one class go by another name."""

    def save_global(self, obj: Any, name: Any = None) -> None:
        if obj is not TensorReference:
            return super().save_global(obj, name)  # type: ignore[misc,no-any-return]
        self.write(pickle.GLOBAL + f"{_REFERENCE[0]}\n{_REFERENCE[1]}\n".encode())  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


_writer: Any = SimpleNamespace(Pickler=_Pickler, __name__="ckptd.nxd")

