"""Memory in which a rank leaves a file for the coordinator of a save, which frees it."""

import mmap
import os
from typing import Any, NamedTuple

import torch

from ckptd import errors
from ckptd._memory import native
from ckptd._memory.image import Image, Memory


class Left(NamedTuple):
    """Where a file was left."""

    rank: int
    process: int
    descriptor: int
    size: int


class TakenFile:
    """The mapping of a file that another rank has left.

    Raises:
        Refused: this process may not open the memory of the other one.
    """

    def __init__(self, left: Left) -> None:
        path = f"/proc/{left.process}/fd/{left.descriptor}"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise errors.invalid(
                f"the tensors of rank {left.rank} cannot be read from {path} ({error.strerror}): consolidation needs ranks that "
                "see each other in /proc, of one user and one container; save without enable_consolidation"
            ) from error
        self.bytes = torch.frombuffer(mmap.mmap(self._descriptor, left.size), dtype=torch.uint8)

    def free(self) -> None:
        """Frees the memory, also for its owner. Nothing may read `bytes` from then on."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


class LeftFile:
    """The memory of a file that this rank leaves. It is there until it is taken and freed, or this object is gone."""

    def __init__(self, rank: int, image: Image, threads: int) -> None:
        self._descriptor = os.memfd_create("ckptd-consolidation", os.MFD_CLOEXEC)
        self.left = Left(rank, os.getpid(), self._descriptor, image.size)
        os.ftruncate(self._descriptor, image.size)
        with mmap.mmap(self._descriptor, image.size) as mapped:
            address, keep = native.address_of(mapped)
            image.write(Memory([(address, image.size)], keep), 0, threads)
            del keep

    def __del__(self) -> None:
        descriptor: Any = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)
