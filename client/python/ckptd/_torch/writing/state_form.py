"""The form of a state: everything that its pickle depends on but the bytes of its tensors.

A trainer saves the same form again and again. To find that out takes a fifth of the time of pickling.
"""

import collections
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

_Tensor, _strided, _OrderedDict = torch.Tensor, torch.strided, collections.OrderedDict
# Named tensors, which torch refuses to save. Older versions of torch only.
_has_names = getattr(torch.Tensor, "has_names", None)
_SCALARS = frozenset((str, int, bool, type(None)))


def is_plain(tensor: Any) -> bool:
    """Returns whether the pickle of a torch.Tensor holds nothing but its storage, dtype, shape, stride, offset and
    requires_grad. Called for every tensor of a state while its user waits.
    """
    return not (
        tensor.layout is not _strided
        or not (tensor.is_cpu or tensor.is_cuda)
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_neg()
        or (tensor.is_complex() and tensor.is_conj())
        or tensor._backward_hooks
        or tensor.__dict__
        or (_has_names is not None and _has_names(tensor))
    )


class StateForm(NamedTuple):
    """The form of a state, and its tensors."""

    key: Tuple[Any, ...]  # Equal for two states whose pickles are the same.
    tensors: List[Any]  # In the order in which the pickle has them.
    storages: List[Any]  # Of the tensors.


class _UnusualError(Exception):
    """The state has something whose pickle may depend on more than is looked at here."""


def form_of(state: Any) -> Optional[StateForm]:
    """Returns the form of a state of dicts, lists, tuples, plain tensors and simple values; None for any other."""
    walk = _Walk()
    try:
        walk.add(state)
    except (_UnusualError, RecursionError):
        return None
    return StateForm(tuple(walk.key), walk.tensors, walk.storages)


class _Walk:
    def __init__(self) -> None:
        self.key: List[Any] = []
        self.tensors: List[Any] = []
        self.storages: List[Any] = []
        self._tensor_numbers: Dict[int, int] = {}  # By identity: one that occurs twice is one when it is loaded.
        self._storage_numbers: Dict[int, int] = {}  # By identity: tensors that share bytes share them then, too.
        self._containers: Dict[int, Any] = {}

    def add(self, value: Any) -> None:
        kind = type(value)
        if kind is _Tensor:
            self._add_tensor(value)
        elif kind in _SCALARS:
            self.key += (kind, value)
        elif kind is float:
            self.key += (kind, value.hex())  # 0.0 and -0.0 are equal, and no NaN is equal to itself.
        elif kind is dict or kind is _OrderedDict:
            self._enter(value)
            self.key += (kind, len(value))
            for name, each in value.items():
                if type(name) not in _SCALARS:
                    raise _UnusualError
                self.key += (type(name), name)
                self.add(each)
            if kind is _OrderedDict:  # A model's has the attribute _metadata.
                self.add(value.__dict__)
        elif kind is list or kind is tuple:
            self._enter(value)
            self.key += (kind, len(value))
            for each in value:
                self.add(each)
        else:
            raise _UnusualError

    def _enter(self, container: Any) -> None:
        """Refuses a container that occurs twice: when it is loaded it is one, too."""
        if id(container) in self._containers:
            raise _UnusualError
        self._containers[id(container)] = container  # Kept: __dict__ may be made by the access.

    def _add_tensor(self, tensor: Any) -> None:
        number = self._tensor_numbers.setdefault(id(tensor), len(self.tensors))
        if number < len(self.tensors):
            self.key += (_Tensor, number)
            return
        if not is_plain(tensor):
            raise _UnusualError
        storage = tensor.untyped_storage()
        self.tensors.append(tensor)
        self.storages.append(storage)
        self.key += (
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
            tensor.requires_grad,
            storage.device,
            storage.nbytes(),
            storage.data_ptr(),
            self._storage_numbers.setdefault(storage._cdata, number),
        )
