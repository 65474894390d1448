"""Fills tensors on devices from a file, through buffers in pinned memory: the CPU verifies and copies into one of them
while the device copies from the other ones.
"""

from array import array
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ckptd._memory.native import Pieces
from ckptd._reading.verified_file import VerifiedFile
from ckptd._torch.gpu.devices import devices

BUFFER_BYTES = 32 << 20
_BUFFERS = 3


class DevicePiece(NamedTuple):
    """Bytes of a file that go to a device as they are."""

    offset: int  # In the file.
    address: int  # On the device.
    size: int
    device: Any


class _Buffer:
    def __init__(self, size: int) -> None:
        self.memory = devices().pinned_buffer(size)
        self.event: Any = None  # When the device has copied the last bytes out of it.

    def await_free(self) -> None:
        if self.event is not None:
            devices().await_event(self.event)


def fill(file: VerifiedFile, pieces: "Sequence[DevicePiece]") -> None:
    """Fills memory of devices. It is filled when the call returns.

    Args:
        pieces: ordered by offset; they do not overlap or reach beyond the file's end.

    Raises:
        Corrupt, and other errors of the file: some of the memory has been filled.
    """
    by_device: Dict[Any, List[DevicePiece]] = {}
    for piece in pieces:
        by_device.setdefault(piece.device, []).append(piece)
    for device, own in by_device.items():
        _fill_device(file, device, own)


def _fill_device(file: VerifiedFile, device: Any, pieces: "List[DevicePiece]") -> None:
    size = min(BUFFER_BYTES, sum(piece.size for piece in pieces))
    buffers = [_Buffer(size) for _ in range(_BUFFERS if size == BUFFER_BYTES else 1)]
    stream = devices().stream(device)
    devices().follow_current(stream)
    try:
        for number, window in enumerate(_windows(pieces, size)):
            buffer = buffers[number % len(buffers)]
            buffer.await_free()
            _fill_window(file, stream, buffer, window)
    finally:
        for buffer in buffers:
            buffer.await_free()


def _fill_window(file: VerifiedFile, stream: Any, buffer: _Buffer, window: "List[DevicePiece]") -> None:
    address = buffer.memory.data_ptr()
    columns = Pieces(array("Q"), array("Q"), array("Q"))
    targets: List[Tuple[int, int, int]] = []
    at = 0
    for piece in window:
        targets.append((piece.offset, address + at, piece.size))
        for column, value in zip(columns, (at, piece.address, piece.size)):
            column.append(value)
        at += piece.size
    file.scatter(targets)
    try:
        devices().copy(stream, (array("Q", [address]), array("Q", [at])), 0, columns, 0, at, out=True)
    finally:  # Also if only some of the copies were queued: they read the buffer.
        buffer.event = devices().record(stream)


def _windows(pieces: "List[DevicePiece]", size: int) -> Any:
    """Yields pieces of at most `size` bytes together; cuts one where it does not fit."""
    window: List[DevicePiece] = []
    left = size
    for piece in pieces:
        while piece.size > left:
            if left:
                window.append(piece._replace(size=left))
                piece = DevicePiece(piece.offset + left, piece.address + left, piece.size - left, piece.device)
            yield window
            window, left = [], size
        window.append(piece)
        left -= piece.size
    if window:
        yield window
