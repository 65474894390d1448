"""Reads xser files: resolves references to tensors, wherever a release of NxD has put them."""

from typing import Any, Callable, Dict, List, NamedTuple

from ckptd.nxd import _names
from ckptd.nxd._pickles import TensorReference
from ckptd.nxd._sources import Classes, Source


class Absent(NamedTuple):
    """Stands for a tensor whose file is missing."""

    name: str  # The missing file.


def is_xser(source: Source, name: str) -> bool:
    """Returns whether a file's tensors may lie in files of their own."""
    folder = _names.tensors(name) + "/"
    return _names.info(name) in source.names or any(other.startswith(folder) for other in source.names)


def resolve(value: Any, tensor: "Callable[[int], Any]") -> Any:
    """Returns the state with tensor(tid) in the place of each reference.

    Tensors that occur twice stay one object.
    """
    tensors: Dict[int, Any] = {}
    containers: Dict[int, Any] = {}  # By id(). `value` lives on meanwhile, so no id is reused.

    def make(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: walk(below) for key, below in item.items()}
        return type(item)(walk(below) for below in item)

    def walk(item: Any) -> Any:
        if isinstance(item, TensorReference):
            if item.tid not in tensors:
                tensors[item.tid] = tensor(item.tid)
            return tensors[item.tid]
        if not isinstance(item, dict) and type(item) not in (list, tuple):
            return item
        if id(item) not in containers:
            containers[id(item)] = make(item)
        return containers[id(item)]

    return walk(value)


def file_of(source: Source, name: str, tid: int) -> str:
    """Returns a tensor's file: in the file's own folder, or in the first expert's, where NxD puts what all
    experts share.

    Empty if neither has it.
    """
    own = _names.tensor(name, tid)
    if own in source.names:
        return own
    shared = _names.tensor(_names.of_first_expert(name), tid)
    return shared if shared in source.names else ""


def load(source: Source, name: str, classes: Classes) -> Any:
    """Returns a whole state, of any layout, with Absent for each tensor whose file is missing."""
    return resolve_from(source, name, source.load(name, classes), classes)


def resolve_from(source: Source, name: str, state: Any, classes: Classes) -> Any:
    """Returns a state with its references resolved from a file's tensors."""
    def tensor(tid: int) -> Any:
        path = file_of(source, name, tid)
        return source.load(path, classes) if path else Absent(_names.tensor(name, tid))

    return resolve(state, tensor)


def absent(state: Any) -> List[str]:
    """Returns the missing files of a resolved state."""
    if isinstance(state, Absent):
        return [state.name]
    if isinstance(state, dict):
        return [name for item in state.values() for name in absent(item)]
    if isinstance(state, (list, tuple)):
        return [name for item in state for name in absent(item)]
    return []
