"""Objects whose tensors lie in memory that is there already, without a copy of their bytes."""

from typing import Any, Dict, List, Optional

from ckptd import errors
from ckptd._into import offset_of, unusual


class _Otherwise(Exception):
    """There is something that this does not know."""


def over(saved: Any, image: Any) -> Optional[Any]:
    """`saved`, unpickled to the meta device, with tensors whose bytes are those of the file in the buffer `image`.

    Its containers are the same ones. Tensors that shared a storage share it still. None when it holds what
    this does not know, or this torch does not tell where in the file the bytes are; then `saved` is of no use any more.
    """
    try:
        return _Over(image).of(saved)
    except _Otherwise:
        return None


class _Over:
    def __init__(self, image: Any) -> None:
        self._image = image
        self._storages: Dict[int, Any] = {}  # By where they begin.
        self._done: Dict[int, Any] = {}  # By id(): what is there twice stays one object.
        self._originals: List[Any] = []  # So that no id comes twice.

    def of(self, saved: Any) -> Any:
        import torch

        if saved is None or isinstance(saved, (bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)):
            return saved
        if id(saved) in self._done:
            return self._done[id(saved)]
        if isinstance(saved, torch.Tensor):
            made = self._tensor(saved)
        elif isinstance(saved, dict):
            for key, value in saved.items():
                saved[key] = self.of(value)
            made = saved
        elif type(saved) is list:
            saved[:] = [self.of(value) for value in saved]
            made = saved
        elif type(saved) is tuple:
            made = tuple(self.of(value) for value in saved)
        elif type(saved) in (set, frozenset):
            for value in saved:
                if isinstance(value, torch.Tensor):
                    raise _Otherwise
            made = saved
        else:
            raise _Otherwise
        self._originals.append(saved)
        self._done[id(saved)] = made
        return made

    def _tensor(self, saved: Any) -> Any:
        import torch

        if unusual(saved) or offset_of(saved) is None:
            raise _Otherwise
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
                    f"it says of {begin + size - len(self._image)} bytes that they are behind its end",
                    reason="SHORT_FILE",
                )
            bytes_ = torch.frombuffer(self._image, dtype=torch.uint8, count=size, offset=begin)
            self._storages[begin] = bytes_.untyped_storage()
        return self._storages[begin]
