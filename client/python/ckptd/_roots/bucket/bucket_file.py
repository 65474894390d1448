"""A file of a checkpoint in a bucket."""

import ctypes
from typing import Any, Callable, List, Optional, Sequence

from ckptd import errors
from ckptd._memory.native import address_of, crc32c
from ckptd._reading.verified_file import VerifiedFile, corrupt_chunk, corrupt_file, wrong_size
from ckptd._roots.bucket.client import CONNECTIONS
from ckptd._roots.bucket.parts import Part, Piece, parts_of
from ckptd._roots.bucket.store import ShortObject, Store
from ckptd._roots.parallel import in_parallel

_PART_BYTES = 16 << 20
_TRIES = 3  # For bytes that arrive damaged.


class BucketFile(VerifiedFile):
    """A file that this process reads from a bucket, by several requests at a time, and verifies."""

    def __init__(
        self, store: Store, key: str, tag: str, record: Any, chunk_bytes: int, explain: "Callable[[errors.Corrupt], errors.CkptdError]"
    ) -> None:
        """
        Args:
            record: the storage.FileRecord of the manifest.
            explain: returns the error to raise for damage that was found; another one if the checkpoint was removed.
        """
        super().__init__(record.size_bytes, chunk_bytes)
        self._store = store
        self._key = key
        self._tag = tag
        self._record = record
        self._explain = explain
        self._buffers: List[bytearray] = []  # Of parts, to be used again.
        if record.size_bytes == 0:  # No read would find it missing.
            self._check_size(self._found(lambda: store.size(key)))

    def scatter(self, pieces: "Sequence[Piece]", fresh: bool = False) -> None:
        """Reads the chunks that the pieces touch, straight to where the bytes belong if a piece has all of a part."""
        parts = list(parts_of([piece for piece in pieces if piece[2] > 0], self.size, self._chunk_bytes, _PART_BYTES))
        try:
            in_parallel(parts, self._read_part, CONNECTIONS, self._advance)
        except errors.CkptdError as error:
            self.fault = error
            raise

    def _fetch(self, chunk: int, into: memoryview) -> None:
        address, keep = address_of(into)
        self.scatter([(chunk * self._chunk_bytes, address, len(into))])
        del keep

    def _read_part(self, part: Part) -> int:
        """Returns how many bytes of it were wanted."""
        if part.is_wanted_whole:
            self._read_verified(part, _memory_at(part.pieces[0][1], part.size))
            return part.size
        buffer = self._take_buffer(part.size)
        data = memoryview(buffer)[: part.size]
        self._read_verified(part, data)
        for offset, address, size in part.pieces:
            _memory_at(address, size)[:] = data[offset - part.offset : offset - part.offset + size]
        self._buffers.append(buffer)
        return sum(size for _, _, size in part.pieces)

    def _take_buffer(self, size: int) -> bytearray:
        try:
            buffer = self._buffers.pop()
        except IndexError:
            return bytearray(size)
        return buffer if len(buffer) >= size else bytearray(size)

    def _read_verified(self, part: Part, into: memoryview) -> None:
        damage: Optional[errors.Corrupt] = None
        for _ in range(_TRIES):
            self._check_size(self._found(lambda: self._store.read(self._key, part.offset, into)))
            damage = self._damage_in(part.offset, into)
            if damage is None:
                return
        assert damage is not None
        raise self._explain(damage)

    def _damage_in(self, offset: int, data: memoryview) -> Optional[errors.Corrupt]:
        """Returns the error for the first chunk that is not what was saved; None if there is none."""
        for at in range(0, len(data), self._chunk_bytes):
            chunk = (offset + at) // self._chunk_bytes
            found = crc32c(data[at : at + self._chunk_bytes])
            if found != self._record.chunk_crc32c[chunk]:
                return corrupt_chunk(self._tag, self._record, chunk, self._chunk_bytes, found)
        return None

    def _found(self, read: "Callable[[], int]") -> int:
        """Returns the size of the object, which read() returns. Raises if it is missing or too short."""
        try:
            return read()
        except ShortObject as short:
            return short.size
        except errors.NotFound as error:
            if error.reason != "NO_OBJECT":
                raise
            raise self._explain(corrupt_file(self._tag, self._record, f"it is not in the bucket ({error})")) from error

    def _check_size(self, size: int) -> None:
        if size != self.size:
            raise self._explain(wrong_size(self._tag, self._record, size))


def _memory_at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
