"""The client's mappings of the daemon's segments: made when a segment is first lent, kept as long as it is
lent.
"""

import mmap
import os
import threading
import weakref
from array import array
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ckptd._memory import native
from ckptd._memory.image import Memory
from ckptd._session.handoff import Handoff


class Segment:
    """A segment's mapping in this process; unmapped when nothing refers to it any more."""

    def __init__(self, size: int, descriptor: int, writable: bool = True) -> None:
        """Maps `size` bytes of the descriptor, which the caller still owns. OSError if that fails."""
        self.size = size
        self.address = native.map_shared(descriptor, size, writable)
        self.borrower: object = None  # The token of the part that the segment was last lent for.
        self.pinning: Any = None  # A _torch.gpu.pinning.Pinning, once devices copy to the segment.
        self._unmap: List[Callable[[int, int], None]] = [native.unmap]
        end = weakref.finalize(self, _unmap, self.address, size, self._unmap, os.getpid())
        end.atexit = False  # The kernel unmaps it when the process exits.

    def set_unmap(self, unmap: "Callable[[int, int], None]") -> None:
        """Sets what unmaps the memory at the segment's end, given its address and size."""
        self._unmap[0] = unmap


def _unmap(address: int, size: int, unmap: "List[Callable[[int, int], None]]", pid: int) -> None:
    # A forked child has no such mapping (MADV_DONTFORK), and may have another one at that address.
    if os.getpid() == pid:
        unmap[0](address, size)


class SegmentTable:
    """The segments that are lent to one session. Thread-safe."""

    def __init__(self, handoff: Handoff) -> None:
        self._handoff = handoff
        self._lock = threading.Lock()
        self._segments: Dict[int, Segment] = {}

    def memory(self, wanted: Sequence[Tuple[int, int]], timeout: float, borrower: object = None) -> Memory:
        """Returns the memory of a part; maps the segments that are new to this process.

        Args:
            wanted: (id, size in bytes) of each segment, in the order of the part.
            timeout: seconds to wait for the daemon's descriptors.
            borrower: the part's token; it marks the segments as lent for that part.

        Raises:
            errors.NotFound: the daemon has taken a segment back.
        """
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
            for segment in segments:
                segment.borrower = borrower
        for segment, (id, size) in zip(segments, wanted):
            if segment.size != size:
                raise RuntimeError(f"segment {id} has {segment.size} bytes, but the daemon announced {size}")
        return Memory([(segment.address, segment.size) for segment in segments], segments)

    def forget(self, ids: Sequence[int]) -> None:
        """Drops segments that the daemon no longer lends to this session."""
        with self._lock:
            for id in ids:
                self._segments.pop(id, None)

    def clear(self) -> None:
        """Drops all segments, at the end of the session. Those that something still refers to stay mapped."""
        with self._lock:
            self._segments.clear()


class SealedBytes:
    """The bytes of a sealed part, where they lie in the segments of a session, which may have ended since."""

    def __init__(self, borrower: object, files: List[Tuple[Memory, int, int]]) -> None:
        """files: (memory, offset in it, size in bytes) of each file."""
        self._borrower = borrower
        self._files = files

    def are_lent_again(self) -> bool:
        """Returns whether another part has got one of the segments, which means that this part's save had
        ended.
        """
        return any(
            segment.borrower is not self._borrower for memory, _, _ in self._files for segment in memory.owners
        )

    def are_freed(self) -> bool:
        """Returns whether a daemon has given some of the memory back to the kernel, so that zeros are read
        there.

        Ask before reading: reading maps a page of zeros, and hides that the page was gone.
        """
        return not all(
            _is_present(address, size)
            for memory, offset, length in self._files
            for _, address, size in zip(*memory.pieces(offset, length))
        )


_PRESENT = 1 << 63  # The bit of an entry in /proc/self/pagemap.
_ENTRIES_PER_READ = 1 << 16


def _is_present(address: int, size: int) -> bool:
    """Returns whether every page of a range is in this process's page table, as it is after a write.

    A page is missing after a hole was punched there and, rarely, when the machine swaps. Both count as freed:
    a save that is reported lost is better than one that is full of zeros.
    """
    page, end = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as table:
            while page < end:
                count = min(_ENTRIES_PER_READ, end - page)
                entries = array("Q", os.pread(table.fileno(), 8 * count, 8 * page))
                if not entries or min(entries) < _PRESENT:
                    return False
                page += len(entries)
    except (OSError, ValueError):
        return False
    return True
