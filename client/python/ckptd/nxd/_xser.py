"""Reads xser files: resolves references to tensors, wherever a release of NxD has put them."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ckptd.nxd import _device, _names
from ckptd.nxd._pickles import TensorReference
from ckptd.nxd._sources import Classes, Source


class Absent(NamedTuple):
    """Stands for a tensor whose file is missing."""

    name: str  # The missing file.


def is_xser(source: Source, name: str) -> bool:
    """Returns whether a file's tensors may lie in files of their own."""
    folder = _names.tensors(name) + "/"
    return _names.info(name) in source.names or any(other.startswith(folder) for other in source.names)


def resolve(value: Any, tensor: "Callable[[int, Any], Any]") -> Any:
    """Returns the state with tensor(tid, key) in the place of each reference; key: in the dict that has it.

    Tensors that occur twice stay one object.
    """
    tensors: Dict[int, Any] = {}
    containers: Dict[int, Any] = {}  # By id(). `value` lives on meanwhile, so no id is reused.

    def make(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: walk(below, key) for key, below in item.items()}
        return type(item)(walk(below) for below in item)

    def walk(item: Any, key: Any = None) -> Any:
        if isinstance(item, TensorReference):
            if item.tid not in tensors:
                tensors[item.tid] = tensor(item.tid, key)
            return tensors[item.tid]
        if not isinstance(item, dict) and type(item) not in (list, tuple):
            return item
        if id(item) not in containers:
            containers[id(item)] = make(item)
        return containers[id(item)]

    return walk(value)


class TensorFiles:
    """The files of the tensors of one xser file.

    They lie in the file's own folder; or, if all experts share them, in the first expert's, where the same
    place in the state may have another number.
    """

    def __init__(self, source: Source, name: str, references: Any, classes: Classes) -> None:
        self._source = source
        self._name = name
        self._references = references
        self._classes = classes
        self._shared: Optional[Dict[int, str]] = None  # The file in the first expert's folder, by tid.

    def of(self, tid: int) -> str:
        """Returns a tensor's file; empty if there is none."""
        own = _names.tensor(self._name, tid)
        if own in self._source.names:
            return own
        if self._shared is None:
            self._shared = self._find_shared()
        return self._shared.get(tid, "")

    def _find_shared(self) -> Dict[int, str]:
        first = _names.of_first_expert(self._name)
        if first == self._name or first not in self._source.names:
            return {}
        theirs = {place: tid for tid, place in _places(self._source.load(first, self._classes)).items()}
        files = {
            tid: _names.tensor(first, theirs[place])
            for tid, place in _places(self._references).items()
            if place in theirs
        }
        return {tid: file for tid, file in files.items() if file in self._source.names}


def _places(state: Any) -> "Dict[int, Tuple[Any, ...]]":
    """Returns where in a state each reference occurs first, by tid."""
    places: "Dict[int, Tuple[Any, ...]]" = {}

    def walk(value: Any, place: "Tuple[Any, ...]") -> None:
        if isinstance(value, TensorReference):
            places.setdefault(value.tid, place)
        elif isinstance(value, dict):
            for key, below in value.items():
                walk(below, (*place, key))
        elif isinstance(value, (list, tuple)):
            for number, below in enumerate(value):
                walk(below, (*place, number))

    walk(state, ())
    return places


def load(source: Source, name: str, classes: Classes, device: Any = None) -> Any:
    """Returns a whole state, of any layout, with Absent for each tensor whose file is missing."""
    return resolve_from(source, name, source.load(name, classes), classes, device)


def resolve_from(source: Source, name: str, state: Any, classes: Classes, device: Any = None) -> Any:
    """Returns a state with its references resolved from a file's tensors.

    Each of them goes to `device`, if there is one, before the next one is read.
    """
    files = TensorFiles(source, name, state, classes)

    def tensor(tid: int, key: Any) -> Any:
        path = files.of(tid)
        return _device.place(source.load(path, classes), key, device) if path else Absent(_names.tensor(name, tid))

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
