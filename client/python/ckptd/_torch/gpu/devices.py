"""The devices whose memory a copy engine reads and writes: those of CUDA, behind a seam that tests replace."""

import ctypes
import functools
import os
from array import array
from typing import Any, Dict, Tuple

import torch

from ckptd._memory import native
from ckptd._memory.native import Pieces

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices.
# The runtime that torch has loaded, by a part of its name, and its function.
_RUNTIMES = (("libcudart", "cuda"), ("libamdhip64", "hip"))


class Devices:
    """CUDA's devices. Thread-safe."""

    in_cpu_memory = False  # True of a stand-in, whose tensors are torch's on the CPU.

    def __init__(self) -> None:
        self._streams: Dict[Any, Any] = {}

    def has(self, storage: Any) -> bool:
        """Returns whether a storage lies on one of these devices."""
        return bool(storage.device.type == "cuda")

    def is_host(self, storage: Any) -> bool:
        """Returns whether a storage lies in the CPU's memory."""
        return storage.device.type == "cpu" and not (self.in_cpu_memory and self.has(storage))

    def stream(self, device: Any) -> Any:
        """Returns the stream on which ckptd copies from a device and to it, one in this process."""
        if device not in self._streams:
            self._streams.setdefault(device, torch.cuda.Stream(device))
        return self._streams[device]

    def follow_current(self, stream: Any) -> None:
        """Has the stream begin what it gets from now on after what is queued on the caller's stream."""
        stream.wait_stream(torch.cuda.current_stream(stream.device))

    def record(self, stream: Any) -> Any:
        """Returns an event that happens when the stream has done what is queued on it now."""
        return stream.record_event()

    def await_event(self, event: Any) -> None:
        """Blocks until an event has happened. RuntimeError if a device has failed."""
        event.synchronize()

    def hold_current(self, device: Any, event: Any) -> None:
        """Has the caller's stream begin what it gets from now on after an event."""
        torch.cuda.current_stream(device).wait_event(event)

    def copy(
        self,
        stream: Any,
        segments: "Tuple[array[int], array[int]]",
        base: int,
        pieces: Pieces,
        begin: int,
        end: int,
        out: bool = False,
    ) -> None:
        """Queues copies between the host's memory and the stream's device: see native.copy_async().

        Blocks meanwhile where the host's memory is not pinned. RuntimeError if the runtime refuses them.
        """
        function, take_last_error = _copy_function()
        with torch.cuda.device(stream.device):
            code = native.copy_async(function, stream.cuda_stream, segments, base, pieces, begin, end, out)
            if code:
                take_last_error()  # Otherwise the next kernel of this thread would report the error as its own.
                torch.cuda.check_error(code)

    def pin(self, address: int, size: int) -> str:
        """Pins memory of the host for copies. Returns why it could not; empty if it is pinned."""
        try:
            code = int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE))
        except RuntimeError as error:
            return str(error)
        return f"error {code}" if code else ""

    def unpin(self, address: int) -> None:
        """Undoes pin()."""
        torch.cuda.cudart().cudaHostUnregister(address)

    def pinned_buffer(self, size: int) -> Any:
        """Returns a uint8 tensor in pinned memory of the host."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)


@functools.lru_cache(maxsize=None)
def _copy_function() -> "Tuple[int, Any]":
    """Returns the address of cudaMemcpyAsync in the runtime that torch has loaded, and its cudaGetLastError."""
    with open("/proc/self/maps") as maps:
        mapped = {line.split(None, 5)[5].strip() for line in maps if "/" in line}
    for path in sorted(mapped):
        for library, prefix in _RUNTIMES:
            if library in os.path.basename(path):
                runtime = ctypes.CDLL(path)
                address = ctypes.cast(getattr(runtime, f"{prefix}MemcpyAsync"), ctypes.c_void_p).value
                return address or 0, getattr(runtime, f"{prefix}GetLastError")
    raise RuntimeError(
        "ckptd cannot copy from this device: this build of torch has not loaded libcudart or libamdhip64; save tensor.cpu()"
    )


_devices = Devices()


def devices() -> Devices:
    """Returns the devices of this process."""
    return _devices


def replace(other: Devices) -> Devices:
    """Puts other devices in the place of CUDA's, for a test on a machine without. Returns those before."""
    global _devices
    before, _devices = _devices, other
    return before
