"""Files of a checkpoint, readable as any file, of which no byte comes out that was not checked."""

import contextlib
import ctypes
import errno
import io
import os
from array import array
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from ckptd import _accel, errors
from ckptd._session import Session
from ckptd._wire import messages

_KEPT_CHUNKS = 2  # One that is read in small pieces, and one that such reading comes back to.
_REMOTE_CHUNK = 8 << 20
_MOST_RANGES = 10_000  # Of one request, which has to be a small message.
_RPC_SECONDS = 30.0
_SLOWEST = 20e6  # Bytes a second that reading has at least.


class VerifiedFile(io.RawIOBase):
    """Bytes come by whole chunks: straight to the reader where it takes whole ones, else by a buffer. By
    one thread at a time.
    """

    def __init__(self, size: int, chunk_bytes: int) -> None:
        self.size = size
        self.fault: Optional[errors.CkptdError] = None  # The last error, for callers that hide it.
        self.progress: Optional[Callable[[int], None]] = None  # Hears how many bytes have come so far.
        self.background = False  # Reading gives way to all other work on the machine.
        self._came = 0
        self._chunk_bytes = chunk_bytes
        self._at = 0
        self._chunks: Dict[int, bytearray] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, unless the file ends before."""
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self.size - self._at))
        done = 0
        while done < wanted:
            chunk, skip = divmod(self._at, self._chunk_bytes)
            left = wanted - done
            whole = left // self._chunk_bytes * self._chunk_bytes
            if left == self.size - self._at:
                whole = left  # Up to the end: the last chunk may be short.
            if skip == 0 and whole > 0:
                self._get(chunk, view[done : done + whole])
                n = whole
            else:
                data = self._buffered(chunk)
                n = min(left, len(data) - skip)
                view[done : done + n] = memoryview(data)[skip : skip + n]
            self._at += n
            done += n
        return done

    def scatter(self, pieces: Sequence[Tuple[int, int, int]]) -> None:
        """Fills memory: (offset in the file, address, bytes) of each, in the order of the file, none over
        another or beyond the end.
        """
        for offset, address, size in pieces:
            self.seek(offset)
            self.readinto(memoryview((ctypes.c_char * size).from_address(address)).cast("B"))

    @contextlib.contextmanager
    def buffered(self) -> "Iterator[Any]":
        """For torch, which reads in small pieces and hides what goes wrong with its file: that is raised instead."""
        reader = io.BufferedReader(self, 64 << 10)
        try:
            yield reader
        except errors.CkptdError:
            raise
        except Exception:
            if self.fault is not None:
                raise self.fault from None
            raise
        finally:
            reader.detach()  # Else it closes the file when it goes.

    def _tell(self, came: int) -> None:
        """So many more bytes."""
        self._came += came
        if self.progress is not None:
            self.progress(self._came)

    def _buffered(self, chunk: int) -> bytearray:
        data = self._chunks.pop(chunk, None)
        if data is None:
            size = min(self._chunk_bytes, self.size - chunk * self._chunk_bytes)
            # In the memory of the oldest one: to fault fresh memory in costs several times what reading does.
            oldest = (
                self._chunks.pop(next(iter(self._chunks))) if len(self._chunks) >= _KEPT_CHUNKS else None
            )
            data = oldest if oldest is not None and len(oldest) == size else bytearray(size)
            self._get(chunk, memoryview(data))
        self._chunks[chunk] = data
        return data

    def _get(self, chunk: int, into: memoryview) -> None:
        try:
            self._fetch(chunk, into)
        except errors.CkptdError as error:
            self.fault = error
            raise

    def _fetch(self, chunk: int, into: memoryview) -> None:
        """Fills `into` from the begin of a chunk, to the end of one or of the file."""
        raise NotImplementedError


class LocalFile(VerifiedFile):
    """Read from the disk, checked here."""

    def __init__(self, tag: str, record: Any, chunk_bytes: int, descriptor: int, threads: int) -> None:
        """Takes the descriptor over."""
        super().__init__(record.size_bytes, chunk_bytes)
        self._tag = tag
        self._record = record
        self._descriptor = descriptor
        self._threads = threads
        self._expected = array("I", record.chunk_crc32c)
        size = os.fstat(descriptor).st_size
        if size != record.size_bytes:
            self.close()
            raise self._corrupt(
                f"it has {size} bytes, and {record.size_bytes} were saved", reason="SHORT_FILE"
            )

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def scatter(self, pieces: Sequence[Tuple[int, int, int]]) -> None:
        """In one pass, straight to where the bytes belong."""
        columns = (array("Q", column) for column in zip(*pieces))
        self._read(_accel.Targets(*columns) if pieces else _accel.Targets(array("Q"), array("Q"), array("Q")))

    def _fetch(self, chunk: int, into: memoryview) -> None:
        address, keep = _accel.address_of(into)
        one = (array("Q", [value]) for value in (chunk * self._chunk_bytes, address, len(into)))
        self._read(_accel.Targets(*one))
        del keep

    def _read(self, targets: _accel.Targets) -> None:
        before = self._came
        fault = _accel.read_verified(
            self._descriptor,
            self.size,
            self._chunk_bytes,
            self._expected,
            targets,
            self._threads,
            lambda done: self._tell(before + done - self._came),
            self.background,
        )
        if fault is None:
            return self._tell(before + sum(targets.lengths) - self._came)
        if fault.errno == errno.EBADMSG:
            raise self._corrupt(
                f"chunk {fault.chunk}, from byte {fault.chunk * self._chunk_bytes} on, has CRC32C {fault.found:#010x}, and was "
                f"saved with {self._expected[fault.chunk]:#010x}",
                chunk=fault.chunk,
                expected=self._expected[fault.chunk],
                found=fault.found,
            )
        if fault.errno not in (errno.ENODATA, errno.EILSEQ):
            # EIO too: it may be all of the disk, or pass, so it condemns no checkpoint.
            raise OSError(fault.errno, os.strerror(fault.errno), self._record.path)
        why = "it ends early, or the disk has lost it" if fault.errno == errno.ENODATA else os.strerror(fault.errno)
        raise self._corrupt(f"reading chunk {fault.chunk} failed: {why}", chunk=fault.chunk, errno=fault.errno)

    def _corrupt(self, why: str, reason: str = "CORRUPT_FILE", **details: Any) -> errors.Corrupt:
        return errors.Corrupt(
            f"file {self._record.path} of checkpoint {self._tag} is corrupt: {why}",
            reason=reason,
            tag=self._tag,
            ranks=[self._record.rank],
            path=self._record.path,
            **details,
        )


class RemoteFile(VerifiedFile):
    """Read and checked by the daemon, for a process that has no way to the files."""

    def __init__(self, tag: str, path: str, size: int, session: Session, lease: str) -> None:
        super().__init__(size, _REMOTE_CHUNK)
        self._tag = tag
        self._path = path
        self._session = session
        self._lease = lease

    def scatter(self, pieces: Sequence[Tuple[int, int, int]]) -> None:
        """Of each chunk only what is asked for comes over."""
        for at in range(0, len(pieces), _MOST_RANGES):
            some = pieces[at : at + _MOST_RANGES]
            request = messages.ReadFileRequest(
                lease=self._lease,
                path=self._path,
                ranges=[messages.FileRange(offset=offset, size_bytes=size) for offset, _, size in some],
            )
            try:
                self._stream(
                    request,
                    [memoryview((ctypes.c_char * size).from_address(address)).cast("B") for _, address, size in some],
                )
            except errors.CkptdError as error:
                self.fault = error
                raise

    def _fetch(self, chunk: int, into: memoryview) -> None:
        request = messages.ReadFileRequest(
            lease=self._lease, path=self._path, offset=chunk * _REMOTE_CHUNK, limit=len(into)
        )
        self._stream(request, [into])

    def _stream(self, request: Any, targets: Sequence[memoryview]) -> None:
        """Fills the targets, one behind the other."""
        left = sum(map(len, targets))
        waiting = iter(targets)
        into = memoryview(b"")
        for response in self._session.stream(
            self._session.checkpoints.ReadFile, request, _RPC_SECONDS + left / _SLOWEST
        ):
            data = memoryview(response.data)[:left]
            left -= len(data)
            self._tell(len(data))
            while data:
                if not into:
                    into = next(waiting)
                size = min(len(data), len(into))
                into[:size] = data[:size]
                into, data = into[size:], data[size:]
        if left:
            raise errors.Corrupt(
                f"file {self._path} of checkpoint {self._tag} ends {left} bytes early",
                reason="SHORT_FILE",
                tag=self._tag,
                path=self._path,
            )
