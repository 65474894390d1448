"""The client's mappings of the daemon's segments: made when a segment is first lent, kept while it is ours."""

import mmap
import os
import threading
import weakref
from array import array
from typing import Callable, Dict, List, Sequence, Tuple

from ckptd import _accel
from ckptd._handoff import Handoff
from ckptd._image import Memory


class Segment:
    """Mapped as long as somebody refers to it."""

    def __init__(self, size: int, descriptor: int, writable: bool = True) -> None:
        self.size = size
        self.address = _accel.map_shared(descriptor, size, writable)
        self.borrower: object = None  # Whose bytes are there: a token of the part that it was last lent for.
        self.before_unmap: List[Callable[[], object]] = []
        end = weakref.finalize(self, _unmap, self.address, size, self.before_unmap, os.getpid())
        end.atexit = False  # The process's end does it.


def _unmap(address: int, size: int, before: "List[Callable[[], object]]", pid: int) -> None:
    if os.getpid() != pid:
        return  # A forked child has no such mapping (MADV_DONTFORK), but perhaps another one there.
    for step in before:
        step()
    _accel.unmap(address, size)


class Segments:
    """Those of one session. Thread-safe."""

    def __init__(self, handoff: Handoff) -> None:
        self._handoff = handoff
        self._lock = threading.Lock()
        self._segments: Dict[int, Segment] = {}

    def memory(self, wanted: Sequence[Tuple[int, int]], timeout: float, borrower: object = None) -> Memory:
        """The memory of a part, `wanted` as (id, size) in part order. Maps what is new to this process."""
        with self._lock:
            missing = [id for id, _ in wanted if id not in self._segments]
            fetched = self._handoff.fetch_segments(missing, timeout)
            try:
                for id, size, descriptor in fetched:
                    self._segments[id] = Segment(size, descriptor)
            finally:
                for _, _, descriptor in fetched:
                    os.close(descriptor)
            segments: List[Segment] = [self._segments[id] for id, _ in wanted]
            for borrowed in segments:
                borrowed.borrower = borrower
        for segment, (id, size) in zip(segments, wanted):
            if segment.size != size:
                raise RuntimeError(f"segment {id} has {segment.size} bytes, the daemon announced {size}")
        return Memory([(segment.address, segment.size) for segment in segments], segments)

    def forget(self, ids: Sequence[int]) -> None:
        """The daemon lends these to us no more."""
        with self._lock:
            for id in ids:
                self._segments.pop(id, None)

    def clear(self) -> None:
        """The session is over: what nobody else refers to is unmapped."""
        with self._lock:
            self._segments.clear()


class Held:
    """The bytes of a sealed part, as they lie in segments of a session, whether or not that has ended."""

    def __init__(self, borrower: object, files: List[Tuple[Memory, int, int]]) -> None:
        """files: (memory, offset in it, size) of each."""
        self._borrower = borrower
        self._files = files

    def lent_again(self) -> bool:
        """Whether another part has got the same segments. Then this part's save had ended before."""
        return any(
            segment.borrower is not self._borrower for memory, _, _ in self._files for segment in memory.owners
        )

    def freed(self) -> bool:
        """Whether a daemon has given some of the memory back: then there are zeros. Reading would hide it, so
        ask before.
        """
        return not all(
            _present(address, size)
            for memory, offset, length in self._files
            for _, address, size in zip(*memory.pieces(offset, length))
        )


_PRESENT = 1 << 63  # Of an entry in the page map.
_ENTRIES = 1 << 16  # Of it, at once.


def _present(address: int, size: int) -> bool:
    """Whether each page is in this process's page table, as after a write. Not so after a hole was punched there,
    nor, rarely, when the machine swaps: then better lost than zeros.
    """
    page, end = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as table:
            while page < end:
                entries = array("Q", os.pread(table.fileno(), 8 * min(_ENTRIES, end - page), 8 * page))
                if not entries or min(entries) < _PRESENT:
                    return False
                page += len(entries)
    except (OSError, ValueError):
        return False
    return True
