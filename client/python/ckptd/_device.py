"""Storages that are not in the CPU's memory: CUDA's go straight into the segments, which are registered
with it once.
"""

import ctypes
import functools
import threading
import warnings
from typing import Any, Callable, List, Sequence, Tuple

import torch

from ckptd._image import Memory
from ckptd._segments import Segment

_lock = threading.Lock()
_warned = False


def filler(elsewhere: "Sequence[Tuple[int, Any]]") -> "Callable[[Memory, int], None]":
    """Copies the records of `elsewhere`, (offset in the file, Record) each, into the memory of the file
    that begins at `base`.
    """
    kinds = sorted({record.storage.device.type for _, record in elsewhere} - {"cuda"})
    if kinds:
        raise TypeError(
            f"tensors on {', '.join(kinds)} cannot be saved from there: bring them to the CPU first (tensor.cpu())"
        )

    def fill(memory: Memory, base: int) -> None:
        for segment in memory.owners if isinstance(memory.owners, list) else ():
            _register(segment)
        streams = {}
        with torch.no_grad():
            for offset, record in elsewhere:
                device = record.storage.device
                if device not in streams:
                    streams[device] = torch.cuda.Stream(device)
                    # What computes these values now must be done before they are copied.
                    streams[device].wait_stream(torch.cuda.current_stream(device))
                source = torch.empty(0, dtype=torch.uint8, device=device).set_(record.storage)
                with torch.cuda.stream(streams[device]):
                    at = record.begin
                    for target in _views(memory, base + offset, record.end - record.begin):
                        target.copy_(source[at : at + len(target)], non_blocking=True)
                        at += len(target)
        for stream in streams.values():
            stream.synchronize()  # The part is sealed next.

    return fill


def _views(memory: Memory, base: int, size: int) -> "List[Any]":
    """Tensors of bytes over [base, base + size)."""
    pieces = memory.pieces(base, size)
    return [
        torch.frombuffer((ctypes.c_char * length).from_address(address), dtype=torch.uint8)
        for address, length in zip(pieces.sources, pieces.lengths)
    ]


def _register(segment: Segment) -> None:
    """Makes a segment known to CUDA, so that copies from a device need no buffer between. Where that fails
    we say so once.
    """
    global _warned
    with _lock:
        if segment.before_unmap:
            return  # Registered before.
        runtime, address = torch.cuda.cudart(), segment.address
        try:
            code = int(runtime.cudaHostRegister(address, segment.size, 1))
        except RuntimeError as error:
            code, why = -1, str(error)
        else:
            why = f"error {code}"
        segment.before_unmap.append(
            functools.partial(runtime.cudaHostUnregister, address) if code == 0 else _nothing
        )
        if code != 0 and not _warned:
            _warned = True
            warnings.warn(
                f"CUDA does not take the daemon's memory ({why}): copies from devices go through a buffer",
                stacklevel=2,
            )


def _nothing() -> None:
    pass
