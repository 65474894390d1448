"""Reads files of a checkpoint from its resident copy in the daemon's memory, without the disk."""

import contextlib
import ctypes
import logging
import os
import threading
import weakref
from array import array
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ckptd import errors
from ckptd._memory import native
from ckptd._memory.image import Memory
from ckptd._reading.verified_file import VerifiedFile
from ckptd._session.segments import Segment
from ckptd._session.session import Session, segments_of
from ckptd._wire.protocol import messages

_log = logging.getLogger("ckptd")
_RPC_SECONDS = 30.0
_SLOWEST_CHECK = 100e6  # Bytes per second; a daemon that verifies a copy more slowly times out.


class _ResidentPart:
    """One rank's files, which lie in consecutive segments. Thread-safe."""

    def __init__(self, session: Session, wanted: List[Tuple[int, int]]) -> None:
        self._session = session
        self._wanted = wanted
        self._lock = threading.Lock()
        self._memory: Optional[Memory] = None
        self._mapped: "Optional[weakref.ref[PrivateMapping]]" = None
        self.may_map: Optional[bool] = None  # None until the daemon was asked.

    def memory(self) -> Memory:
        """Returns the part's memory, mapped read-only at the first call."""
        with self._lock:
            if self._memory is None:
                self._memory = self._map()
            return self._memory

    def mapped(self) -> "PrivateMapping":
        """Returns a private mapping of the part, which lasts as long as anything refers to it.

        Only after the daemon has answered that the part may be mapped.
        """
        with self._lock:
            mapped = self._mapped() if self._mapped is not None else None
            if mapped is None:
                with self._fetched() as fetched:
                    mapped = PrivateMapping([fd for _, _, fd in fetched], [size for _, size, _ in fetched])
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


class PrivateMapping:
    """A part's segments mapped one after another; unmapped when nothing refers to it any more.

    What this process writes to it stays its own.
    """

    def __init__(self, descriptors: Sequence[int], sizes: Sequence[int]) -> None:
        self._address = native.map_private(descriptors, sizes)
        end = weakref.finalize(self, native.unmap, self._address, sum(sizes))
        end.atexit = False  # The kernel unmaps it when the process exits.

    def bytes_at(self, offset: int, size: int) -> Any:
        """Returns a writable buffer over `size` bytes, which keeps the mapping alive."""
        there: Any = (ctypes.c_char * size).from_address(self._address + offset)
        there.owner = self  # from_address() keeps nothing alive by itself.
        return there


class ResidentFiles:
    """The files of one open checkpoint that are in the daemon's memory. Thread-safe.

    The daemon keeps the memory until the lease ends.
    """

    def __init__(self, session: Session, lease: str, size: int, threads: int) -> None:
        """size: of the checkpoint, in bytes; it bounds how long the daemon may take to verify a part."""
        self._session = session
        self._threads = threads
        self._lease = lease
        self._timeout = _RPC_SECONDS + size / _SLOWEST_CHECK
        self._lock = threading.Lock()
        # Path -> (part, offset in it, size in bytes), or None if the file is not in memory. Files asked for
        # so far.
        self._files: Dict[str, Optional[Tuple[_ResidentPart, int, int]]] = {}

    def _find(self, path: str) -> Optional[Tuple[_ResidentPart, int, int]]:
        """Returns where a file lies, or None. The daemon verifies the whole part before it answers."""
        if self._session.handoff is None:
            return None
        with self._lock:
            if path not in self._files:
                for part in self._locate(path, map=False).parts:
                    memory = _ResidentPart(self._session, segments_of(part.segments))
                    for file in part.placements:
                        self._files[file.path] = (memory, file.offset, file.size_bytes)
                self._files.setdefault(path, None)
            return self._files[path]

    def _locate(self, path: str, map: bool) -> Any:
        try:
            request = messages.LocateFilesRequest(lease=self._lease, path=path, map=map)
            return self._session.call(self._session.checkpoints.LocateFiles, request, self._timeout)
        except errors.CkptdError as error:  # An older daemon does not know the call.
            _log.debug("ckptd: %s is read from the disk: %s", path, error)
            return messages.LocateFilesResponse()

    def map(self, path: str) -> Any:
        """Returns a file's bytes in a private mapping, which lasts as long as anything refers to it; None if
        it is not in memory, or may not be mapped.
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
            _log.info("ckptd: %s could not be mapped and is copied: %s", path, error)
            return None

    def open(self, path: str, open_on_disk: Callable[[], VerifiedFile]) -> Optional[VerifiedFile]:
        """Opens a file in memory; None if it is not there.

        open_on_disk: opens the file on the disk, in case the daemon ends while it is read.
        """
        found = self._find(path)
        if found is None:
            return None
        part, offset, size = found
        try:
            memory = part.memory()
        except (OSError, errors.CkptdError) as error:
            _log.info("ckptd: %s could not be read from memory and is read from the disk: %s", path, error)
            return None
        return ResidentFile(memory, offset, size, self._session, self._threads, open_on_disk)


class ResidentFile(VerifiedFile):
    """A file in the daemon's memory, which the daemon has verified.

    A copy of its bytes counts only if the session was still alive after it: when a daemon has ended, the next
    one may give the memory back, and zeros are read. Then reading goes on from the disk.
    """

    def __init__(
        self,
        memory: Memory,
        begin: int,
        size: int,
        session: Session,
        threads: int,
        open_on_disk: Callable[[], VerifiedFile],
    ) -> None:
        super().__init__(size, max(size, 1))
        self._memory = memory
        self._begin = begin
        self._session = session
        self._threads = threads
        self._open_on_disk = open_on_disk
        self._disk: Optional[VerifiedFile] = None

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        size = max(0, min(len(view), self.size - self._at))
        address, keep = native.address_of(view)
        self.scatter([(self._at, address, size)] if size else [])
        del keep
        self._at += size
        return size

    def scatter(self, pieces: Sequence[Tuple[int, int, int]], fresh: bool = False) -> None:
        if self._disk is None and pieces:
            columns = (array("Q", column) for column in zip(*pieces))
            targets = native.Targets(*columns)
            native.copy_out(
                self._memory.segments, self._begin, self.size, targets, self._threads, fresh, self.background
            )
            if self._session.alive():
                return self._advance(sum(targets.lengths))
            _log.info("ckptd: the daemon has ended; reading goes on from the disk")
            self._disk = self._open_on_disk()
        if self._disk is not None:
            self._disk.progress, self._disk.background = self.progress, self.background
            try:
                self._disk.scatter(pieces, fresh)
            except errors.CkptdError as error:
                self.fault = error
                raise
