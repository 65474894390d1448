"""Files of a checkpoint that are in the daemon's memory still: read from there, without the disk."""

import contextlib
import ctypes
import logging
import os
import threading
import weakref
from array import array
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

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
        self._mapped: "Optional[weakref.ref[Mapped]]" = None
        self.may_map: Optional[bool] = None  # Not asked for yet.

    def memory(self) -> Memory:
        """Mapped when it is first needed."""
        with self._lock:
            if self._memory is None:
                self._memory = self._map()
            return self._memory

    def mapped(self) -> "Mapped":
        """Its own, for as long as somebody refers to it: the daemon has said that it may be."""
        with self._lock:
            mapped = self._mapped() if self._mapped is not None else None
            if mapped is None:
                with self._fetched() as fetched:
                    mapped = Mapped([fd for _, _, fd in fetched], [size for _, size, _ in fetched])
                self._mapped = weakref.ref(mapped)
            return mapped

    def _map(self) -> Memory:
        with self._fetched() as fetched:
            segments = [Segment(size, descriptor, writable=False) for _, size, descriptor in fetched]
        return Memory([(segment.address, segment.size) for segment in segments], segments)

    @contextlib.contextmanager
    def _fetched(self) -> Iterator[List[Tuple[int, int, int]]]:
        assert self._session.handoff is not None
        ids = [id for id, _ in self._wanted]
        fetched = self._session.handoff.fetch_segments(ids, _RPC_SECONDS, read_only=True)
        try:
            yield fetched
        finally:
            for _, _, descriptor in fetched:
                os.close(descriptor)


class Mapped:
    """A part's segments in this process, one after another, until nobody refers to this. What is written here
    stays here.
    """

    def __init__(self, descriptors: Sequence[int], sizes: Sequence[int]) -> None:
        self._address = _accel.map_private(descriptors, sizes)
        end = weakref.finalize(self, _accel.unmap, self._address, sum(sizes))
        end.atexit = False  # The process's end does it.

    def bytes_at(self, offset: int, size: int) -> Any:
        """A writable buffer that refers to this."""
        there: Any = (ctypes.c_char * size).from_address(self._address + offset)
        there.owner = self
        return there


class Residents:
    """Of one open checkpoint; thread-safe. The memory stays until the lease ends, and so may readers."""

    def __init__(self, session: Session, lease: str, size: int, threads: int) -> None:
        """size: of the checkpoint."""
        self._session = session
        self._threads = threads
        self._lease = lease
        self._timeout = _RPC_SECONDS + size / _SLOWEST
        self._lock = threading.Lock()
        # Path -> part, where it begins there, size; None: it is not in memory. Of what the daemon was asked for.
        self._files: Dict[str, Optional[Tuple[_Part, int, int]]] = {}

    def _find(self, path: str) -> Optional[Tuple[_Part, int, int]]:
        """Asks the daemon, which checks the bytes of the rank that has the file before it answers."""
        if self._session.handoff is None:
            return None
        with self._lock:
            if path not in self._files:
                for part in self._locate(path, map=False).parts:
                    memory = _Part(self._session, segments_of(part.segments))
                    for file in part.placements:
                        self._files[file.path] = (memory, file.offset, file.size_bytes)
                self._files.setdefault(path, None)
            return self._files[path]

    def _locate(self, path: str, map: bool) -> Any:
        try:
            request = messages.LocateFilesRequest(lease=self._lease, path=path, map=map)
            return self._session.call(self._session.checkpoints.LocateFiles, request, self._timeout)
        except errors.CkptdError as error:  # Also of a daemon that does not know the question.
            _log.debug("ckptd: %s is read from the disk: %s", path, error)
            return messages.LocateFilesResponse()

    def map(self, path: str) -> Any:
        """The bytes of a file in a buffer that is nobody's copy, if they can be had like that: they stay while
        somebody refers to it.
        """
        found = self._find(path)
        if found is None:
            return None
        part, offset, size = found
        with self._lock:
            if part.may_map is None:
                part.may_map = self._locate(path, map=True).may_map
        if not part.may_map or size == 0:
            return None
        try:
            return part.mapped().bytes_at(offset, size)
        except (OSError, errors.CkptdError) as error:
            _log.info("ckptd: %s is copied out of memory and not mapped: %s", path, error)
            return None

    def open(self, path: str, otherwise: Callable[[], VerifiedFile]) -> Optional[VerifiedFile]:
        """A file, if it is there. otherwise: opens it on the disk, for when the daemon ends meanwhile."""
        found = self._find(path)
        if found is None:
            return None
        part, offset, size = found
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
            _accel.copy_out(
                self._memory.segments, self._begin, self.size, targets, self._threads, self.background
            )
            if self._session.alive():
                return self._tell(sum(targets.lengths))
            _log.info("ckptd: the daemon has ended: reading goes on from the disk")
            self._disk = self._otherwise()
        if self._disk is not None:
            self._disk.progress, self._disk.background = self.progress, self.background
            try:
                self._disk.scatter(pieces)
            except errors.CkptdError as error:
                self.fault = error
                raise
