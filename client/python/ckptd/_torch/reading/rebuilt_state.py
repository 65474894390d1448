"""A state as it was saved, with its tensors in memory that the caller provides."""

import collections
from typing import Any, Callable, Dict, List, Mapping, Optional

from ckptd import errors
from ckptd._torch.reading.load_into import holds_no_tensor, reach_of, unusual

_SCALARS = frozenset((type(None), bool, int, float, str))  # The usual ones, which are looked up fast.
_DICTS = (dict, collections.OrderedDict, collections.Counter)


class _UnsupportedError(Exception):
    """The state holds something that cannot be rebuilt."""


def rebuild(
    saved: Any,
    file_size: int,
    sizes: Mapping[int, int],
    storage_at: "Callable[[int, int], Any]",
    device: Any = "cpu",
) -> Optional[Any]:
    """Replaces the tensors of a state by tensors over other storages.

    Tensors that shared a storage still share it. Every object of the state is visited, and one of a class that is not
    known here ends it: it could hold a tensor that would stay without bytes.

    Args:
        saved: the file, unpickled to the meta device. Its containers are changed in place.
        file_size: in bytes.
        sizes: of the file's storages in bytes, by their offset in the file.
        storage_at: returns the storage for the bytes at (offset in the file, size), which is called once for
            each offset.
        device: of those storages.

    Returns:
        The state, or None if it holds something that cannot be rebuilt, or a tensor whose storage
        is not one of the file's. Then `saved` may be half changed and must not be used: load the file with torch.load.

    Raises:
        Corrupt: the file is too short for its tensors.
    """
    try:
        return _Rebuilder(file_size, sizes, storage_at, device).rebuild(saved)
    except (_UnsupportedError, RecursionError):
        return None


class _Rebuilder:
    def __init__(
        self, file_size: int, sizes: Mapping[int, int], storage_at: "Callable[[int, int], Any]", device: Any
    ) -> None:
        self._file_size = file_size
        self._sizes = sizes
        self._storage_at = storage_at
        self._device = device
        self._storages: Dict[int, Any] = {}  # By their offset in the file.
        # By id(), so that an object that occurs twice stays one. None: a tuple that is being rebuilt.
        self._done: Dict[int, Any] = {}
        self._originals: List[Any] = []  # Kept, so that no id is reused.

    def rebuild(self, saved: Any) -> Any:
        import torch

        kind = type(saved)
        if kind in _SCALARS or (kind is not tuple and holds_no_tensor(saved)):
            return saved
        if id(saved) in self._done:
            made = self._done[id(saved)]
            if made is None:
                raise _UnsupportedError  # A tuple inside of itself.
            return made
        self._originals.append(saved)
        # Before what they hold: a list or a dict may be inside of itself.
        self._done[id(saved)] = saved if kind is list or kind in _DICTS else None
        if isinstance(saved, torch.Tensor):
            made = self._tensor(saved)
        elif kind is list:
            saved[:] = [self.rebuild(value) for value in saved]
            made = saved
        elif kind is tuple:
            made = tuple([self.rebuild(value) for value in saved])
        elif kind in _DICTS:
            for key, value in saved.items():
                if not holds_no_tensor(key):
                    raise _UnsupportedError
                saved[key] = self.rebuild(value)
            if kind is not dict:  # It may have attributes, such as the _metadata of a model.
                self.rebuild(saved.__dict__)
            made = saved
        else:
            raise _UnsupportedError
        self._done[id(saved)] = made
        return made

    def _tensor(self, saved: Any) -> Any:
        import torch

        # Attributes, and hooks that a file may hold, would be lost.
        if unusual(saved) or saved.__dict__ or saved._backward_hooks:
            raise _UnsupportedError
        storage = self._storage(saved.untyped_storage())
        if reach_of(saved) > storage.nbytes():  # set_() would give the storage other memory.
            raise _UnsupportedError
        with torch.no_grad():
            made = torch.empty(0, dtype=saved.dtype, device=self._device)
            made.set_(storage, saved.storage_offset(), saved.shape, saved.stride())
        if isinstance(saved, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=saved.requires_grad)
        return made.requires_grad_(saved.requires_grad)

    def _storage(self, saved: Any) -> Any:
        import torch

        begin, size = getattr(saved, "_checkpoint_offset", None), int(saved.nbytes())
        if begin is None:  # It was saved without bytes.
            raise _UnsupportedError
        if size == 0:
            return torch.UntypedStorage(0, device=self._device)
        if self._sizes.get(begin) != size:
            raise _UnsupportedError
        if begin not in self._storages:
            if begin + size > self._file_size:
                raise errors.Corrupt(
                    f"its tensors reach {begin + size - self._file_size} bytes beyond its end",
                    reason="SHORT_FILE",
                )
            self._storages[begin] = self._storage_at(begin, size)
        return self._storages[begin]
