"""Deferred tensors: those on devices that cannot copy into a given buffer, such as XLA's, and are fetched at
the end.

Placeholders on the CPU, whose memory is never touched, stand for them while the file is laid out. They are
fetched when their bytes are written, a batch at a time, so that the host never holds a second copy of the
whole state.
"""

import sys
from array import array
from typing import Any, Dict, List, Sequence, Set, Tuple

import torch

from ckptd._memory import native
from ckptd._memory.image import Memory
from ckptd._memory.native import Pieces

BATCH_BYTES = 100 << 20
_COPY_THREADS = 4  # A batch has just come over the bus and is in no cache, so several threads help.


def must_defer(tensor: Any) -> bool:
    """Returns whether a tensor's bytes can only be had by a copy of the whole tensor on the host."""
    return tensor.device.type not in ("cpu", "cuda", "meta")


class DeferredTensors:
    """The deferred tensors of one save, in the order in which they are written. Used by one thread."""

    def __init__(self) -> None:
        self._tensors: List[Any] = []
        self._placeholders: List[Any] = []  # Kept, because a new storage may get the identity of a freed one.
        self._numbers: Dict[int, int] = {}  # Identity of a placeholder's storage -> its index.
        self._expected: Set[int] = set()  # Those that will be written; the others are never fetched.
        self._batch: Dict[int, Any] = {}  # Index -> tensor on the host.

    def __bool__(self) -> bool:
        return bool(self._tensors)

    def placeholder_for(self, tensor: Any) -> Any:
        """Defers a tensor. Returns an empty CPU tensor of its shape and dtype."""
        made = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._numbers[made.untyped_storage()._cdata] = len(self._tensors)
        self._tensors.append(tensor)
        self._placeholders.append(made)
        return made

    def sync(self) -> None:
        """Has XLA compute all tensors in one step, those that this rank will not write included.

        Otherwise each batch would be a computation of its own, which is compiled; and a computation in which
        other ranks take part, but whose values one rank alone needs, would wait for them.
        """
        multi = getattr(_xla(), "_xla_sync_multi", None)
        on_xla = [tensor for tensor in self._tensors if tensor.device.type == "xla"]
        if multi is not None and on_xla:
            multi(on_xla, devices=[], wait=True, sync_xla_data=True)

    def has(self, storage: Any) -> bool:
        """Returns whether a storage is a placeholder's."""
        return storage._cdata in self._numbers

    def expect(self, records: "Sequence[Tuple[int, Any]]") -> None:
        """Announces which (offset, Record) will be written, so that batches hold them and no others."""
        self._expected.update(self._numbers[record.storage._cdata] for _, record in records)

    def fill(self, records: "Sequence[Tuple[int, Any]]", memory: Memory, base: int) -> None:
        """Writes records, (offset in the file, Record) each, to the memory of a file that begins at `base`."""
        for offset, record in records:
            host = self._on_host(self._numbers[record.storage._cdata])
            size = record.end - record.begin
            pieces = Pieces(array("Q", [0]), array("Q", [host.data_ptr() + record.begin]), array("Q", [size]))
            native.copy(memory.segments, base + offset, pieces, 0, size, _COPY_THREADS)

    def materialise(self) -> None:
        """Copies all values into the placeholders, for torch.save. Needs host memory for all of them."""
        self._expected.update(range(len(self._placeholders)))
        for number, made in enumerate(self._placeholders):
            made.copy_(self._on_host(number))

    def release(self) -> None:
        """Drops the batch that is on the host. It would be fetched again if needed."""
        self._batch = {}

    def _on_host(self, number: int) -> Any:
        if number not in self._batch:
            self._batch = {}  # Before the fetch, so that there are never two batches.
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
            promised = self._placeholders[number]
            if host.shape != promised.shape or host.dtype != promised.dtype:
                raise RuntimeError(
                    f"a tensor on {self._tensors[number].device} is {promised.dtype}{list(promised.shape)}, but its copy on the "
                    f"host is {host.dtype}{list(host.shape)}"
                )
            fetched[number] = host.contiguous()
        return fetched


def _bytes_of(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def _to_host(tensors: "List[Any]") -> "List[Any]":
    """Fetches tensors to the host, in one transfer where the device can do that."""
    at_once = getattr(_xla(), "_xla_get_cpu_tensors", None)
    if at_once is not None and all(tensor.device.type == "xla" for tensor in tensors):
        return list(at_once(tensors))
    return [tensor.detach().cpu() for tensor in tensors]


def _xla() -> Any:
    """Returns torch_xla's extension module, or None if this process does not use torch_xla."""
    return getattr(sys.modules.get("torch_xla"), "_XLAC", None)
