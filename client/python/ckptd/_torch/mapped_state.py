"""States whose tensors lie in a buffer that holds the file already, without a copy of their bytes."""

from typing import Any, Dict, List, Optional

from ckptd import errors
from ckptd._torch.load_into import offset_of, unusual


class _UnsupportedError(Exception):
    """The state holds something that cannot be mapped."""


def map_tensors(saved: Any, image: Any) -> Optional[Any]:
    """Replaces the tensors of a state by tensors over a buffer.

    Tensors that shared a storage still share it.

    Args:
        saved: the file, unpickled to the meta device. Its containers are changed in place.
        image: the buffer with the bytes of the file.

    Returns:
        The state, or None if it holds something that cannot be mapped, or this version of torch does not tell
        where in the file the bytes are. Then `saved` may be half changed and must not be used.
    """
    try:
        return _Mapper(image).map(saved)
    except _UnsupportedError:
        return None


class _Mapper:
    def __init__(self, image: Any) -> None:
        self._image = image
        self._storages: Dict[int, Any] = {}  # By their offset in the file.
        self._done: Dict[int, Any] = {}  # By id(), so that an object that occurs twice stays one.
        self._originals: List[Any] = []  # Kept, so that no id is reused.

    def map(self, saved: Any) -> Any:
        import torch

        if saved is None or isinstance(saved, (bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)):
            return saved
        if id(saved) in self._done:
            return self._done[id(saved)]
        if isinstance(saved, torch.Tensor):
            made = self._tensor(saved)
        elif isinstance(saved, dict):
            for key, value in saved.items():
                saved[key] = self.map(value)
            made = saved
        elif type(saved) is list:
            saved[:] = [self.map(value) for value in saved]
            made = saved
        elif type(saved) is tuple:
            made = tuple(self.map(value) for value in saved)
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
            if begin + size > len(self._image):
                raise errors.Corrupt(
                    f"its tensors reach {begin + size - len(self._image)} bytes beyond its end",
                    reason="SHORT_FILE",
                )
            bytes_ = torch.frombuffer(self._image, dtype=torch.uint8, count=size, offset=begin)
            self._storages[begin] = bytes_.untyped_storage()
        return self._storages[begin]
