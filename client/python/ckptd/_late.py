"""Tensors on devices that have no copy into a given buffer, such as XLA's: each comes to the host as a tensor of its own.

They are laid out by stand-ins whose memory is never touched, and are brought over when their bytes are written, a batch at
a time: so a second copy of the state never exists on the host.
"""

import sys
from array import array
from typing import Any, Dict, List, Sequence, Set, Tuple

import torch

from ckptd import _accel
from ckptd._accel import Pieces
from ckptd._image import Memory

BATCH_BYTES = 100 << 20
_THREADS = 4  # Of one copy: the batch has just come over the bus, and is in no cache.


def is_late(tensor: Any) -> bool:
    """Whether a tensor's bytes can only be had by a copy of it on the host."""
    return tensor.device.type not in ("cpu", "cuda", "meta")


class Late:
    """The late tensors of one save, in the order in which they are written. Of one thread."""

    def __init__(self) -> None:
        self._tensors: List[Any] = []
        self._stand_ins: List[Any] = []  # Kept: the identity of a freed storage is given to the next one.
        self._numbers: Dict[int, int] = {}  # A stand-in's storage -> its number.
        self._expected: Set[int] = set()  # Those that will be written; others are never brought over.
        self._batch: Dict[int, Any] = {}  # Those on the host now.

    def __bool__(self) -> bool:
        return bool(self._tensors)

    def stand_in(self, tensor: Any) -> Any:
        """An empty tensor of the CPU, of the same shape and type."""
        made = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._numbers[made.untyped_storage()._cdata] = len(self._tensors)
        self._tensors.append(tensor)
        self._stand_ins.append(made)
        return made

    def has(self, storage: Any) -> bool:
        """Whether a storage is a stand-in's."""
        return storage._cdata in self._numbers

    def expect(self, records: "Sequence[Tuple[int, Any]]") -> None:
        """These will be written."""
        self._expected.update(self._numbers[record.storage._cdata] for _, record in records)

    def fill(self, records: "Sequence[Tuple[int, Any]]", memory: Memory, base: int) -> None:
        """Writes (offset in the file, Record) each into the memory of the file that begins at `base`."""
        for offset, record in records:
            host = self._host(self._numbers[record.storage._cdata])
            size = record.end - record.begin
            pieces = Pieces(array("Q", [0]), array("Q", [host.data_ptr() + record.begin]), array("Q", [size]))
            _accel.copy(memory.segments, base + offset, pieces, 0, size, _THREADS)

    def materialise(self) -> None:
        """Gives the stand-ins the bytes, at the cost of a copy of them all."""
        self._expected.update(range(len(self._stand_ins)))
        for number, made in enumerate(self._stand_ins):
            made.copy_(self._host(number))

    def release(self) -> None:
        """What is on the host goes. It would come again."""
        self._batch = {}

    def _host(self, number: int) -> Any:
        if number not in self._batch:
            self._batch = {}  # First: never two batches.
            self._batch = self._fetch_from(number)
        return self._batch[number]

    def _fetch_from(self, first: int) -> Dict[int, Any]:
        numbers, size = [first], _bytes_of(self._tensors[first])
        for number in range(first + 1, len(self._tensors)):
            size += _bytes_of(self._tensors[number]) if number in self._expected else 0
            if size > BATCH_BYTES:
                break
            if number in self._expected:
                numbers.append(number)
        fetched = {}
        for number, host in zip(numbers, _to_host([self._tensors[number] for number in numbers])):
            promised = self._stand_ins[number]
            if host.shape != promised.shape or host.dtype != promised.dtype:
                raise RuntimeError(
                    f"a tensor on {self._tensors[number].device} is {promised.dtype}{list(promised.shape)}, and came to the host "
                    f"as {host.dtype}{list(host.shape)}"
                )
            fetched[number] = host.contiguous()
        return fetched


def _bytes_of(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def _to_host(tensors: "List[Any]") -> "List[Any]":
    """One transfer for all of them, where the device has such a thing."""
    at_once = getattr(getattr(sys.modules.get("torch_xla"), "_XLAC", None), "_xla_get_cpu_tensors", None)
    if at_once is not None and all(tensor.device.type == "xla" for tensor in tensors):
        return list(at_once(tensors))
    return [tensor.detach().cpu() for tensor in tensors]
