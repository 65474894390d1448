"""A state as it was saved, with its tensors in memory that the caller provides."""

from typing import Any, Callable, Dict, List, Optional

from ckptd import errors
from ckptd._torch.load_into import offset_of, unusual


class _UnsupportedError(Exception):
    """The state holds something that cannot be rebuilt."""


def rebuild(saved: Any, file_size: int, storage_at: "Callable[[int, int], Any]") -> Optional[Any]:
    """Replaces the tensors of a state by tensors over other storages.

    Tensors that shared a storage still share it.

    Args:
        saved: the file, unpickled to the meta device. Its containers are changed in place.
        file_size: in bytes.
        storage_at: returns the storage for the bytes at (offset in the file, size), which is called once for
            each offset.

    Returns:
        The state, or None if it holds something that cannot be rebuilt, or this version of torch does not tell
        where in the file the bytes are. Then `saved` may be half changed and must not be used.

    Raises:
        Corrupt: the file is too short for its tensors.
    """
    try:
        return _Rebuilder(file_size, storage_at).rebuild(saved)
    except _UnsupportedError:
        return None


class _Rebuilder:
    def __init__(self, file_size: int, storage_at: "Callable[[int, int], Any]") -> None:
        self._file_size = file_size
        self._storage_at = storage_at
        self._storages: Dict[int, Any] = {}  # By their offset in the file.
        self._done: Dict[int, Any] = {}  # By id(), so that an object that occurs twice stays one.
        self._originals: List[Any] = []  # Kept, so that no id is reused.

    def rebuild(self, saved: Any) -> Any:
        import torch

        if saved is None or isinstance(saved, (bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)):
            return saved
        if id(saved) in self._done:
            return self._done[id(saved)]
        if isinstance(saved, torch.Tensor):
            made = self._tensor(saved)
        elif isinstance(saved, dict):
            for key, value in saved.items():
                saved[key] = self.rebuild(value)
            made = saved
        elif type(saved) is list:
            saved[:] = [self.rebuild(value) for value in saved]
            made = saved
        elif type(saved) is tuple:
            made = tuple(self.rebuild(value) for value in saved)
        elif type(saved) in (set, frozenset):
            for value in saved:
                if isinstance(value, torch.Tensor):
                    raise _UnsupportedError
            made = saved
        else:
            raise _UnsupportedError
        self._originals.append(saved)
        self._done[id(saved)] = made
        return made

    def _tensor(self, saved: Any) -> Any:
        import torch

        if unusual(saved) or offset_of(saved) is None:
            raise _UnsupportedError
        storage = self._storage(saved.untyped_storage())
        with torch.no_grad():
            made = torch.empty(0, dtype=saved.dtype)
            made.set_(storage, saved.storage_offset(), saved.shape, saved.stride())
        if isinstance(saved, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=saved.requires_grad)
        return made.requires_grad_(saved.requires_grad)

    def _storage(self, saved: Any) -> Any:
        import torch

        begin, size = int(saved._checkpoint_offset), int(saved.nbytes())
        if size == 0:
            return torch.UntypedStorage(0)
        if begin not in self._storages:
            if begin + size > self._file_size:
                raise errors.Corrupt(
                    f"its tensors reach {begin + size - self._file_size} bytes beyond its end",
                    reason="SHORT_FILE",
                )
            self._storages[begin] = self._storage_at(begin, size)
        return self._storages[begin]
