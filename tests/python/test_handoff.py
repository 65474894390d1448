"""The hand-off socket, seen by the client: descriptors, deadlines, and daemons that do not keep to the
protocol.
"""

from __future__ import annotations

import array
import concurrent.futures
import contextlib
import fcntl
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Iterator, List, Tuple

import ckptd
import pytest
from ckptd._session.handoff import Handoff
from ckptd._session.peer import check_server
from ckptd._wire.protocol import handoff

Answers = Callable[[Any], List[Tuple[bytes, List[int]]]]


class Peer:
    """A peer that answers each request with the packets that `answers` returns, each with descriptors."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.answers: Answers = lambda request: []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(4)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            self.connection, _ = self.listener.accept()
        except OSError:
            return  # The test has not connected.
        while True:
            frame = self.connection.recv(65536)
            if not frame:
                return
            for answer, descriptors in self.answers(handoff.HandoffRequest.FromString(frame)):
                rights = (
                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                    if descriptors
                    else []
                )
                self.connection.sendmsg([answer], rights)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        made = Peer(f"{folder}/s")
        yield made
        made.listener.close()


@pytest.fixture
def client(peer: Peer) -> Iterator[Handoff]:
    made = Handoff(peer.path)
    yield made
    made.close()


@pytest.fixture
def sent() -> Iterator[int]:
    """A file whose descriptor the peer sends."""
    file = os.memfd_create("sent")
    yield file
    os.close(file)


def copies_of(file: int) -> int:
    """Of the descriptors of this process: those of that file. What other threads open and close does not count."""
    copies = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            copies += os.path.sameopenfile(int(name), file)
    return copies


def with_segments(request: Any, descriptors: List[int], ids: Any = None) -> Tuple[bytes, List[int]]:
    answer = handoff.HandoffResponse(id=request.id)
    for i in request.fetch_segments.ids if ids is None else ids:
        answer.fetch_segments.segments.add(id=i, size_bytes=4096 * i)
    answer.fetch_segments.SetInParent()
    return answer.SerializeToString(), descriptors


def test_descriptors_come_in_order_closed_on_exec_and_in_packets_of_64(peer: Peer, client: Handoff) -> None:
    files = [os.memfd_create(f"f{i}") for i in range(150)]
    for i, file in enumerate(files):
        os.write(file, b"%d" % i)
    asked: List[int] = []

    def answers(request: Any) -> List[Tuple[bytes, List[int]]]:
        asked.append(len(request.fetch_segments.ids))
        return [with_segments(request, [files[i] for i in request.fetch_segments.ids])]

    peer.answers = answers
    fetched = client.fetch_segments(range(150), 10)
    assert asked == [64, 64, 22]
    for i, (segment, size, descriptor) in enumerate(fetched):
        assert (segment, size, os.pread(descriptor, 10, 0)) == (i, 4096 * i, b"%d" % i)
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        os.close(descriptor)
    for file in files:
        os.close(file)


@pytest.mark.parametrize("ids, count", [([1, 2], 1), ([1, 2], 3), ([2, 1], 2), ([1], 2), ([], 0)])
def test_an_answer_with_other_segments_than_were_asked_for_leaks_nothing(
    peer: Peer, client: Handoff, sent: int, ids: List[int], count: int
) -> None:
    peer.answers = lambda request: [with_segments(request, [sent] * count, ids)]
    with pytest.raises(ckptd.Unavailable, match="was asked for 2 segments"):
        client.fetch_segments([1, 2], 10)
    assert copies_of(sent) == 1


def test_a_refusal_has_its_class_and_reason(peer: Peer, client: Handoff) -> None:
    error = handoff.HandoffError(code=9, reason="ROOT_LOCKED", message="another daemon has it")
    peer.answers = lambda request: [
        (handoff.HandoffResponse(id=request.id, error=error).SerializeToString(), [])
    ]
    with pytest.raises(ckptd.Refused, match="another daemon has it") as caught:
        client.attach_root(0, "/x", 10)
    assert caught.value.reason == "ROOT_LOCKED"


def test_request_times_out_and_its_late_answer_is_dropped(
    peer: Peer, client: Handoff, sent: int
) -> None:
    late: List[Any] = []
    peer.answers = lambda request: [with_segments(request, [])]
    client._ask(handoff.HandoffRequest(), (), 10)  # Now the connection is open on both sides.
    peer.answers = lambda request: late.append(request) or []
    started = time.monotonic()
    with pytest.raises(ckptd.Unavailable, match="did not answer in time"):
        client.fetch_segments([7], 0.2)
    assert 0.1 < time.monotonic() - started < 5
    peer.answers = lambda request: [with_segments(late[0], [sent]), with_segments(request, [sent])]
    fetched = client.fetch_segments([8], 10)
    assert [segment for segment, _, _ in fetched] == [8]
    os.close(fetched[0][2])
    assert copies_of(sent) == 1


def test_end_of_the_connection_is_noticed_at_once(peer: Peer, client: Handoff) -> None:
    peer.answers = lambda request: [with_segments(request, [0])]
    os.close(client.fetch_segments([1], 10)[0][2])
    assert client.alive()
    peer.connection.shutdown(socket.SHUT_RDWR)
    assert not client.alive()
    with pytest.raises(ckptd.Unavailable):
        client.fetch_segments([1], 10)
    client.goodbye(1)
    assert not client.alive()


def test_garbage_file_is_an_error_and_no_crash(peer: Peer, client: Handoff, sent: int) -> None:
    peer.answers = lambda request: [(b"\xff" * 100, [sent])]
    with pytest.raises(ckptd.Unavailable):
        client.attach_root(0, "/x", 5)
    assert copies_of(sent) == 1


def test_pid_is_that_of_the_daemon(peer: Peer, client: Handoff) -> None:
    assert client.daemon_pid() == os.getpid()


def test_connecting_to_a_missing_socket_is_an_oserror(tmp_path: pathlib.Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        with pytest.raises(OSError):
            Handoff(str(tmp_path / "none"))
    # Other threads of this process open and close some, too.
    assert len(os.listdir("/proc/self/fd")) < before + 50


def test_connection_that_another_thread_closes_meanwhile_is_unavailable(peer: Peer) -> None:
    client = Handoff(peer.path)
    client.close()
    with pytest.raises(ckptd.Unavailable):
        client.attach_root(0, "/tmp", 5.0)


def test_close_ends_the_wait_of_another_thread_though_its_descriptor_number_is_free_for_another_file(
    peer: Peer,
) -> None:
    asked = threading.Event()

    def never(request: Any) -> List[Tuple[bytes, List[int]]]:
        asked.set()
        return []

    peer.answers = never
    client = Handoff(peer.path)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.fetch_segments, [1], 60.0)
        assert asked.wait(10)
        client.close()
        with contextlib.ExitStack() as files:
            for _ in range(4):  # One of them gets the number that `client` has had, if that was closed.
                files.push(contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
            with pytest.raises(ckptd.Unavailable, match="failed"):
                waiting.result(10)


def test_descriptor_is_closed_with_the_last_reference(peer: Peer) -> None:
    client = Handoff(peer.path)
    descriptor = client.fileno()
    client.close()
    assert os.path.exists(f"/proc/self/fd/{descriptor}")
    del client
    assert not os.path.exists(f"/proc/self/fd/{descriptor}")


def listen_as(uid: int, path: str, kind: Any) -> Any:
    """Returns a process of another user that listens on a socket until it is killed."""
    code = (
        f"import os, socket, sys; os.setuid({uid}); s = socket.socket(socket.AF_UNIX, {int(kind)}); s.bind({path!r}); "
        "s.listen(4); print('listening', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "listening\n"
    return process


OTHER = 12345


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("socket_of", ["d.sock", "d.sock.handoff"])
def test_socket_that_another_user_serves_is_refused_unless_the_directory_is_that_users(socket_of: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        os.chmod(folder, 0o1777)  # As the temporary directory.
        path = f"{folder}/{socket_of}"
        process = listen_as(OTHER, path, socket.SOCK_SEQPACKET if "handoff" in socket_of else socket.SOCK_STREAM)
        try:
            with pytest.raises(ckptd.Refused, match=f"belongs to uid {OTHER}.*another user may have put it there") as caught:
                ckptd.connect(f"unix:{folder}/d.sock")
            assert caught.value.reason == "WRONG_UID"
            os.chown(folder, OTHER, -1)
            if "handoff" in socket_of:
                Handoff(path).close()
            else:
                check_server(path)
        finally:
            process.kill()
            process.wait()
