"""A server of S3's protocol in memory, which costs as little as one in Python can: for measurements of its clients.

A thread serves each connection. A body goes from the socket straight into memory of a file, one copy without the
interpreter's lock, and back by sendfile. It checks no signature. It compares the CRC32C of objects up to 1 KiB alone:
reading each part once more would make the server the limit, and its clients compute their checksums all the same.

Its argument is its niceness. It prints its port. On a line "cpu" it prints the seconds of CPU that it has used, on "empty"
it forgets all objects. At the end of input it ends.
"""

from __future__ import annotations

import base64
import itertools
import mmap
import os
import socket
import sys
import threading
import urllib.parse
from typing import Dict, List, NamedTuple, Optional, Tuple
from xml.sax.saxutils import escape

_COMPARED_BYTES = 1 << 10
_HEADER_BYTES = 64 << 10
_STATUS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    400: "Bad Request",
    404: "Not Found",
    412: "Precondition Failed",
}


class Memory:
    """The bytes of an object or a part, in memory that has a descriptor. What is no longer used is used again: new memory
    would have to be zeroed first.
    """

    _free: Dict[int, List[Tuple[int, mmap.mmap]]] = {}  # By size.
    _lock = threading.Lock()

    def __init__(self, size: int) -> None:
        self.size = size
        with self._lock:
            free = self._free.get(size)
            self._made = free.pop() if free else self._make(size)
        self.descriptor = self._made[0]

    @staticmethod
    def _make(size: int) -> Tuple[int, mmap.mmap]:
        descriptor = os.memfd_create("object")
        os.ftruncate(descriptor, max(size, 1))
        return descriptor, mmap.mmap(descriptor, max(size, 1))

    @property
    def bytes(self) -> memoryview:
        return memoryview(self._made[1])

    def __del__(self) -> None:
        self._free.setdefault(self.size, []).append(
            self._made
        )  # Without the lock, which this thread may have.


class Upload(NamedTuple):
    key: str
    parts: Dict[int, Tuple[Memory, str]]  # With its checksum, by number.


class Request(NamedTuple):
    method: str
    key: str  # Without the bucket; empty: the bucket.
    query: Dict[str, str]
    headers: Dict[str, str]


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: Tuple[str, ...] = ()
    pieces: Tuple[
        Tuple[Memory, int, int], ...
    ] = ()  # (memory, begin, count) of a body that is not in `body`.
    length: Optional[int] = None  # Of the body of HEAD.


