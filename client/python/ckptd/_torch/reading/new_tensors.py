"""States in new memory: each tensor's bytes are read straight to their place, in the CPU's memory on huge pages where
there are any.
"""

from array import array
from typing import Any, List, Optional, Tuple

from ckptd._memory import native
from ckptd._reading.verified_file import VerifiedFile
from ckptd._torch.reading.archive_records import Records, sizes_of
from ckptd._torch.reading.rebuilt_state import rebuild


def read_new_tensors(saved: Any, file: VerifiedFile, records: Records, device: Any = None) -> Optional[Any]:
    """Makes new tensors for a state, and reads them from its file.

    All of the CPU's memory is allocated before any of it is touched. So the kernel can use huge pages, and the threads that
    read fault the memory in: one thread that faults in small pages takes ten times as long as the copy.

    Args:
        saved: the file, unpickled to the meta device. Its containers are changed in place.
        records: where the file's storages lie.
        device: where the tensors are made, a torch.device of devices(); None: in the CPU's memory.

    Returns:
        As rebuild().
    """
    import torch

    if device is not None:
        return _read_to_device(saved, file, records, device)
    pieces: List[Tuple[int, int, int]] = []

    def storage_at(begin: int, size: int) -> Any:
        storage = torch.UntypedStorage(size)
        pieces.append((begin, storage.data_ptr(), size))
        return storage

    state = rebuild(saved, file.size, sizes_of(records), storage_at)
    pieces.sort()
    if state is None or _overlap(pieces):
        return None
    by_address = sorted((address, size) for _, address, size in pieces)
    native.advise_huge_pages(*(array("Q", [row[i] for row in by_address]) for i in (0, 1)))
    file.scatter(pieces, fresh=True)
    return state


def _read_to_device(saved: Any, file: VerifiedFile, records: Records, device: Any) -> Optional[Any]:
    import torch

    from ckptd._torch.gpu import device_fill

    pieces: List[Tuple[int, int, int]] = []

    def storage_at(begin: int, size: int) -> Any:
        storage = torch.UntypedStorage(size, device=device)
        pieces.append((begin, storage.data_ptr(), size))
        return storage

    state = rebuild(saved, file.size, sizes_of(records), storage_at, device)
    pieces.sort()
    if state is None or _overlap(pieces):
        return None
    device_fill.fill(file, [device_fill.DevicePiece(*piece, device) for piece in pieces])
    return state


def _overlap(pieces: "List[Tuple[int, int, int]]") -> bool:
    return any(begin + size > after for (begin, _, size), (after, _, _) in zip(pieces, pieces[1:]))
