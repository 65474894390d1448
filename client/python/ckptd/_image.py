"""File images: what becomes the bytes of a file, without being copied before it must."""

import os
from array import array
from typing import Any, Callable, Iterator, List, Optional, Tuple

from ckptd import _accel
from ckptd._accel import Pieces

_WINDOW = 16 << 20


class Memory:
    """Memory that follows one another: a part's segments, or one buffer. Where images are written to."""

    def __init__(self, spans: "List[Tuple[int, int]]", owners: Any) -> None:
        """spans: (address, size) of each, in order; owners: what keeps them there."""
        self.owners = owners
        self.size = sum(size for _, size in spans)
        ends, end = array("Q"), 0
        for _, size in spans:
            end += size
            ends.append(end)
        self.segments = (array("Q", [address for address, _ in spans]), ends)

    def put(self, base: int, data: Any) -> None:
        """Copies a buffer to the offset `base`."""
        address, keep = _accel.address_of(data)
        size = memoryview(data).nbytes
        _accel.copy(
            self.segments,
            base,
            Pieces(array("Q", [0]), array("Q", [address]), array("Q", [size])),
            0,
            size,
            1,
        )
        del keep

    def pieces(self, base: int, size: int) -> Pieces:
        """What lies at [base, base + size), as a source for another copy."""
        offsets, sources, lengths = array("Q"), array("Q"), array("Q")
        begin = 0
        for address, end in zip(*self.segments):
            first, last = max(base, begin), min(base + size, end)
            if first < last:
                offsets.append(first - base)
                sources.append(address + first - begin)
                lengths.append(last - first)
            begin = end
        return Pieces(offsets, sources, lengths)


class Image:
    """The content of one file. The bytes are taken when it is written; until then their owners must not
    change them.
    """

    size = 0

    def write(self, memory: Memory, base: int, threads: int) -> None:
        """Copies it to the offset `base`."""
        raise NotImplementedError

    def stream(self) -> Iterator[bytes]:
        """The bytes in order, for clients that have no shared memory with the daemon."""
        buffer = bytearray(self.size)
        address, keep = _accel.address_of(buffer)
        self.write(Memory([(address, self.size)] if self.size else [], keep), 0, 1)
        for at in range(0, self.size, _WINDOW):
            yield bytes(memoryview(buffer)[at : at + _WINDOW])


class PiecesImage(Image):
    """Made of pieces of memory that cover it, and perhaps of some that only `fill` can reach: on another
    device.
    """

    def __init__(
        self,
        size: int,
        pieces: Pieces,
        owners: Any,
        fill: "Optional[Callable[[Memory, int], None]]" = None,
    ) -> None:
        self.size = size
        self._pieces = pieces
        self._owners = owners
        self._fill = fill

    def write(self, memory: Memory, base: int, threads: int) -> None:
        _accel.copy(memory.segments, base, self._pieces, 0, self.size, threads)
        if self._fill is not None:
            self._fill(memory, base)

    def stream(self) -> Iterator[bytes]:
        if self._fill is not None:
            yield from super().stream()
            return
        buffer = bytearray(min(self.size, _WINDOW))
        address, keep = _accel.address_of(buffer)
        for at in range(0, self.size, _WINDOW):
            stop = min(self.size, at + _WINDOW)
            window = Memory([(address, len(buffer))], keep)
            _accel.copy(window.segments, -at, self._pieces, at, stop, 1)
            yield bytes(memoryview(buffer)[: stop - at])


class WrittenImage(Image):
    """Comes in order from `produce(write)`, which is called once for each write; it must give `size` bytes
    each time.
    """

    def __init__(self, size: int, produce: "Callable[[Callable[[Any], None]], None]") -> None:
        self.size = size
        self._produce = produce

    def write(self, memory: Memory, base: int, threads: int) -> None:
        done = 0

        def put(data: Any) -> None:
            nonlocal done
            n = memoryview(data).nbytes
            if done + n > self.size:
                raise RuntimeError(
                    f"more than the {self.size} bytes came that were announced: it changes while it is saved"
                )
            memory.put(base + done, data)
            done += n

        self._produce(put)
        if done != self.size:
            raise RuntimeError(f"{done} bytes came of {self.size}: it changes while it is saved")


def of_buffer(data: Any) -> Image:
    """The image of a bytes-like object."""
    view = memoryview(data)
    flat = view if view.c_contiguous else memoryview(view.tobytes())
    if flat.nbytes == 0:
        return PiecesImage(0, Pieces(array("Q"), array("Q"), array("Q")), None)
    address, keep = _accel.address_of(data if isinstance(data, bytes) else flat)
    return PiecesImage(
        flat.nbytes, Pieces(array("Q", [0]), array("Q", [address]), array("Q", [flat.nbytes])), keep
    )


def of_file(path: str) -> Image:
    """The image of a file on disk, read when it is written."""

    def produce(write: "Callable[[Any], None]") -> None:
        buffer = bytearray(_WINDOW)
        with open(path, "rb", buffering=0) as file:
            while True:
                n = file.readinto(buffer)
                if not n:
                    return
                write(memoryview(buffer)[:n])

    return WrittenImage(os.stat(path).st_size, produce)