class Store:
    """Objects by key, and uploads by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: Dict[str, List[Memory]] = {}
        self._uploads: Dict[str, Upload] = {}
        self._ids = itertools.count(1)

    def empty(self) -> None:
        """Removes all objects and uploads."""
        with self._lock:
            self._objects, self._uploads = {}, {}

    def answer(self, request: Request, body: Memory) -> Answer:
        with self._lock:
            return getattr(self, f"_{request.method.lower()}")(request, body)  # type: ignore[no-any-return]

    def _put(self, request: Request, body: Memory) -> Answer:
        checksum = request.headers.get("x-amz-checksum-crc32c", "")
        if checksum and body.size <= _COMPARED_BYTES and checksum != _crc32c(body):
            return _error(400, "BadDigest")
        if "uploadId" in request.query:
            upload = self._uploads.get(request.query["uploadId"])
            if upload is None:
                return _error(404, "NoSuchUpload")
            upload.parts[int(request.query["partNumber"])] = (body, checksum)
        elif request.headers.get("if-none-match") == "*" and request.key in self._objects:
            return _error(412, "PreconditionFailed")
        elif request.key:
            self._objects[request.key] = [body]
        return Answer(200, headers=('ETag: "part"',))

    def _post(self, request: Request, body: Memory) -> Answer:
        if "uploads" in request.query:
            name = f"upload-{next(self._ids)}"
            self._uploads[name] = Upload(request.key, {})
            return _xml(
                "InitiateMultipartUploadResult",
                f"<Key>{escape(request.key)}</Key><UploadId>{name}</UploadId>",
            )
        upload = self._uploads.pop(request.query["uploadId"], None)
        if upload is None:
            return _error(404, "NoSuchUpload")
        self._objects[upload.key] = [memory for _, (memory, _) in sorted(upload.parts.items())]
        return _xml("CompleteMultipartUploadResult", f'<Key>{escape(request.key)}</Key><ETag>"whole"</ETag>')

    def _delete(self, request: Request, body: Memory) -> Answer:
        if "uploadId" in request.query:
            self._uploads.pop(request.query["uploadId"], None)
        else:
            self._objects.pop(request.key, None)
        return Answer(204)

    def _head(self, request: Request, body: Memory) -> Answer:
        found = self._objects.get(request.key)
        if found is None:
            return Answer(404)
        return Answer(200, headers=('ETag: "whole"',), length=sum(memory.size for memory in found))

    def _get(self, request: Request, body: Memory) -> Answer:
        if "uploads" in request.query:
            return self._list_uploads(request.query.get("prefix", ""))
        if "uploadId" in request.query:
            return self._list_parts(request.query["uploadId"])
        if not request.key:
            return self._list(request.query.get("prefix", ""), request.query.get("delimiter", ""))
        found = self._objects.get(request.key)
        return _error(404, "NoSuchKey") if found is None else _range(found, request.headers.get("range", ""))

    def _list(self, prefix: str, delimiter: str) -> Answer:
        """One page: there are few objects."""
        objects, folders = [], set()
        for key, found in sorted(self._objects.items()):
            if not key.startswith(prefix):
                continue
            head, separator, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if separator:
                folders.add(prefix + head + separator)
            else:
                size = sum(memory.size for memory in found)
                objects.append(f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size></Contents>")
        objects += [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        ]
        return _xml("ListBucketResult", "<IsTruncated>false</IsTruncated>" + "".join(objects))

    def _list_uploads(self, prefix: str) -> Answer:
        found = [
            (upload.key, name) for name, upload in self._uploads.items() if upload.key.startswith(prefix)
        ]
        words = [
            f"<Upload><Key>{escape(key)}</Key><UploadId>{name}</UploadId></Upload>"
            for key, name in sorted(found)
        ]
        return _xml("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>" + "".join(words))

    def _list_parts(self, name: str) -> Answer:
        if name not in self._uploads:
            return _error(404, "NoSuchUpload")
        words = [
            f'<Part><PartNumber>{number}</PartNumber><ETag>"part"</ETag><Size>{memory.size}</Size>'
            f"<ChecksumCRC32C>{checksum}</ChecksumCRC32C></Part>"
            for number, (memory, checksum) in sorted(self._uploads[name].parts.items())
        ]
        return _xml("ListPartsResult", "<IsTruncated>false</IsTruncated>" + "".join(words))


def _range(memories: List[Memory], text: str) -> Answer:
    """The bytes of a Range header; all without one."""
    size = sum(memory.size for memory in memories)
    begin, end = 0, size
    if text:
        first, _, last = text.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last) + 1 if last else size, size)
    pieces, at = [], 0
    for memory in memories:
        start, stop = max(begin - at, 0), min(end - at, memory.size)
        if start < stop:
            pieces.append((memory, start, stop - start))
        at += memory.size
    headers: Tuple[str, ...] = ('ETag: "whole"',)
    if text:
        headers += (f"Content-Range: bytes {begin}-{end - 1}/{size}",)
    return Answer(206 if text else 200, headers=headers, pieces=tuple(pieces), length=end - begin)


def _xml(name: str, words: str) -> Answer:
    return Answer(200, f'<?xml version="1.0" encoding="UTF-8"?><{name}>{words}</{name}>'.encode())


def _error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())


def _crc32c(memory: Memory) -> str:
    crc = 0xFFFFFFFF
    for byte in os.pread(memory.descriptor, memory.size, 0):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return base64.b64encode((crc ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


class Connection:
    """One client, until it ends."""

    def __init__(self, client: socket.socket, store: Store) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client = client
        self._store = store
        self._read = b""  # Received, and not used yet.

    def serve(self) -> None:
        try:
            while (request := self._request()) is not None:
                self._send(request, self._store.answer(request, self._body(request)))
        except (OSError, EOFError):
            pass  # The client has gone.
        finally:
            self._client.close()

    def _until(self, end: bytes) -> Optional[bytes]:
        """Receives up to a mark; None if the client has ended before it sent anything."""
        while end not in self._read:
            if len(self._read) > _HEADER_BYTES:
                raise EOFError("the header is too long")
            more = self._client.recv(_HEADER_BYTES)
            if not more:
                if self._read:
                    raise EOFError("the client has ended within a request")
                return None
            self._read += more
        found, _, self._read = self._read.partition(end)
        return found

    def _request(self) -> Optional[Request]:
        text = self._until(b"\r\n\r\n")
        if text is None:
            return None
        first, *lines = text.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        path, _, query = target.partition("?")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        key = urllib.parse.unquote(path).lstrip("/").partition("/")[2]
        return Request(method, key, dict(urllib.parse.parse_qsl(query, keep_blank_values=True)), headers)

    def _body(self, request: Request) -> Memory:
        headers = request.headers
        if headers.get("expect", "").lower() == "100-continue":
            self._client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "aws-chunked" in headers.get("content-encoding", ""):
            return self._chunks(int(headers["x-amz-decoded-content-length"]))
        memory = Memory(int(headers.get("content-length") or 0))
        self._fill(memory, 0, memory.size)
        return memory

    def _chunks(self, size: int) -> Memory:
        """A body with the sizes of its pieces in it, and a checksum after it."""
        memory, at = Memory(size), 0
        while True:
            count = int((self._until(b"\r\n") or b"0").partition(b";")[0], 16)
            if count == 0:
                while self._until(b"\r\n"):
                    pass  # The checksum.
                return memory
            self._fill(memory, at, count)
            at += count
            self._until(b"\r\n")

    def _fill(self, memory: Memory, at: int, count: int) -> None:
        with memory.bytes as whole, whole[at : at + count] as into:
            have = min(len(self._read), count)
            into[:have] = self._read[:have]
            self._read = self._read[have:]
            while have < count:
                with into[have:] as rest:
                    received = self._client.recv_into(rest)
                if received == 0:
                    raise EOFError("the client has ended within a body")
                have += received

    def _send(self, request: Request, answer: Answer) -> None:
        length = answer.length if answer.length is not None else len(answer.body)
        lines = [
            f"HTTP/1.1 {answer.status} {_STATUS[answer.status]}",
            f"Content-Length: {length}",
            *answer.headers,
        ]
        self._client.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + answer.body)
        for memory, begin, count in answer.pieces:
            while count:
                sent = os.sendfile(self._client.fileno(), memory.descriptor, begin, count)
                begin, count = begin + sent, count - sent


def main() -> None:
    os.nice(int(sys.argv[1]))
    store, listener = Store(), socket.create_server(("127.0.0.1", 0), backlog=256)

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=Connection(client, store).serve, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for word in sys.stdin:
        if word.strip() == "empty":
            store.empty()
        print(sum(os.times()[:2]), flush=True)


if __name__ == "__main__":
    main()
