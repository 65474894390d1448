"""The client's mappings of the daemon's segments: made when a segment is first lent, kept while it is ours."""

import os
import threading
import weakref
from typing import Callable, Dict, List, Sequence, Tuple

from ckptd import _accel
from ckptd._handoff import Handoff
from ckptd._image import Memory


class Segment:
    """Mapped as long as somebody refers to it."""

    def __init__(self, size: int, descriptor: int) -> None:
        self.size = size
        self.address = _accel.map_shared(descriptor, size)
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

    def memory(self, wanted: Sequence[Tuple[int, int]], timeout: float) -> Memory:
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
        for segment, (id, size) in zip(segments, wanted):
            if segment.size != size:
                raise RuntimeError(f"segment {id} has {segment.size} bytes, the daemon announced {size}")
        return Memory([(segment.address, segment.size) for segment in segments], segments)

    def forget(self, ids: Sequence[int]) -> None:
        """The daemon lends these to us no more."""
        with self._lock:
            for id in ids:
                self._segments.pop(id, None)
