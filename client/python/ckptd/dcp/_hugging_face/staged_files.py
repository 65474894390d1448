"""How ranks pass their files to the coordinator of a save: by shared memory, or inline with the results that DCP gathers.

A rank that shares the coordinator's machine, PID namespace and user stages its file in shared memory, which the
coordinator attaches through /proc and frees. A process id, or a descriptor, means something else on another machine or
in another PID namespace. So the ranks compare their place() first, and the memory ends with a random token, which the
coordinator compares before it reads or frees anything. The other ranks send their files inline, through the process group.
"""

import functools
import mmap
import os
import secrets
import uuid
from typing import Any, NamedTuple, Union

import torch

from ckptd import errors
from ckptd._memory import native
from ckptd._memory.image import Image, Memory

_NAME = "ckptd-consolidation"
_TOKEN_BYTES = 32


@functools.lru_cache(maxsize=None)
def _place_of_process(process: int) -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    except OSError:
        return str(uuid.uuid4())  # Equal to no other: everything is sent.


def place() -> str:
    """Returns where this process is: the boot of its machine, its PID namespace and its user."""
    return _place_of_process(os.getpid())


class StagedFileRef(NamedTuple):
    """The place of a staged file; a message to the coordinator."""

    rank: int
    process: int
    descriptor: int
    size: int  # Without the token.
    token: bytes


class InlineFile:
    """A file that a rank sends with its results."""

    def __init__(self, image: Image, threads: int) -> None:
        self._data = bytearray(image.size)
        _write(image, self._data, threads)

    @property
    def bytes(self) -> torch.Tensor:
        """The bytes."""
        return torch.frombuffer(self._data, dtype=torch.uint8)


class AttachedFile:
    """The coordinator's mapping of a file that another rank has staged.

    Raises:
        Refused: this process may not open the memory of the other one, or it is not the memory that was staged.
    """

    def __init__(self, ref: StagedFileRef) -> None:
        path = f"/proc/{ref.process}/fd/{ref.descriptor}"
        try:
            if _NAME not in os.readlink(path):  # Opening something else could wait, or have an effect.
                raise _refused(ref, path, "it is something else")
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(ref, path, str(error.strerror)) from error
        if os.pread(self._descriptor, _TOKEN_BYTES + 1, ref.size) != ref.token:
            os.close(self._descriptor)
            raise _refused(ref, path, "it is the memory of another save or process")
        self.bytes = torch.frombuffer(mmap.mmap(self._descriptor, ref.size), dtype=torch.uint8)

    def free(self) -> None:
        """Frees the memory, also for its owner. Nothing may read `bytes` from then on."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


class StagedFile:
    """A file in shared memory of this rank, until the coordinator frees it, or this object is collected."""

    def __init__(self, rank: int, image: Image, threads: int) -> None:
        token = secrets.token_bytes(_TOKEN_BYTES)
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        self.ref = StagedFileRef(rank, os.getpid(), self._descriptor, image.size, token)
        os.ftruncate(self._descriptor, image.size)
        with mmap.mmap(self._descriptor, image.size) as mapped:
            _write(image, mapped, threads)
        os.pwrite(self._descriptor, token, image.size)

    def __del__(self) -> None:
        descriptor: Any = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)


FileRef = Union[StagedFileRef, InlineFile]


def _write(image: Image, into: Any, threads: int) -> None:
    address, keep = native.address_of(into)
    image.write(Memory([(address, image.size)], keep), 0, threads)
    image.finish()
    del keep


def _refused(ref: StagedFileRef, path: str, why: str) -> errors.CkptdError:
    return errors.invalid(
        f"the tensors of rank {ref.rank} cannot be read from {path} ({why}): consolidation needs ranks that see each other in "
        "/proc, or are in different PID namespaces; save without enable_consolidation"
    )
