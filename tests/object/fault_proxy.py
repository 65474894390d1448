"""An HTTP proxy before a server of S3 that lets chosen requests meet faults (fault_plan.py).

Requests reach the server with the headers that the client has signed, Host among them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import socket
import struct
import threading
import time
from typing import List, Optional, Tuple
from urllib.parse import urlsplit

from fault_plan import Fault, Request, Rule, request_of
from harness.waiting import TIMEOUT

# Status, code of the error, and headers of the answers that do not come from the server.
ANSWERS = {
    Fault.ERROR_500: (500, "InternalError", []),
    Fault.ERROR_503: (503, "ServiceUnavailable", []),
    Fault.SLOW_DOWN: (503, "SlowDown", [("Retry-After", "1")]),
    Fault.WAIT_LONG: (503, "SlowDown", [("Retry-After", "50")]),
    Fault.EXPIRED: (403, "ExpiredToken", []),
    Fault.EXPIRED_400: (400, "ExpiredToken", []),
    Fault.NO_BUCKET: (404, "NoSuchBucket", []),
}
SLOW_PIECES = 8
SLOW_PAUSE_SECONDS = 0.05


@dataclasses.dataclass
class Answer:
    status: int
    headers: List[Tuple[str, str]]  # Without Content-Length.
    body: bytes
    length: Optional[int] = None  # Of the answer to HEAD, which has no body.


class FaultProxy:
    """endpoint: its own URL. met: the requests that have met a fault. seen: all requests since the plan was made."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        assert parts.hostname is not None and parts.port is not None
        self.server = (parts.hostname, parts.port)
        self._lock = threading.Lock()
        self._rules: List[Rule] = []
        self.met: List[Request] = []
        self.seen: List[Request] = []
        # The request of FREEZE_BEFORE or FREEZE_AFTER is as far as it will come.
        self.frozen = threading.Event()
        self._is_frozen = False
        self._thawed = threading.Event()
        self._ended = threading.Event()
        self._http = _Listener(("127.0.0.1", 0), _Exchange)
        self._http.proxy = self
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def plan(self, *rules: Rule) -> None:
        """From now on these rules hold, and no others. The first that matches a request decides."""
        with self._lock:
            self._rules, self.met, self.seen = list(rules), [], []

    def thaw(self) -> None:
        """Ends the connections of requests that are frozen, and serves again, without a plan."""
        with self._lock:
            self._rules, self._is_frozen = [], False
            self.frozen.clear()
            thawed, self._thawed = self._thawed, threading.Event()
        thawed.set()

    def end(self) -> None:
        self._ended.set()
        self.thaw()
        self._http.shutdown()
        self._http.server_close()

    def fault_of(self, request: Request) -> Optional[Fault]:
        with self._lock:
            if self._is_frozen:
                return Fault.FREEZE_BEFORE
            self.seen.append(request)
            for rule in self._rules:
                if rule.meets(request):
                    self.met.append(request)
                    self._is_frozen = rule.fault in (Fault.FREEZE_BEFORE, Fault.FREEZE_AFTER)
                    return rule.fault
            return None

    def wait_for_thaw(self) -> None:
        with self._lock:
            if not self._is_frozen:
                return
            self.frozen.set()
            thawed = self._thawed
        thawed.wait(5 * TIMEOUT)

    def wait_for_end(self) -> None:
        self._ended.wait(5 * TIMEOUT)


class _Listener(http.server.ThreadingHTTPServer):
    proxy: FaultProxy
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are killed end their connections."""


class _Exchange(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def log_message(self, *arguments: object) -> None:
        pass

    def _serve(self) -> None:
        proxy = self.server.proxy
        fault = proxy.fault_of(request_of(self.command, self.path))
        size = int(self.headers.get("Content-Length") or 0)
        if fault is Fault.HANG:
            proxy.wait_for_end()
        if fault is Fault.FREEZE_BEFORE:
            proxy.wait_for_thaw()
        if fault in (Fault.REFUSE, Fault.HANG, Fault.FREEZE_BEFORE):
            return self._cut()
        if fault is Fault.CUT_REQUEST:
            self._send_half(self.rfile.read(size // 2))
            return self._cut()
        body = self._read_slowly(size) if fault is Fault.SLOW else self.rfile.read(size)
        if fault in ANSWERS:
            return self._answer(self._error(fault))
        if fault is Fault.DAMAGE_REQUEST:
            body = _damaged(body)
        answer = self._ask(body)
        if fault is Fault.TWICE:
            answer = self._ask(body)
        if fault is Fault.FREEZE_AFTER:
            proxy.wait_for_thaw()
        if fault in (Fault.LOSE_RESPONSE, Fault.FREEZE_AFTER):
            return self._cut()
        self._answer(answer, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - names of http.server

    def _read_slowly(self, size: int) -> bytes:
        pieces = []
        for piece in range(SLOW_PIECES):
            pieces.append(self.rfile.read(size * (piece + 1) // SLOW_PIECES - size * piece // SLOW_PIECES))
            time.sleep(SLOW_PAUSE_SECONDS)
        return b"".join(pieces)

    def _begin(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*self.server.proxy.server, timeout=5 * TIMEOUT)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection"):
                connection.putheader(name, value)
        connection.endheaders()
        return connection

    def _send_half(self, body: bytes) -> None:
        connection = self._begin()
        connection.send(body)
        connection.close()

    def _ask(self, body: bytes) -> Answer:
        connection = self._begin()
        if body:
            connection.send(body)
        response = connection.getresponse()
        length = response.getheader("Content-Length")
        answer = Answer(
            response.status,
            [
                (name, value)
                for name, value in response.getheaders()
                if name.lower() not in ("content-length", "transfer-encoding", "connection")
            ],
            response.read(),
            int(length) if length is not None and self.command == "HEAD" else None,
        )
        connection.close()
        return answer

    def _error(self, fault: Fault) -> Answer:
        status, code, headers = ANSWERS[fault]
        body = f"<Error><Code>{code}</Code><Message>by the test's plan</Message></Error>".encode()
        if self.command == "HEAD":
            return Answer(status, headers, b"", len(body))
        return Answer(status, [("Content-Type", "application/xml"), *headers], body)

    def _answer(self, answer: Answer, fault: Optional[Fault] = None) -> None:
        body = answer.body
        if fault is Fault.DAMAGE_RESPONSE:
            body = _damaged(body)
        if fault is Fault.SHORTEN_RESPONSE:
            body = body[: len(body) // 2]
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(body) if answer.length is None else answer.length))
        self.end_headers()
        if fault is Fault.CUT_RESPONSE:
            self.wfile.write(body[: len(body) // 2])
            return self._cut()
        for piece in range(SLOW_PIECES if fault is Fault.SLOW else 0):
            self.wfile.write(body[len(body) * piece // SLOW_PIECES : len(body) * (piece + 1) // SLOW_PIECES])
            time.sleep(SLOW_PAUSE_SECONDS)
        if fault is not Fault.SLOW:
            self.wfile.write(body)

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)


def _damaged(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 0x10]) + body[middle + 1 :] if body else body
