"""The faults of the proxy are what fault_plan.py says: seen from a client, and from a server."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import threading
from typing import Iterator, List, Optional, Tuple

import pytest
from fault_plan import Fault, Rule, request_of
from fault_proxy import FaultProxy
from harness.waiting import TIMEOUT, until

BODY = bytes(range(200))
Answer = Optional[Tuple[int, bytes]]  # None: the connection has ended.


class Recorder(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    got: List[bytes]

    def do_PUT(self) -> None:
        self.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    Recorder.got = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    made = FaultProxy(f"http://127.0.0.1:{server.server_address[1]}")
    yield made
    made.end()
    server.shutdown()
    server.server_close()


def put(proxy: FaultProxy, key: str = "run/step_1/a.bin") -> Answer:
    connection = http.client.HTTPConnection(proxy.endpoint.partition("//")[2], timeout=TIMEOUT)
    with contextlib.closing(connection):
        try:
            connection.request("PUT", f"/bucket/{key}", BODY)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return None


def damaged(body: bytes) -> bytes:
    return body[:100] + bytes([body[100] ^ 0x10]) + body[101:]


@pytest.mark.parametrize(
    ("fault", "answer", "got"),
    [
        (Fault.REFUSE, None, []),
        (Fault.CUT_RESPONSE, None, [BODY]),
        (Fault.LOSE_RESPONSE, None, [BODY]),
        (Fault.DAMAGE_REQUEST, (200, BODY), [damaged(BODY)]),
        (Fault.DAMAGE_RESPONSE, (200, damaged(BODY)), [BODY]),
        (Fault.SHORTEN_RESPONSE, (200, BODY[:100]), [BODY]),
        (Fault.SLOW, (200, BODY), [BODY]),
        (Fault.TWICE, (200, BODY), [BODY, BODY]),
    ],
)
def test_fault_is_what_its_name_says(
    proxy: FaultProxy, fault: Fault, answer: Answer, got: List[bytes]
) -> None:
    proxy.plan(Rule(fault))
    assert put(proxy) == answer
    assert Recorder.got == got
    assert put(proxy) == (200, BODY), "the next request is served"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Fault.ERROR_500, 500, b"InternalError"),
        (Fault.SLOW_DOWN, 503, b"SlowDown"),
        (Fault.EXPIRED, 403, b"ExpiredToken"),
        (Fault.NO_BUCKET, 404, b"NoSuchBucket"),
    ],
)
def test_error_reaches_the_client_and_the_request_no_server(
    proxy: FaultProxy, fault: Fault, status: int, code: bytes
) -> None:
    proxy.plan(Rule(fault))
    answer = put(proxy)
    assert answer is not None and answer[0] == status and code in answer[1]
    assert Recorder.got == []


@pytest.mark.parametrize(("fault", "got"), [(Fault.FREEZE_BEFORE, []), (Fault.FREEZE_AFTER, [BODY])])
def test_nothing_reaches_the_server_while_it_is_frozen(
    proxy: FaultProxy, fault: Fault, got: List[bytes]
) -> None:
    proxy.plan(Rule(fault))
    answers: List[Answer] = []
    clients = [threading.Thread(target=lambda: answers.append(put(proxy))) for _ in range(2)]
    clients[0].start()
    until(proxy.frozen.is_set, "the freeze")
    clients[1].start()
    proxy.thaw()
    for client in clients:
        client.join(TIMEOUT)
    assert None in answers and Recorder.got[: len(got)] == got
    assert put(proxy) == (200, BODY)


def test_rule_meets_the_requests_that_it_counts(proxy: FaultProxy) -> None:
    proxy.plan(Rule(Fault.ERROR_500, "PUT file", nth=2, times=2, within="step_1/"))
    keys = ["run/step_1/a", "run/step_2/a", "run/step_1/.ckptd/manifest", *["run/step_1/a"] * 3]
    statuses = [answer[0] for answer in map(lambda key: put(proxy, key), keys) if answer]
    assert statuses == [200, 200, 200, 500, 500, 200]
    assert [request.kind for request in proxy.met] == ["PUT file", "PUT file"]


@pytest.mark.parametrize(
    ("method", "target", "kind", "key"),
    [
        ("GET", "/bucket/?list-type=2&prefix=run%2Fstep_1%2F", "GET list", "run/step_1/"),
        ("GET", "/bucket/?prefix=run&uploads=", "GET uploads", "run"),
        ("POST", "/bucket/run/step_1/a%20b?uploads=", "POST begin", "run/step_1/a b"),
        ("PUT", "/bucket/run/a?partNumber=1&uploadId=x", "PUT part", "run/a"),
        ("POST", "/bucket/run/a?uploadId=x", "POST complete", "run/a"),
        ("DELETE", "/bucket/run/a?uploadId=x", "DELETE abort", "run/a"),
        ("PUT", "/bucket/run/s/.ckptd/manifest", "PUT manifest", "run/s/.ckptd/manifest"),
        ("HEAD", "/bucket/run/s/.ckptd/manifest.new", "HEAD claim", "run/s/.ckptd/manifest.new"),
        ("PUT", "/bucket/run/.ckptd/index/s%21AA", "PUT name", "run/.ckptd/index/s!AA"),
        ("GET", "/bucket/run/s/.ckptd/part-00000", "GET record", "run/s/.ckptd/part-00000"),
        ("GET", "/bucket/run/s/a", "GET file", "run/s/a"),
    ],
)
def test_request_has_its_kind(method: str, target: str, kind: str, key: str) -> None:
    request = request_of(method, target)
    assert (request.kind, request.key) == (kind, key)
