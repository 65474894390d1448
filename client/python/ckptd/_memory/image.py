"""File images: where the bytes of a file come from, without a copy before the one into shared memory."""

import os
from array import array
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from ckptd._memory import native
from ckptd._memory.copies import Copies
from ckptd._memory.native import Pieces

_WINDOW_BYTES = 16 << 20  # Read or streamed at once.


class Memory:
    """The memory that images are written to: the segments of a part, one after another, or a single buffer."""

    def __init__(self, spans: "List[Tuple[int, int]]", owners: Any) -> None:
        """
        Args:
            spans: (address, size in bytes) of each segment, in order.
            owners: what keeps the memory mapped.
        """
        self.owners = owners
        self.size = sum(size for _, size in spans)
        ends, end = array("Q"), 0
        for _, size in spans:
            end += size
            ends.append(end)
        self.segments = (array("Q", [address for address, _ in spans]), ends)

    def put(self, base: int, data: Any) -> None:
        """Copies a buffer to the offset `base`. RuntimeError if it does not fit."""
        address, keep = native.address_of(data)
        size = memoryview(data).nbytes
        native.copy(
            self.segments,
            base,
            Pieces(array("Q", [0]), array("Q", [address]), array("Q", [size])),
            0,
            size,
            1,
        )
        del keep

    def pieces(self, base: int, size: int) -> Pieces:
        """Returns the bytes at [base, base + size) as the source of another copy."""
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
    """The content of one file. Its bytes are copied by write() or stream(), and must not change before that ends."""

    size = 0  # In bytes.

    def write(self, memory: Memory, base: int, threads: int, overlaps: bool = False) -> None:
        """Copies the content to the offset `base`, with several threads where that helps.

        What lies on devices is copied when all copies() are finished. overlaps: the training goes on before that.
        """
        raise NotImplementedError

    def copies(self) -> List[Copies]:
        """Returns the copies from devices that the last write() has begun."""
        return []

    def finish(self) -> None:
        """Blocks until everything that write() has begun to copy is there."""
        for copies in self.copies():
            copies.finish()

    def stream(self) -> Iterator[bytes]:
        """Yields the content in order, for a client without shared memory."""
        buffer = bytearray(self.size)
        address, keep = native.address_of(buffer)
        self.write(Memory([(address, self.size)] if self.size else [], keep), 0, 1)
        self.finish()
        for at in range(0, self.size, _WINDOW_BYTES):
            yield bytes(memoryview(buffer)[at : at + _WINDOW_BYTES])


class PiecesImage(Image):
    """An image made of pieces of memory, and, on other devices, of bytes that only a function can fetch."""

    def __init__(
        self,
        size: int,
        pieces: Pieces,
        owners: Any,
        fill: "Optional[Callable[[Memory, int, bool], Optional[Copies]]]" = None,
        formats: "Optional[array[int]]" = None,
    ) -> None:
        """
        Args:
            pieces: all of the content that is in the CPU's memory.
            owners: what keeps the pieces' memory.
            fill: as write(), for the rest; returns the copies that go on.
            formats: array('B') of the number format of each piece (native.FLOAT_FORMATS): write() counts the
                numbers that are not finite.
        """
        self.size = size
        self._pieces = pieces
        self._owners = owners
        self._fill = fill
        self._copies: Optional[Copies] = None
        self._formats = formats
        # How many numbers are not finite, after write(). None if not all of them were counted.
        self.non_finite: Optional[int] = None

    def write(self, memory: Memory, base: int, threads: int, overlaps: bool = False) -> None:
        if self._fill is not None:
            self._copies = self._fill(memory, base, overlaps)  # First: devices copy while the CPU does.
        if self._formats is None:
            native.copy(memory.segments, base, self._pieces, 0, self.size, threads)
        else:
            counting = native.Counting(self._formats, array("Q", bytes(8 * len(self._formats))))
            native.copy(memory.segments, base, self._pieces, 0, self.size, threads, counting)
            self.non_finite = sum(counting.non_finite) if self._fill is None else None

    def copies(self) -> List[Copies]:
        return [] if self._copies is None else [self._copies]

    def stream(self) -> Iterator[bytes]:
        if self._fill is not None:
            yield from super().stream()
            return
        buffer = bytearray(min(self.size, _WINDOW_BYTES))
        address, keep = native.address_of(buffer)
        for at in range(0, self.size, _WINDOW_BYTES):
            stop = min(self.size, at + _WINDOW_BYTES)
            window = Memory([(address, len(buffer))], keep)
            native.copy(window.segments, -at, self._pieces, at, stop, 1)
            yield bytes(memoryview(buffer)[: stop - at])  # A copy: the next window is written over it.


class JoinedImage(Image):
    """An image made of other images, each at its offset. Together they cover it."""

    def __init__(self, size: int, parts: "Sequence[Tuple[int, Image]]") -> None:
        """
        Args:
            size: of the whole, in bytes.
            parts: (offset, image) of each; they do not overlap and end within `size`.
        """
        self.size = size
        self._parts = parts

    def write(self, memory: Memory, base: int, threads: int, overlaps: bool = False) -> None:
        for offset, part in self._parts:
            part.write(memory, base + offset, threads, overlaps)

    def copies(self) -> List[Copies]:
        return [copies for _, part in self._parts for copies in part.copies()]


class WrittenImage(Image):
    """An image whose bytes come in order from produce(write), called once for each copy.

    RuntimeError if they are not `size` bytes each time.
    """

    def __init__(self, size: int, produce: "Callable[[Callable[[Any], None]], None]") -> None:
        self.size = size
        self._produce = produce

    def write(self, memory: Memory, base: int, threads: int, overlaps: bool = False) -> None:
        done = 0

        def put(data: Any) -> None:
            nonlocal done
            n = memoryview(data).nbytes
            if done + n > self.size:
                raise RuntimeError(
                    f"the content grew beyond {self.size} bytes while it was being saved; do not change it meanwhile"
                )
            memory.put(base + done, data)
            done += n

        self._produce(put)
        if done != self.size:
            raise RuntimeError(f"the content shrank from {self.size} to {done} bytes while it was being saved; do not change it meanwhile")


def of_buffer(data: Any) -> Image:
    """Returns the image of a bytes-like object."""
    view = memoryview(data)
    flat = view if view.c_contiguous else memoryview(view.tobytes())
    if flat.nbytes == 0:
        return PiecesImage(0, Pieces(array("Q"), array("Q"), array("Q")), None)
    address, keep = native.address_of(data if isinstance(data, bytes) else flat)
    return PiecesImage(
        flat.nbytes, Pieces(array("Q", [0]), array("Q", [address]), array("Q", [flat.nbytes])), keep
    )


def of_file(path: str) -> Image:
    """Returns the image of a file on disk, which is read when the image is written. OSError if there is none."""

    def produce(write: "Callable[[Any], None]") -> None:
        buffer = bytearray(_WINDOW_BYTES)
        with open(path, "rb", buffering=0) as file:
            while True:
                n = file.readinto(buffer)
                if not n:
                    return
                write(memoryview(buffer)[:n])

    return WrittenImage(os.stat(path).st_size, produce)
