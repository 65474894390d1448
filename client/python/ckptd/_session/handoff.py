"""The hand-off socket: opens the session and receives descriptors of shared memory.

The frames are those of proto/ckptd/v1/handoff.proto, one in each packet of a SOCK_SEQPACKET Unix socket.
"""

import array
import contextlib
import os
import select
import socket
import struct
import threading
import time
import weakref
from typing import Any, List, Optional, Sequence, Tuple

from google.protobuf.message import DecodeError

from ckptd import errors
from ckptd._session.peer import check_server
from ckptd._wire.protocol import handoff
from ckptd._wire.status import code_name

_MAX_DESCRIPTORS = 64  # The most in one packet.
_FRAME_BYTES = 64 << 10
_HANG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Handoff:
    """One connection to the hand-off socket, which is one session.

    Thread-safe. The daemon answers requests in order; calls from several threads take turns.
    """

    def __init__(self, path: str) -> None:
        """Connects to the socket at `path`.

        Raises:
            OSError: nothing listens there, or the socket's backlog is full.
            errors.Refused: another user listens there.
        """
        self._lock = threading.Lock()
        self._next_id = 0
        # Non-blocking: a full backlog fails at once, and every wait is a poll with a deadline.
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        end = weakref.finalize(self, self._socket.close)  # Without a warning about an unclosed socket.
        end.atexit = False  # Other threads may still poll it then.
        try:
            self._socket.connect(path)
            check_server(path, self._peer()[1])
        except BaseException:
            self._socket.close()
            raise

    def daemon_pid(self) -> int:
        """Returns the id of the process at the other end."""
        return self._peer()[0]

    def _peer(self) -> Tuple[int, int]:
        """Returns the process id and the user id of the process that listens at the other end."""
        peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        pid, uid, _ = struct.unpack("iII", peer)
        return int(pid), int(uid)

    def hello(self, hello: Any, timeout: float) -> Any:
        """Opens the session; returns the daemon's HelloResponse with the session's token."""
        return self._ask(handoff.HandoffRequest(hello=hello), (), timeout)[0].hello

    def attach_root(self, descriptor: Optional[int], path: str, timeout: float) -> str:
        """Passes the descriptor of a root directory to the daemon; returns the root's handle in this session.

        None: `path` is the URL of a root in a bucket.
        """
        request = handoff.HandoffRequest(attach_root=handoff.AttachRoot(path=path))
        return str(self._ask(request, [] if descriptor is None else [descriptor], timeout)[0].attach_root.root)

    def fetch_segments(
        self, ids: Sequence[int], timeout: float, read_only: bool = False
    ) -> List[Tuple[int, int, int]]:
        """Returns (id, size in bytes, descriptor) of each segment. The caller owns the descriptors.

        read_only: the descriptors cannot be mapped for writing.
        """
        fetched: List[Tuple[int, int, int]] = []
        try:
            for begin in range(0, len(ids), _MAX_DESCRIPTORS):
                some = ids[begin : begin + _MAX_DESCRIPTORS]
                request = handoff.HandoffRequest(fetch_segments=handoff.FetchSegments(ids=some, read_only=read_only))
                response, descriptors = self._ask(request, (), timeout)
                segments = response.fetch_segments.segments
                fetched += [(-1, 0, descriptor) for descriptor in descriptors]
                if [segment.id for segment in segments] != list(some) or len(descriptors) != len(some):
                    raise errors.Unavailable(
                        f"the daemon was asked for {len(some)} segments and sent {len(segments)} with {len(descriptors)} "
                        "descriptors"
                    )
                fetched[-len(some) :] = [
                    (segment.id, segment.size_bytes, descriptor)
                    for segment, descriptor in zip(segments, descriptors)
                ]
            return fetched
        except BaseException:
            _close_all([descriptor for _, _, descriptor in fetched])
            raise

    def goodbye(self, timeout: float) -> None:
        """Ends the session. Best effort: a connection that has already ended is not an error."""
        try:
            self._ask(handoff.HandoffRequest(goodbye=handoff.Goodbye()), (), timeout)
        except errors.CkptdError:
            pass  # The connection has ended already.
        self.close()

    def fileno(self) -> int:
        """Returns the socket's descriptor, for poll()."""
        return self._socket.fileno()

    def alive(self) -> bool:
        """Returns whether the connection is still open at both ends. Does not block."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return not any(events & _HANG_UP for _, events in poll.poll(0))

    def close(self) -> None:
        """Ends the connection without a word to the daemon, and every wait of other threads for an answer.

        May be called more than once. The descriptor stays open as long as this object lives: a thread that polls a
        descriptor which another one closes may go on with the next file that gets its number.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _ask(self, request: Any, descriptors: Sequence[int], timeout: float) -> Tuple[Any, List[int]]:
        """Sends a request with descriptors; returns the response and the descriptors that came with it."""
        deadline = time.monotonic() + timeout
        with self._lock:
            self._next_id += 1
            request.id = self._next_id
            rights = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            )
            try:
                self._wait(select.POLLOUT, deadline)
                self._socket.sendmsg([request.SerializeToString()], rights, socket.MSG_NOSIGNAL)
                while True:
                    self._wait(select.POLLIN, deadline)
                    response, received = self._receive()
                    if response.id == request.id:
                        break
                    _close_all(received)  # The answer to an earlier request, which timed out.
            except (OSError, DecodeError) as error:
                raise errors.Unavailable(
                    f"the hand-off socket of the daemon failed: {error}", reason="UNAVAILABLE"
                ) from error
        if response.HasField("error"):
            _close_all(received)
            raise errors.make(code_name(response.error.code), response.error.reason, response.error.message)
        return response, received

    def _wait(self, events: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError("the daemon did not answer in time")

    def _receive(self) -> Tuple[Any, List[int]]:
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
        # Not socket.recv_fds: it ignores its flags, so every child process would inherit the descriptors.
        frame, ancillary, flags, _ = self._socket.recvmsg(_FRAME_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        received = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
        try:
            if flags & socket.MSG_CTRUNC:
                raise errors.Refused(
                    "this process has no room for the descriptors that the daemon sent: raise its limit of open files (ulimit -n)",
                    reason="EMFILE",
                )
            if not frame:
                raise ConnectionResetError("the daemon has closed the connection")
            return handoff.HandoffResponse.FromString(frame), list(received)
        except BaseException:
            _close_all(received)
            raise


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
