"""What lies beneath a prefix of a bucket, whoever has put it there. Nothing is verified."""

import contextlib
import io
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ckptd import errors
from ckptd._bucket_url import parse_bucket_url
from ckptd._roots.bucket.client import CONNECTIONS, make_client
from ckptd._roots.parallel import in_parallel

_PART_BYTES = 16 << 20


class Objects:
    """The objects beneath a prefix, by their names beneath it. Thread-safe. Calls raise as those of Store."""

    def __init__(self, url: str) -> None:
        """Asks no server. Raises as parse_bucket_url() and make_client()."""
        parsed = parse_bucket_url(url)
        client = make_client(parsed.bucket)
        from ckptd._roots.bucket.store import Store

        self._base = f"{parsed.prefix}/" if parsed.prefix else ""
        self._store = Store(client, parsed.bucket)

    def entries(self, folder: str = "") -> Tuple[Dict[str, Any], List[str]]:
        """Returns the objects (name: ObjectInfo) and the folders that are straight in a folder; empty: the prefix itself."""
        return self._store.entries(self._beneath(folder))

    def beneath(self, folder: str) -> Dict[str, Any]:
        """Returns the ObjectInfo of each object in a folder and in those below it, by its name in the folder."""
        return self._store.objects(self._beneath(folder))

    @contextlib.contextmanager
    def open(self, name: str, info: Any) -> Iterator[Any]:
        """Opens an object as it was when it was listed. errors.Refused: it was replaced since.

        torch hides the errors of its file behind its own; this raises the file's error instead.
        """
        file = _ObjectFile(self._store, self._base + name, info)
        try:
            yield io.BufferedReader(file, _PART_BYTES)
        except Exception:
            if file.fault is not None:
                raise file.fault from None
            raise

    def _beneath(self, folder: str) -> str:
        return f"{self._base}{folder}/" if folder else self._base


class _ObjectFile(io.RawIOBase):
    """An object that is read by ranges, several at a time; a small one at once."""

    def __init__(self, store: Any, key: str, info: Any) -> None:
        self.fault: Optional[errors.CkptdError] = None  # Why a read has failed.
        self._store = store
        self._key = key
        self._info = info
        self._at = 0
        self._whole: Optional[memoryview] = None  # Of a small object.

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size}[whence]
        if at < 0:
            raise ValueError(f"a seek to {at}, before the beginning of the file")
        self._at = at
        return int(at)

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        count: int = max(0, min(len(view), self._info.size - self._at))
        try:
            self._read(self._at, view[:count])
        except errors.CkptdError as error:
            self.fault = error
            raise
        self._at += count
        return count

    def _read(self, begin: int, view: memoryview) -> None:
        if self._info.size > _PART_BYTES:
            return self._fetch(begin, view)
        if self._whole is None:
            self._whole = memoryview(bytearray(self._info.size))
            self._fetch(0, self._whole)
        view[:] = self._whole[begin : begin + len(view)]

    def _fetch(self, begin: int, view: memoryview) -> None:
        def read(offset: int) -> None:
            piece = view[offset : offset + _PART_BYTES]
            self._store.read(self._key, begin + offset, piece, self._info.etag)

        in_parallel(range(0, len(view), _PART_BYTES), read, CONNECTIONS)
