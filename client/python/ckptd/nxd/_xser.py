"""Reading xser files: references, and the tensors that they stand for, wherever a release of NxD put them."""

from typing import Any, Callable, Dict, List, NamedTuple

from ckptd.nxd import _names
from ckptd.nxd._pickles import TensorReference
from ckptd.nxd._sources import Classes, Source


class Absent(NamedTuple):
    """In the place of a tensor whose file is not there."""

    name: str  # Of that file.


def is_xser(source: Source, name: str) -> bool:
    """Whether a file's tensors may lie elsewhere."""
    folder = _names.tensors(name) + "/"
    return _names.info(name) in source.names or any(other.startswith(folder) for other in source.names)


def resolve(value: Any, tensor: "Callable[[int], Any]") -> Any:
    """The state with tensor(tid) in the place of each reference; one tensor under two names stays one."""
    tensors: Dict[int, Any] = {}
    containers: Dict[int, Any] = {}  # All of `value` lives on meanwhile, so that no identity is given twice.

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
    """Where a tensor is: in the file's own folder, or in the first expert's, where NxD has what all experts share. Empty: in
    neither.
    """
    own = _names.tensor(name, tid)
    if own in source.names:
        return own
    shared = _names.tensor(_names.of_first_expert(name), tid)
    return shared if shared in source.names else ""


def load(source: Source, name: str, classes: Classes) -> Any:
    """A whole state, of any layout, with Absent where a tensor's file is missing."""
    return resolve_from(source, name, source.load(name, classes), classes)


def resolve_from(source: Source, name: str, state: Any, classes: Classes) -> Any:
    def tensor(tid: int) -> Any:
        path = file_of(source, name, tid)
        return source.load(path, classes) if path else Absent(_names.tensor(name, tid))

    return resolve(state, tensor)


def absent(state: Any) -> List[str]:
    """The files that resolve() did not find."""
    if isinstance(state, Absent):
        return [state.name]
    if isinstance(state, dict):
        return [name for item in state.values() for name in absent(item)]
    if isinstance(state, (list, tuple)):
        return [name for item in state for name in absent(item)]
    return []
