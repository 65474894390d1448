"""Copies CUDA storages straight into the segments, which are registered with CUDA once."""

import ctypes
import functools
import threading
import warnings
from typing import Any, Callable, List, Sequence, Tuple

import torch

from ckptd._memory.image import Memory
from ckptd._session.segments import Segment

_lock = threading.Lock()
_warned = False


def filler(on_devices: "Sequence[Tuple[int, Any]]") -> "Callable[[Memory, int], None]":
    """Returns a function that copies records from devices to the memory of a file that begins at an offset in
    it.

    on_devices: (offset in the file, Record) of each. TypeError if one is on a device that is not CUDA's.
    """
    kinds = sorted({record.storage.device.type for _, record in on_devices} - {"cuda"})
    if kinds:
        raise TypeError(
            f"tensors on {', '.join(kinds)} cannot be saved from that device: copy them to the CPU first (tensor.cpu())"
        )

    def fill(memory: Memory, base: int) -> None:
        for segment in memory.owners if isinstance(memory.owners, list) else ():
            _register(segment)
        streams = {}
        with torch.no_grad():
            for offset, record in on_devices:
                device = record.storage.device
                if device not in streams:
                    streams[device] = torch.cuda.Stream(device)
                    # Copy after what is computing these values now.
                    streams[device].wait_stream(torch.cuda.current_stream(device))
                source = torch.empty(0, dtype=torch.uint8, device=device).set_(record.storage)
                with torch.cuda.stream(streams[device]):
                    at = record.begin
                    for target in views(memory, base + offset, record.end - record.begin):
                        target.copy_(source[at : at + len(target)], non_blocking=True)
                        at += len(target)
        for stream in streams.values():
            stream.synchronize()  # The part may be sealed next.

    return fill


def views(memory: Memory, base: int, size: int) -> "List[Any]":
    """Returns uint8 tensors over the memory at [base, base + size), one for each segment."""
    pieces = memory.pieces(base, size)
    return [
        torch.frombuffer((ctypes.c_char * length).from_address(address), dtype=torch.uint8)
        for address, length in zip(pieces.sources, pieces.lengths)
    ]


def _register(segment: Segment) -> None:
    """Registers a segment with CUDA, so that copies from a device need no bounce buffer.

    If that fails, it warns once in the process, and copies go through a buffer.
    """
    global _warned
    with _lock:
        if segment.before_unmap:
            return  # It is registered already.
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
                f"CUDA cannot register the daemon's memory ({why}): copies from devices go through a buffer",
                stacklevel=2,
            )


def _nothing() -> None:
    pass
