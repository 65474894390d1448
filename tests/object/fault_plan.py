"""Which request meets which fault (fault_proxy.py)."""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
from typing import Dict, Optional
from urllib.parse import parse_qs, unquote, urlsplit

MANIFEST = ".ckptd/manifest"
INDEX = ".ckptd/index/"
# Objects of one checkpoint that have a name of their own, by the end of their keys.
NAMED = {
    MANIFEST: "manifest",
    MANIFEST + ".new": "claim",
    MANIFEST + ".probe": "probe",
    ".ckptd/by-daemon": "marker",
}


class Fault(enum.Enum):
    REFUSE = "the connection ends before the server has the request"
    CUT_REQUEST = "the connection ends when the server has half of the body"
    CUT_RESPONSE = "the connection ends when the client has half of the body of the answer"
    LOSE_RESPONSE = "the server carries the request out, and the connection ends without an answer"
    ERROR_500 = "500 InternalError"
    ERROR_503 = "503 ServiceUnavailable"
    SLOW_DOWN = "503 SlowDown, with Retry-After: 1"
    WAIT_LONG = "503 SlowDown, with Retry-After: 50"
    EXPIRED = "403 ExpiredToken"
    EXPIRED_400 = "400 ExpiredToken, as AWS answers"
    NO_BUCKET = "404 NoSuchBucket"
    SLOW = "the bodies of request and answer arrive in pieces, with pauses"
    HANG = "nothing happens, and the connection stays"
    DAMAGE_REQUEST = "a byte of the body that the server gets is wrong"
    DAMAGE_RESPONSE = "a byte of the body that the client gets is wrong"
    SHORTEN_RESPONSE = "the answer has half of its body, and the Content-Length of that half"
    TWICE = "the server gets the request twice; the client gets the second answer"
    FREEZE_BEFORE = "nothing reaches the server from now on, until thaw()"
    FREEZE_AFTER = "the server carries the request out, and nothing else, until thaw(); no answer arrives"


# Of one request. A client that tries again gets over these, and its caller does not notice.
PASSING = [
    fault
    for fault in Fault
    if fault.name not in ("FREEZE_BEFORE", "FREEZE_AFTER", "HANG", "WAIT_LONG", "NO_BUCKET")
]


def can_meet(fault: Fault, kind: str) -> bool:
    """Whether such a request has the body that the fault is about, and the fault can be found."""
    method, what = kind.split(" ")
    if fault in (Fault.CUT_REQUEST, Fault.DAMAGE_REQUEST):
        return kind in ("PUT claim", "PUT manifest", "PUT part", "PUT file", "PUT record", "POST complete")
    if fault is Fault.DAMAGE_RESPONSE:  # Lists have no checksum: only TLS protects them.
        return kind in ("GET claim", "GET manifest", "GET file", "GET record")
    if fault in (Fault.CUT_RESPONSE, Fault.SHORTEN_RESPONSE):
        return method == "GET" or kind in ("POST begin", "POST complete")
    return True


@dataclasses.dataclass(frozen=True)
class Request:
    """kind: the method, and what it is about: list, uploads, parts; begin, part, complete, abort of a multipart upload;
    manifest (the commit), name (in the index), claim, probe, marker, record, file.
    """

    kind: str
    key: str  # Without the bucket; the prefix of a list.

    def __str__(self) -> str:
        return f"{self.kind} ({self.key})"


def request_of(method: str, target: str) -> Request:
    """`target` as in the request's line, with the bucket as the path's first part."""
    parts = urlsplit(target)
    query: Dict[str, str] = {
        name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()
    }
    key = unquote(parts.path).lstrip("/").partition("/")[2]
    if not key:
        return Request(f"{method} {'uploads' if 'uploads' in query else 'list'}", query.get("prefix", ""))
    if "uploads" in query:
        return Request(f"{method} begin", key)
    if "uploadId" in query:
        what = {"PUT": "part", "POST": "complete", "DELETE": "abort", "GET": "parts"}[method]
        return Request(f"{method} {what}", key)
    if INDEX in key:
        return Request(f"{method} name", key)
    for end, name in NAMED.items():
        if key.endswith("/" + end):
            return Request(f"{method} {name}", key)
    return Request(f"{method} {'record' if '/.ckptd/' in key else 'file'}", key)


class Rule:
    """The fault that the requests `nth` to `nth + times - 1` meet, of those that match; times=0: all from `nth` on."""

    def __init__(self, fault: Fault, kind: str = "*", nth: int = 1, times: int = 1, within: str = "") -> None:
        """`kind` is a pattern of Request.kind, and `within` is a part of the key."""
        self.fault = fault
        self._kind, self._within = kind, within
        self._first = nth
        self._end: Optional[int] = nth + times if times else None
        self._count = 0

    def meets(self, request: Request) -> bool:
        """Counts the request if it matches."""
        if not fnmatch.fnmatchcase(request.kind, self._kind) or self._within not in request.key:
            return False
        self._count += 1
        return self._first <= self._count and (self._end is None or self._count < self._end)
