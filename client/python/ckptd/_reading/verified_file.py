"""Files of a checkpoint as file objects that return verified bytes only: every chunk's CRC32C is checked
first.
"""

import contextlib
import ctypes
import errno
import io
import os
from array import array
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from ckptd import errors
from ckptd._memory import native
from ckptd._session.session import Session
from ckptd._wire.protocol import messages

_KEPT_CHUNKS = 2  # The one that is being read in small pieces, and one that such a reader comes back to.
_REMOTE_CHUNK = 8 << 20
_MAX_RANGES = 10_000  # The most in one request, which must stay a small message.
_RPC_SECONDS = 30.0
_SLOWEST_STREAM = 20e6  # Bytes per second; a slower read times out.


class VerifiedFile(io.RawIOBase):
    """A file whose chunks are verified before their bytes are returned. By one thread at a time.

    Whole chunks go straight into the reader's buffer; a reader of less gets its bytes from a buffer here.
    """

    def __init__(self, size: int, chunk_bytes: int) -> None:
        self.size = size
        self.fault: Optional[errors.CkptdError] = None  # The last error, for a caller that hides it.
        self.progress: Optional[Callable[[int], None]] = None  # Called with the bytes read so far.
        self.background = False  # Read with idle CPU and I/O priority.
        self._read_bytes = 0
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
        """Fills the buffer, or as much of it as there is up to the end of the file. Returns the bytes read."""
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self.size - self._at))
        done = 0
        while done < wanted:
            chunk, skip = divmod(self._at, self._chunk_bytes)
            left = wanted - done
            whole = left // self._chunk_bytes * self._chunk_bytes
            if left == self.size - self._at:
                whole = left  # The last chunk may be short.
            if skip == 0 and whole > 0:
                self._fetch_or_note(chunk, view[done : done + whole])
                n = whole
            else:
                data = self._chunk(chunk)
                n = min(left, len(data) - skip)
                view[done : done + n] = memoryview(data)[skip : skip + n]
            self._at += n
            done += n
        return done

    def scatter(self, pieces: Sequence[Tuple[int, int, int]], fresh: bool = False) -> None:
        """Fills memory from pieces of the file.

        Args:
            pieces: (offset in the file, address, bytes) of each, ordered by offset. They must not overlap or
                reach beyond the end.
            fresh: that memory has not been touched yet, and faulting it in may be sped up.
        """
        for offset, address, size in pieces:
            self.seek(offset)
            self.readinto(memoryview((ctypes.c_char * size).from_address(address)).cast("B"))

    @contextlib.contextmanager
    def buffered(self) -> "Iterator[Any]":
        """Yields a buffered reader for torch, which reads in small pieces.

        torch hides the errors of its file behind its own; this raises the file's error instead.
        """
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
            reader.detach()  # Otherwise the reader closes the file when it is collected.

    def _advance(self, count: int) -> None:
        """Reports that `count` more bytes have been read."""
        self._read_bytes += count
        if self.progress is not None:
            self.progress(self._read_bytes)

    def _chunk(self, chunk: int) -> bytearray:
        """Returns a whole chunk from the buffer; reads it if it is not there."""
        data = self._chunks.pop(chunk, None)
        if data is None:
            size = min(self._chunk_bytes, self.size - chunk * self._chunk_bytes)
            # Reuse the memory of the oldest chunk: faulting in fresh memory takes several times as long as
            # reading.
            oldest = (
                self._chunks.pop(next(iter(self._chunks))) if len(self._chunks) >= _KEPT_CHUNKS else None
            )
            data = oldest if oldest is not None and len(oldest) == size else bytearray(size)
            self._fetch_or_note(chunk, memoryview(data))
        self._chunks[chunk] = data
        return data

    def _fetch_or_note(self, chunk: int, into: memoryview) -> None:
        try:
            self._fetch(chunk, into)
        except errors.CkptdError as error:
            self.fault = error
            raise

    def _fetch(self, chunk: int, into: memoryview) -> None:
        """Fills `into` with whole chunks of the file from `chunk` on; the last one may be cut by the file's
        end.
        """
        raise NotImplementedError


def removed_while_read(tag: str) -> errors.NotFound:
    """Returns the error for a checkpoint that was removed under its reader, which is no damage."""
    return errors.NotFound(
        f"the checkpoint {tag} was removed while it was being read; open another one", reason="NO_CHECKPOINT", tag=tag
    )


