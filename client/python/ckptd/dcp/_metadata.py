"""Reads DCP's metadata and its pickled objects, which are not trusted: only with the classes that belong there."""

import collections
import importlib
import io
import pathlib
import pickle
from typing import Any, Dict, Tuple

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from ckptd import errors
from ckptd._torch.reading import allowed_classes
from ckptd.dcp._process import process

_MODULES = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
}


def _path(*parts: str) -> pathlib.PurePath:
    """Makes a path that a StorageMeta has been given."""
    return pathlib.PurePath(*parts)


_FOUND: Dict[Tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "getattr"): allowed_classes.enum_member,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch.serialization", "_get_layout"): getattr(torch.serialization, "_get_layout", None),
}
for _module in ("pathlib", "pathlib._local"):
    for _name in ("PosixPath", "PurePosixPath"):
        _FOUND[_module, _name] = _path


class _Unpickler(pickle.Unpickler):
    """Finds the classes of DCP's metadata alone, none of which runs code when it is made or given its state."""

    def __init__(self, file: Any, what: str) -> None:
        super().__init__(file)
        self._what = what

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _FOUND:
            return _FOUND[module, name]
        if name in _MODULES.get(module, ()):
            return getattr(importlib.import_module(module), name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        for allowed in process.settings.trust.safe_globals:
            if (getattr(allowed, "__module__", ""), getattr(allowed, "__qualname__", "")) == (module, name):
                return allowed
        raise _refuse(self._what, f"{module}.{name}")


def load_metadata(file: Any, what: str) -> Metadata:
    """Returns the metadata of a checkpoint.

    Args:
        file: an open file, or the bytes of one.
        what: the file, for messages.

    Raises:
        errors.Refused: it holds a class that does not belong there; see :func:`ckptd.dcp.configure`.
    """
    opened = io.BytesIO(file) if isinstance(file, (bytes, bytearray)) else file
    made: Metadata = pickle.load(opened) if not process.settings.trust.weights_only else _Unpickler(opened, what).load()
    return made


def check_object(data: bytes, what: str) -> None:
    """Raises errors.Refused if an object that a planner is about to load holds a class that is not allowed."""
    if process.settings.trust.weights_only:
        allowed_classes.load(io.BytesIO(data), process.settings.trust, (), "cpu", lambda why: _refuse(what, why))


class CheckedPlanner:
    """Stands for a planner while DCP's own reader reads: checks the objects that it gives to the planner."""

    def __init__(self, planner: LoadPlanner, path: str) -> None:
        self._planner = planner
        self._path = path

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Checks an object, and hands it on."""
        check_object(value.getvalue(), f"{read_item.storage_index.fqn} of {self._path}")
        self._planner.load_bytes(read_item, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)


def _refuse(what: str, why: str) -> errors.Refused:
    return allowed_classes.refusal(what, why, "ckptd.dcp.configure")
