"""States whose tensors lie in a buffer that holds the file already, without a copy of their bytes."""

from typing import Any, Optional

from ckptd._torch.reading.archive_records import Records, sizes_of
from ckptd._torch.reading.rebuilt_state import rebuild


def map_tensors(saved: Any, image: Any, records: Records) -> Optional[Any]:
    """Replaces the tensors of a state by tensors over a buffer.

    Args:
        saved: the file, unpickled to the meta device. Its containers are changed in place.
        image: the buffer with the bytes of the file.
        records: where the file's storages lie.

    Returns:
        As rebuild().
    """
    import torch

    def storage_at(begin: int, size: int) -> Any:
        return torch.frombuffer(image, dtype=torch.uint8, count=size, offset=begin).untyped_storage()

    return rebuild(saved, len(image), sizes_of(records), storage_at)
