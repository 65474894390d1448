"""Reads pickles with an allow-list of classes, and writes pickles that name torch_xla's class without
importing it.
"""

import collections
import io
import pickle
from types import SimpleNamespace
from typing import Any, Callable, Dict, Sequence, Tuple

import torch

from ckptd import errors
from ckptd._torch.reading import script_check


class TensorReference:
    """Stands in an xser file for a tensor that has a file of its own.

    It is pickled as torch_xla.utils.serialization.TensorReference, whose place it takes.
    """

    def __init__(self, tid: int) -> None:
        self.tid = tid


class InternalTensorReference(TensorReference):
    """The class that NxD names, by mistake, for a tensor inside a list. The tensor has a file, too."""


_REFERENCE = ("torch_xla.utils.serialization", "TensorReference")
_OURS: Dict[Tuple[str, str], Any] = {
    _REFERENCE: TensorReference,
    ("neuronx_distributed.trainer.checkpoint", "_InternalTensorReference"): InternalTensorReference,
}


def _bytes_of(text: Any = "", encoding: Any = "latin1") -> bytes:
    """Makes bytes as pickle protocol 2 writes them. Other encodings would import the module of a codec."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("bytes that are not encoded as latin1")
    return text.encode("latin1")


def _rebuild(make: "Callable[..., Any]", hooks_at: int) -> "Callable[..., Any]":
    """Wraps a function of torch that makes a tensor: refuses backward hooks, which would be called later."""

    def checked(*args: Any) -> Any:
        if len(args) > hooks_at and args[hooks_at]:
            raise pickle.UnpicklingError("a tensor with backward hooks")
        return make(*args)

    return checked


_tensor_v2 = _rebuild(torch._utils._rebuild_tensor_v2, 5)
_parameter = _rebuild(torch._utils._rebuild_parameter, 2)
_TENSORS = [_tensor_v2]


def _with_attributes(tensor: Any, state: Any) -> Any:
    """Sets the attributes that a program has put on a tensor, such as NxD's expert_model_parallel.

    Refuses those that every tensor has: setting one could change how it is computed with, or what its memory
    is.
    """
    if isinstance(state, tuple) and len(state) == 2 and not state[1]:
        state = state[0]
    if state is not None and not isinstance(state, dict):
        raise pickle.UnpicklingError(f"the attributes of a tensor are a {type(state).__name__} and not a dict")
    for name, value in (state or {}).items():
        if not isinstance(name, str) or name.startswith("_") or hasattr(torch.nn.Parameter, name):
            raise pickle.UnpicklingError(f"a tensor whose built-in attribute {name!r} is set")
        setattr(tensor, name, value)
    return tensor


def _tensor_of_type(more: "Sequence[Any]") -> "Callable[..., Any]":
    """Returns a torch._tensor._rebuild_from_type_v2 for plain tensors and the classes `more` only."""

    def make(function: Any, kind: Any, args: Any, state: Any) -> Any:
        if function in _TENSORS and isinstance(args, tuple):
            if kind is torch.Tensor:
                return _with_attributes(function(*args), state)
            if any(kind is one for one in more):
                return torch._tensor._rebuild_from_type_v2(function, kind, args, state)
        raise pickle.UnpicklingError("a tensor of another class, or one that is not made as torch makes it")

    return make


def _parameter_with_state(data: Any, requires_grad: Any, hooks: Any, state: Any) -> Any:
    return _with_attributes(_parameter(data, requires_grad, hooks), state)


# Functions and classes that a file may call. None of them runs code from its arguments.
_CALLED: Dict[Tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "Counter"): collections.Counter,
    ("_codecs", "encode"): _bytes_of,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter_with_state,
}
for _builtins in ("builtins", "__builtin__"):
    for _kind in (set, frozenset, complex):
        _CALLED[_builtins, _kind.__name__] = _kind
if hasattr(torch._utils, "_rebuild_tensor_v3"):
    _TENSORS.append(_rebuild(torch._utils._rebuild_tensor_v3, 5))
    _CALLED["torch._utils", "_rebuild_tensor_v3"] = _TENSORS[-1]
# Classes that a file may name but not call. A storage, for one, would take any number as its allocator.
_NAMED: Dict[Tuple[str, str], Any] = {
    ("torch", "Tensor"): torch.Tensor,
    ("torch.storage", "UntypedStorage"): torch.UntypedStorage,
}


def _named(module: str, name: str) -> Any:
    """Returns a class or dtype that a file may name but not call, or None."""
    found = _NAMED.get((module, name))
    if found is None and module == "torch" and "." not in name:
        found = getattr(torch, name, None)
        storage = name.endswith("Storage") and isinstance(found, type)
        return found if storage or isinstance(found, torch.dtype) else None
    return found


_PythonUnpickler: Any = pickle._Unpickler
# Classes of which a file may make objects without calling them, and give them a state.
_WITH_STATE = (TensorReference, InternalTensorReference, collections.OrderedDict)


class _StrictUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """An unpickler for files that are not trusted. See _strict() for its attributes.

    It derives from Python's own unpickler (pickle._Unpickler), whose operations can be checked one by one.
    The one in C would set attributes of anything on its stack, even of classes and functions.
    """

    dispatch = dict(_PythonUnpickler.dispatch)
    called: Dict[Tuple[str, str], Any]
    more_allowed: Sequence[Any]
    refuse: "Callable[[str], Exception]"

    def find_class(self, module: str, name: str) -> Any:
        value = self.called.get((module, name)) or _OURS.get((module, name)) or _named(module, name)
        if value is None:
            raise self.refuse(f"{module}.{name}")
        return value

    def _check_called(self, function: Any, allowed: Any) -> None:
        # By identity: an object of the file could be equal to anything.
        if not any(function is one for one in (*allowed, *self.more_allowed)):
            raise self.refuse(f"a call of {_name_of(function)}")

    def load_reduce(self) -> None:
        self._check_called(self.stack[-2], self.called.values())
        super().load_reduce()

    def _instantiate(self, kind: Any, args: Any) -> None:
        self._check_called(kind, self.called.values())
        super()._instantiate(kind, args)

    def load_newobj(self) -> None:
        self._check_called(self.stack[-2], _WITH_STATE)
        super().load_newobj()

    def load_newobj_ex(self) -> None:
        self._check_called(self.stack[-3], ())
        super().load_newobj_ex()

    def load_build(self) -> None:
        state, target = self.stack[-1], self.stack[-2]
        if any(type(target) is one for one in self.more_allowed):
            super().load_build()
            return
        if type(target) not in _WITH_STATE:
            raise self.refuse(f"a state for {_name_of(target)}")
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise pickle.UnpicklingError(f"a {type(target).__name__} whose state is not a dict of names")
        self.stack.pop()
        target.__dict__.update(state)

    for _code, _load in (
        (pickle.REDUCE, load_reduce),
        (pickle.NEWOBJ, load_newobj),
        (pickle.NEWOBJ_EX, load_newobj_ex),
        (pickle.BUILD, load_build),
    ):
        dispatch[_code[0]] = _load


def _strict(more: "Dict[Tuple[str, str], Any]", refuse: "Callable[[str], Exception]") -> Any:
    """Returns the class of an unpickler for files that are not trusted. torch.load() derives another one from it.

    Args:
        more: what the user allows in addition, by (module, name). It may do whatever Python can.
        refuse: makes the error for what is not allowed.
    """
    more_allowed = list(more.values())
    called = {**_CALLED, ("torch._tensor", "_rebuild_from_type_v2"): _tensor_of_type(more_allowed), **more}
    attributes = {"called": called, "more_allowed": more_allowed, "refuse": staticmethod(refuse)}
    return type("Unpickler", (_StrictUnpickler,), attributes)


def _name_of(value: Any) -> str:
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _trusting(more: "Dict[Tuple[str, str], Any]") -> Any:
    """Returns an unpickler that allows every class."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            known = _OURS.get((module, name)) or more.get((module, name))
            return known if known is not None else super().find_class(module, name)

    return Unpickler


