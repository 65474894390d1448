"""Files of a checkpoint that are in the daemon's memory still: read from there, without the disk."""

import logging
import os
import threading
from array import array
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ckptd import _accel, errors
from ckptd._image import Memory
from ckptd._segments import Segment
from ckptd._session import Session, segments_of
from ckptd._verified import VerifiedFile
from ckptd._wire import messages

_log = logging.getLogger("ckptd")
_RPC_SECONDS = 30.0
_SLOWEST = 100e6  # Bytes a second that the daemon checks at least.


class _Part:
    """One rank's files, in segments that follow one another."""

    def __init__(self, session: Session, wanted: List[Tuple[int, int]]) -> None:
        self._session = session
        self._wanted = wanted
        self._lock = threading.Lock()
        self._memory: Optional[Memory] = None

    def memory(self) -> Memory:
        """Mapped when it is first needed."""
        with self._lock:
            if self._memory is None:
                self._memory = self._map()
            return self._memory

    def _map(self) -> Memory:
        assert self._session.handoff is not None
        ids = [id for id, _ in self._wanted]
        fetched = self._session.handoff.fetch_segments(ids, _RPC_SECONDS, read_only=True)
        try:
            segments = [Segment(size, descriptor, writable=False) for _, size, descriptor in fetched]
        finally:
            for _, _, descriptor in fetched:
                os.close(descriptor)
        return Memory([(segment.address, segment.size) for segment in segments], segments)


class Residents:
    """Of one open checkpoint; thread-safe. The memory stays until the lease ends, and so may readers."""

    def __init__(self, session: Session, lease: str, size: int, threads: int) -> None:
        """Asks the daemon, which checks the bytes before it answers. size: of the checkpoint."""
        self._session = session
        self._threads = threads
        self._files: Dict[str, Tuple[_Part, int, int]] = {}  # Path -> part, where it begins there, size.
        if session.handoff is None:
            return
        try:
            request = messages.LocateFilesRequest(lease=lease)
            located = session.call(session.checkpoints.LocateFiles, request, _RPC_SECONDS + size / _SLOWEST)
        except errors.CkptdError as error:  # Also of a daemon that does not know the question.
            _log.debug("ckptd: the checkpoint is read from the disk: %s", error)
            return
        for part in located.parts:
            memory = _Part(session, segments_of(part.segments))
            for file in part.placements:
                self._files[file.path] = (memory, file.offset, file.size_bytes)

    def open(self, path: str, otherwise: Callable[[], VerifiedFile]) -> Optional[VerifiedFile]:
        """A file, if it is there. otherwise: opens it on the disk, for when the daemon ends meanwhile."""
        if path not in self._files:
            return None
        part, offset, size = self._files[path]
        try:
            memory = part.memory()
        except (OSError, errors.CkptdError) as error:
            _log.info("ckptd: %s is read from the disk and not from memory: %s", path, error)
            return None
        return ResidentFile(memory, offset, size, self._session, self._threads, otherwise)


class ResidentFile(VerifiedFile):
    """The daemon has checked its bytes. They are copied, and that copy counts if the session still lived then: a
    daemon's successor gives the memory back, and then there are zeros.
    """

    def __init__(
        self,
        memory: Memory,
        begin: int,
        size: int,
        session: Session,
        threads: int,
        otherwise: Callable[[], VerifiedFile],
    ) -> None:
        super().__init__(size, max(size, 1))
        self._memory = memory
        self._begin = begin
        self._session = session
        self._threads = threads
        self._otherwise = otherwise
        self._disk: Optional[VerifiedFile] = None

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        size = max(0, min(len(view), self.size - self._at))
        address, keep = _accel.address_of(view)
        self.scatter([(self._at, address, size)] if size else [])
        del keep
        self._at += size
        return size

    def scatter(self, pieces: Sequence[Tuple[int, int, int]]) -> None:
        if self._disk is None and pieces:
            columns = (array("Q", column) for column in zip(*pieces))
            targets = _accel.Targets(*columns)
            _accel.copy_out(self._memory.segments, self._begin, self.size, targets, self._threads)
            if self._session.alive():
                return self._tell(sum(targets.lengths))
            _log.info("ckptd: the daemon has ended: reading goes on from the disk")
            self._disk = self._otherwise()
        if self._disk is not None:
            self._disk.progress = self.progress
            try:
                self._disk.scatter(pieces)
            except errors.CkptdError as error:
                self.fault = error
                raise
