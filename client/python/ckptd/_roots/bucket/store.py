"""Reads of one bucket, each tried again until it has succeeded or its time has passed. Imported when botocore is there."""

import random
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Tuple, TypeVar

from ckptd import errors
from ckptd._roots import parallel
from ckptd._roots.bucket.faults import RAISED, Fault, fault_of

# As storage/object/s3_store.cc.
_LIMIT_SECONDS = 60.0  # For one read with all of its tries. No try begins after it.
_LEAST_BYTES_PER_SECOND = 16 << 10  # A try may take longer by what its bytes need on the slowest link of use.
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
_PIECE = 64 << 10  # Between two looks at the clock.

_Result = TypeVar("_Result")


class ObjectInfo(NamedTuple):
    """What a listing says of an object."""

    size: int
    modified_ns: int  # Since the epoch, by the server's clock.
    etag: str  # Another one when the object is replaced.


class ShortObject(Exception):
    """The object ends before the range that was to be read."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Store:
    """Thread-safe. Calls block, and raise:

    - errors.NotFound: NO_OBJECT, NO_BUCKET.
    - errors.Unavailable: no success in time (STORE_TIMEOUT).
    - errors.Refused: STORE_DENIED, STORE_REFUSED, NO_CREDENTIALS.
    """

    def __init__(self, client: Any, bucket: str) -> None:
        """client: make_client()."""
        self._client = client
        self._bucket = bucket

    def read(self, key: str, offset: int, into: memoryview, etag: str = "") -> int:
        """Fills `into` from an object. Returns the size of the object. ShortObject: it ends before.

        etag: of an ObjectInfo; errors.Refused, STORE_REFUSED, if the object was replaced since. Empty: any.
        """
        size = self._read(key, f"bytes={offset}-{offset + len(into) - 1}", lambda _: into, etag)[1]
        if size < offset + len(into):
            raise ShortObject(size)
        return size

    def read_start(self, key: str, most: int) -> Tuple[bytes, int]:
        """Returns at most `most` bytes from the beginning of an object, and its size."""
        try:
            data, size = self._read(key, f"bytes=0-{most - 1}", lambda length: memoryview(bytearray(length)))
        except ShortObject as short:  # It is empty.
            return b"", short.size
        return bytes(data), size

    def read_all(self, key: str, most: int) -> bytes:
        """Returns an object; its first bytes alone if it has more than `most`, which nobody needs whole."""
        data, _ = self._read(key, "", lambda length: memoryview(bytearray(min(length, most))))
        return bytes(data)

    def size(self, key: str) -> int:
        """Returns the size of an object. By a GET: only its answer says whether the object is missing, or the bucket."""
        return self._read(key, "", lambda _: memoryview(b""))[1]

    def folders(self, prefix: str) -> List[str]:
        """Returns what follows `prefix`, up to the next slash, in the keys that have one there."""
        return self.entries(prefix)[1]

    def names(self, prefix: str) -> List[str]:
        """Returns what follows `prefix` in the keys that begin with it."""
        return [found["Key"][len(prefix) :] for page in self._pages(prefix) for found in page.get("Contents", [])]

    def objects(self, prefix: str) -> Dict[str, ObjectInfo]:
        """Returns all objects whose keys begin with `prefix`, by what follows it."""
        return _infos(self._pages(prefix), prefix)

    def entries(self, prefix: str) -> Tuple[Dict[str, ObjectInfo], List[str]]:
        """Returns the objects beneath a prefix that have no slash behind it, and folders()."""
        pages = list(self._pages(prefix, Delimiter="/"))
        folders = [folder["Prefix"][len(prefix) : -1] for page in pages for folder in page.get("CommonPrefixes", [])]
        return _infos(pages, prefix), folders

    def _pages(self, prefix: str, **more: str) -> Iterator[Any]:
        arguments = {"Bucket": self._bucket, "Prefix": prefix, **more}
        while True:
            page = self._do(f"LIST s3://{self._bucket}/{prefix}", lambda _: self._client.list_objects_v2(**arguments))
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def _read(self, key: str, span: str, target: "Callable[[int], memoryview]", etag: str = "") -> Tuple[memoryview, int]:
        """Reads an object, or a span of it.

        Args:
            span: as in HTTP's header Range; empty: the whole object.
            target: returns where to put the bytes; its argument is how many come.
        """
        what = f"GET s3://{self._bucket}/{key}"

        def read(deadline: float) -> Tuple[memoryview, int]:
            options = {**({"Range": span} if span else {}), **({"IfMatch": etag} if etag else {})}
            answer = self._client.get_object(Bucket=self._bucket, Key=key, **options)
            body = answer["Body"]
            try:
                length = answer.get("ContentLength")
                size = _size_of(answer) if span else length
                if length is None or size is None:
                    raise errors.Refused(f"{what}: the answer has not the range, or not its size", reason="STORE_REFUSED")
                into = target(length)
                if length < len(into):
                    raise ShortObject(size)
                _fill(into, body, deadline + len(into) / _LEAST_BYTES_PER_SECOND)
                return into, size
            finally:
                body.close()

        try:
            return self._do(what, read)
        except errors.CkptdError as error:
            if error.reason == "SHORT_OBJECT":
                raise ShortObject(self.size(key)) from error  # It has no byte of the span.
            raise

    def _do(self, what: str, once: "Callable[[float], _Result]") -> _Result:
        """Calls once(deadline) until it succeeds."""
        deadline = time.monotonic() + _LIMIT_SECONDS
        tries = 0
        while True:
            parallel.check()
            tries += 1
            try:
                return once(deadline)
            except RAISED as raised:
                fault = fault_of(raised, what)
                self._wait(what, fault, tries, deadline)

    def _wait(self, what: str, fault: Fault, tries: int, deadline: float) -> None:
        """Waits before the next try. Raises if there is none."""
        if tries >= fault.most_tries:
            raise fault.error
        longest = min(_FIRST_DELAY * 2 ** min(tries - 1, 10), _LONGEST_DELAY)
        delay = fault.retry_after or random.uniform(longest / 2, longest)
        if time.monotonic() + delay >= deadline:
            raise errors.make(
                "DEADLINE_EXCEEDED",
                "STORE_TIMEOUT",
                f"{what}: no success within {_LIMIT_SECONDS:g} s and {tries} {'try' if tries == 1 else 'tries'}; "
                f"the last one: {fault.error}",
            ) from fault.error
        parallel.pause(delay)


def _infos(pages: "Iterable[Any]", prefix: str) -> Dict[str, ObjectInfo]:
    return {
        found["Key"][len(prefix) :]: ObjectInfo(found["Size"], int(found["LastModified"].timestamp() * 1e9), found["ETag"])
        for page in pages
        for found in page.get("Contents", [])
    }


def _fill(into: memoryview, body: Any, deadline: float) -> None:
    done = 0
    while done < len(into):
        parallel.check()
        count = body.readinto(into[done : done + _PIECE])
        if count == 0:
            raise OSError(f"the answer was cut off after {done} bytes of {len(into)}")
        done += count
        if time.monotonic() > deadline:
            raise OSError(f"only {done} bytes of {len(into)} have come in time")


def _size_of(answer: Any) -> Any:
    """Returns the size of an object of which a range was answered; None if the whole object was."""
    size = answer.get("ContentRange", "").rpartition("/")[2]
    return int(size) if size.isdigit() else None