def load(file: Any, what: str, safe_globals: Sequence[Any] = (), anything: bool = False) -> Any:
    """Loads an open file onto the CPU, as torch.load does.

    Args:
        what: the file's name in messages.
        safe_globals: classes to allow in addition.
        anything: allow every class, which may run code.

    Raises:
        errors.Refused: the file holds a class that is not allowed; the message names the first one.
    """
    more: Dict[Tuple[str, str], Any] = {}
    for each in safe_globals:
        if isinstance(each, tuple):  # An object, and the name that stands for it, as for torch.
            module, _, name = each[1].rpartition(".")
            more[module, name] = each[0]
        else:
            more[each.__module__, each.__qualname__] = each

    def refuse(name: str) -> Exception:
        return errors.Refused(
            f"{what} holds {name}, which a model's or an optimizer's state does not need and which could run code: allow it by "
            "ckptd.nxd.configure(safe_globals=[...]), or everything by configure(weights_only=False) if you trust the file",
            reason="UNSAFE_GLOBALS",
            path=what,
        )

    if anything:
        reader = _trusting(more)
    else:
        file = script_check.checked(file, refuse)
        reader = _strict(more, refuse)

    def load_one(file: Any, **options: Any) -> Any:
        return reader(file, **options).load()

    module = SimpleNamespace(
        Unpickler=reader, load=load_one, UnpicklingError=pickle.UnpicklingError, __name__="ckptd.nxd"
    )
    return torch.load(file, map_location="cpu", weights_only=False, pickle_module=module)


def image_of_references(state: Any) -> bytes:
    """Returns the file of a state with references in the place of tensors. torch.save writes it, as it is
    small.
    """
    file = io.BytesIO()
    torch.save(state, file, pickle_module=_writer)
    return file.getvalue()


class _Pickler(pickle._Pickler):
    """Python's own pickler, which can be made to write another name for a class."""

    def save_global(self, obj: Any, name: Any = None) -> None:
        if obj is not TensorReference:
            return super().save_global(obj, name)  # type: ignore[misc,no-any-return]
        self.write(pickle.GLOBAL + f"{_REFERENCE[0]}\n{_REFERENCE[1]}\n".encode())  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


_writer: Any = SimpleNamespace(Pickler=_Pickler, __name__="ckptd.nxd")

