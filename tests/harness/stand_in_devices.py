"""Devices for machines without any: their tensors are CPU tensors, and their streams copy in a thread."""

from __future__ import annotations

import ctypes
import pathlib
import queue
import threading
from typing import Any, Callable, List, Set, Tuple

import torch
from ckptd._memory import native
from ckptd._torch.gpu import pinning
from ckptd._torch.gpu.devices import Devices

# The type of cudaMemcpyAsync.
RuntimeCopy = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
)

# What a process of a test runs: `stand_in` takes the place of CUDA's devices, and small tensors are copied as large ones.
IN_PROCESS = f"""
import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parents[1])!r})
from harness.stand_in_devices import StandInDevices
from ckptd._memory import copies
from ckptd._torch.gpu import device_copy, devices as devices_module
device_copy._SMALL_BYTES = 0
stand_in = StandInDevices()
cuda = devices_module.replace(stand_in)
"""


def await_pinning() -> None:
    """Waits until all memory that was to be pinned, or unpinned, so far is so."""
    done = threading.Event()
    pinning._post(done.set)
    assert done.wait(30)


class StandInStream:
    """Does what it gets in order, in a thread of its own, while the gate of its devices is open."""

    device = torch.device("cpu")

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate
        self._work: "queue.SimpleQueue[Callable[[], object]]" = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def is_idle(self) -> bool:
        return self._work.empty()

    def put(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            self._gate.wait()
            work()


class StandInDevices(Devices):
    """Tensors from tensor() count as a device's."""

    in_cpu_memory = True

    def __init__(self) -> None:
        self.gate = threading.Event()  # Copies wait until it is set.
        self.gate.set()
        self.pin_gate = threading.Event()  # So do the threads that pin memory.
        self.pin_gate.set()
        self.pinned: List[Tuple[int, int]] = []  # (address, bytes), as far as not unpinned.
        self.refuses_pin_after = 1 << 60  # Bytes.
        self.copies: List[Tuple[int, int, int]] = []  # (target, source, bytes) in the order in which they were queued.
        self.pinning_threads: Set[str] = set()
        self.holds = 0  # Calls of hold_current().
        self._held = threading.Event()
        self.fails = False  # The events of the stream report a failure.
        self._tensors: List[Any] = []
        self._stream = StandInStream(self.gate)

    def is_idle(self) -> bool:
        """Returns whether no copy is queued."""
        return self._stream.is_idle()

    def open_gate_when_held(self) -> None:
        """Lets copies go on once a caller waits for one. In a process without copies nobody does: there the test sets the gate."""

        def open_gate() -> None:
            self._held.wait(30)
            self.gate.set()

        threading.Thread(target=open_gate, daemon=True).start()

    def tensor(self, tensor: Any) -> Any:
        """Returns the tensor, which counts as a device's from now on."""
        self._tensors.append(tensor.untyped_storage())
        return tensor

    def has(self, storage: Any) -> bool:
        return any(storage.data_ptr() == one.data_ptr() and one.nbytes() for one in self._tensors)

    def stream(self, device: Any) -> Any:
        return self._stream

    def follow_current(self, stream: Any) -> None:
        pass  # What the CPU computes is done when the call that computes it returns.

    def record(self, stream: Any) -> Any:
        event = threading.Event()
        stream.put(event.set)
        return event

    def await_event(self, event: Any) -> None:
        assert event.wait(30)
        if self.fails:
            raise RuntimeError("the device has failed")

    def hold_current(self, device: Any, event: Any) -> None:
        self.holds += 1
        self._held.set()
        assert event.wait(30)  # The CPU has no queue: its "stream" is the caller.

    def copy(self, stream: Any, segments: Any, base: int, pieces: Any, begin: int, end: int, out: bool = False) -> None:
        def queue_copy(target: int, source: int, size: int, kind: int, handle: Any) -> int:
            self.copies.append((target, source, size))
            stream.put(lambda: ctypes.memmove(target, source, size))
            return 0

        function = RuntimeCopy(queue_copy)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        assert native.copy_async(address, 0, segments, base, pieces, begin, end, out) == 0

    def pin(self, address: int, size: int) -> str:
        self.pin_gate.wait()
        self.pinning_threads.add(threading.current_thread().name)
        if sum(bytes for _, bytes in self.pinned) + size > self.refuses_pin_after:
            return "error 2"
        self.pinned.append((address, size))
        return ""

    def unpin(self, address: int) -> None:
        self.pinned = [one for one in self.pinned if one[0] != address]

    def pinned_buffer(self, size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8)