def corrupt_file(tag: str, record: Any, why: str, reason: str = "CORRUPT_FILE", **details: Any) -> errors.Corrupt:
    """Returns the error for a damaged file of a checkpoint. record: its storage.FileRecord."""
    return errors.Corrupt(
        f"file {record.path} of checkpoint {tag} is corrupt: {why}",
        reason=reason,
        tag=tag,
        ranks=[record.rank],
        path=record.path,
        **details,
    )


def wrong_size(tag: str, record: Any, size: int) -> errors.Corrupt:
    """Returns the error for a file that has `size` bytes, which is not what was saved."""
    why = f"it has {size} bytes, but {record.size_bytes} were saved"
    return corrupt_file(tag, record, why, reason="SHORT_FILE")


def corrupt_chunk(tag: str, record: Any, chunk: int, chunk_bytes: int, found: int) -> errors.Corrupt:
    """Returns the error for a chunk whose CRC32C is `found`, which is not what was saved."""
    expected = record.chunk_crc32c[chunk]
    return corrupt_file(
        tag,
        record,
        f"chunk {chunk}, from byte {chunk * chunk_bytes} on, has CRC32C {found:#010x} and was saved with {expected:#010x}",
        chunk=chunk,
        expected=expected,
        found=found,
    )


class LocalFile(VerifiedFile):
    """A file that this process reads from the disk and verifies."""

    def __init__(self, tag: str, record: Any, chunk_bytes: int, descriptor: int, threads: int) -> None:
        """Takes ownership of the descriptor. errors.Corrupt if the file's size is wrong.

        record: the storage.FileRecord of the manifest.
        """
        super().__init__(record.size_bytes, chunk_bytes)
        self._tag = tag
        self._record = record
        self._descriptor = descriptor
        self._threads = threads
        self._expected = array("I", record.chunk_crc32c)
        size = os.fstat(descriptor).st_size
        if size != record.size_bytes:
            self.close()
            raise wrong_size(tag, record, size)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def scatter(self, pieces: Sequence[Tuple[int, int, int]], fresh: bool = False) -> None:
        """Reads in one pass, straight to where the bytes belong."""
        if pieces:
            self._read(native.Targets(*(array("Q", column) for column in zip(*pieces))), fresh)

    def _fetch(self, chunk: int, into: memoryview) -> None:
        address, keep = native.address_of(into)
        one = (array("Q", [value]) for value in (chunk * self._chunk_bytes, address, len(into)))
        self._read(native.Targets(*one))
        del keep

    def _read(self, targets: native.Targets, fresh: bool = False) -> None:
        before = self._read_bytes
        fault = native.read_verified(
            self._descriptor,
            self.size,
            self._chunk_bytes,
            self._expected,
            targets,
            self._threads,
            lambda done: self._advance(before + done - self._read_bytes),
            fresh,
            self.background,
        )
        if fault is None:
            return self._advance(before + sum(targets.lengths) - self._read_bytes)
        if fault.errno == errno.EBADMSG:
            raise corrupt_chunk(self._tag, self._record, fault.chunk, self._chunk_bytes, fault.found)
        if fault.errno == errno.ESTALE:  # On a network file system, which does not keep files for those who have them open.
            raise removed_while_read(self._tag)
        if fault.errno not in (errno.ENODATA, errno.EILSEQ):
            # EIO is no proof of damage: the whole disk may be failing, or only for a moment.
            raise OSError(fault.errno, os.strerror(fault.errno), self._record.path)
        why = "the file ends there, or the disk has lost the chunk" if fault.errno == errno.ENODATA else os.strerror(fault.errno)
        raise corrupt_file(self._tag, self._record, f"reading chunk {fault.chunk} failed: {why}", chunk=fault.chunk, errno=fault.errno)


class RemoteFile(VerifiedFile):
    """A file that the daemon reads and verifies, for a process that cannot open it."""

    def __init__(self, tag: str, path: str, size: int, session: Session, lease: str) -> None:
        super().__init__(size, _REMOTE_CHUNK)
        self._tag = tag
        self._path = path
        self._session = session
        self._lease = lease

    def scatter(self, pieces: Sequence[Tuple[int, int, int]], fresh: bool = False) -> None:
        """Reads only the pieces, not the whole chunks that the daemon verifies for them."""
        for at in range(0, len(pieces), _MAX_RANGES):
            some = pieces[at : at + _MAX_RANGES]
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
        """Fills the targets one after another."""
        left = sum(map(len, targets))
        waiting = iter(targets)
        into = memoryview(b"")
        for response in self._session.stream(
            self._session.checkpoints.ReadFile, request, _RPC_SECONDS + left / _SLOWEST_STREAM
        ):
            data = memoryview(response.data)[:left]
            left -= len(data)
            self._advance(len(data))
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
