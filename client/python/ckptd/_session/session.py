"""One session with one daemon: a hand-off connection, or a gRPC stream where descriptors cannot be passed."""

import contextlib
import logging
import os
import threading
import time
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import grpc

from ckptd import errors
from ckptd._session import interrupts
from ckptd._session.handoff import Handoff
from ckptd._session.interrupts import uninterrupted
from ckptd._session.peer import check_server
from ckptd._session.segments import SegmentTable
from ckptd._version import __version__
from ckptd._wire.protocol import PROTOCOL_VERSION, TOKEN_KEY, handoff, messages, services
from ckptd._wire.status import to_error

_log = logging.getLogger("ckptd")

_CLIENT_NAME = f"ckptd-python/{__version__}"
# A daemon that starts makes its gRPC socket this much before its hand-off socket, at most.
_HANDOFF_SECONDS = 0.5
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 256 << 20),  # A list with the files of many checkpoints is long.
    # Do not share a connection with other channels: one that has failed before would lend this one its
    # back-off.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 500),
]


def socket_path(endpoint: str) -> str:
    """Returns the path of an endpoint `unix:/path`. errors.Refused for anything else."""
    path = endpoint[len("unix:") :] if endpoint.startswith("unix:") else ""
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/"):
        raise errors.invalid(
            f'the endpoint "{endpoint}" is not a Unix socket with an absolute path; write unix:/path/to/ckptd.sock'
        )
    return path


class Session:
    """A session with a daemon. Thread-safe.

    It ends when the daemon ends or by close(). From then on alive() is False, and a new session must be made.
    """

    def __init__(self, endpoint: str, instance: str, keeper: bool, must_share: bool, timeout: float) -> None:
        """Opens a session with the daemon at `endpoint`.

        Args:
            instance: identifies this client across its sessions; a random text.
            keeper: keep a private daemon alive, see LocalDaemon.
            must_share: fail rather than send bytes over gRPC.
            timeout: seconds to wait for the daemon's answer.

        Raises:
            errors.Unavailable: no daemon answers.
            errors.Refused: this user may not use the socket.
        """
        self.endpoint = endpoint
        path = socket_path(endpoint)
        self._ended = threading.Event()
        self._stream: Any = None
        self.handoff: Optional[Handoff] = None
        self.segments: Optional[SegmentTable] = None  # None: bytes go over gRPC.
        self._channel: Optional[grpc.Channel] = None
        try:
            if must_share or os.environ.get("CKPTD_TRANSPORT") != "grpc":
                self._connect(f"{path}.handoff", must_share)
            with contextlib.suppress(FileNotFoundError):  # Then nothing listens there.
                check_server(path)
            # After the hand-off: a channel that is closed as soon as it is made, because no daemon is there, may end
            # with a line on stderr about gRPC's own epoll descriptor.
            self._channel = grpc.insecure_channel(f"unix:{path}", options=_CHANNEL_OPTIONS)
            self.checkpoints = services.CheckpointsStub(self._channel)
            self.admin = services.AdminStub(self._channel)
            if self.handoff is not None:
                hello = handoff.Hello(
                    min_version=PROTOCOL_VERSION,
                    max_version=PROTOCOL_VERSION,
                    client_instance=instance,
                    client_name=_CLIENT_NAME,
                    keeper=keeper,
                )
                answer = self.handoff.hello(hello, timeout)
                self.segments = SegmentTable(self.handoff)
            else:
                answer = self._open_stream(instance, timeout)
        except BaseException:
            self._drop()
            raise
        self.daemon_instance: str = answer.daemon_instance
        self.daemon_version: str = answer.daemon_version
        self.metadata = ((TOKEN_KEY, answer.token),)

    @property
    def transport(self) -> str:
        """How the bytes of saves travel: "shm" (shared memory) or "grpc"."""
        return "shm" if self.handoff is not None else "grpc"

    def alive(self) -> bool:
        """Returns whether the session has not ended, as far as this process knows. Does not block."""
        return not self._ended.is_set() and (self.handoff is None or self.handoff.alive())

    def end(self) -> None:
        """Marks the session as ended, after the daemon has answered that it does not know it."""
        self._ended.set()

    def call(self, method: Any, request: Any, timeout: float) -> Any:
        """Makes one gRPC call. Raises a CkptdError when it fails, errors.Unavailable after `timeout` seconds."""
        try:
            # Only the main thread runs signal handlers. See interrupts.py for what Ctrl-C would break in gRPC's own wait.
            if threading.current_thread() is threading.main_thread():
                return interrupts.call(lambda: method.future(request, timeout=timeout, metadata=self.metadata))
            return method(request, timeout=timeout, metadata=self.metadata)
        except grpc.RpcError as error:
            raise self._with_endpoint(to_error(error)) from None
        except ValueError as error:
            raise self._session_ended(error) from None

    def stream(self, method: Any, request: Any, timeout: float) -> Iterator[Any]:
        """Makes a streaming call; yields its answers. Raises as call() does."""
        try:
            yield from method(request, timeout=timeout, metadata=self.metadata)
        except grpc.RpcError as error:
            raise self._with_endpoint(to_error(error)) from None
        except ValueError as error:
            raise self._session_ended(error) from None

    def start(self, method: Any, request: Any, timeout: float) -> Any:
        """Starts a call; returns its grpc.Future. errors.Unavailable when the session has ended."""
        try:
            with uninterrupted():
                return method.future(request, timeout=timeout, metadata=self.metadata)
        except ValueError as error:
            raise self._session_ended(error) from None

    def attach_root(self, descriptor: Optional[int], path: str, timeout: float) -> str:
        """Returns the handle of a root directory in this session.

        Args:
            descriptor: of the directory. None where the session has no hand-off connection, and of a root in a bucket.
            path: of the directory, as the daemon sees it; or the URL of a root in a bucket.
        """
        if self.handoff is not None:
            return self.handoff.attach_root(descriptor, path, timeout)
        return str(self.call(self.checkpoints.OpenRoot, messages.OpenRootRequest(path=path), timeout).root)

    def close(self, goodbye: bool = True, timeout: float = 2.0) -> None:
        """Ends the session. The daemon drops the parts of it that are not sealed."""
        if goodbye and self.handoff is not None and self.alive():
            self.handoff.goodbye(timeout)
        self._drop()

    def _drop(self) -> None:
        self._ended.set()
        if self._stream is not None:
            self._stream.cancel()
        if self.handoff is not None:
            self.handoff.close()
        if self.segments is not None:
            self.segments.clear()
        if self._channel is not None:
            self._channel.close()

    def _connect(self, path: str, must: bool) -> None:
        """Opens the hand-off connection.

        Without `must`, it gives up where only the gRPC socket can be used, as in a container that was given
        no other: then bytes go over gRPC.
        """
        deadline = time.monotonic() + _HANDOFF_SECONDS
        while True:
            try:
                self.handoff = Handoff(path)
                return
            except OSError as error:
                if must or not os.path.exists(path[: -len(".handoff")]):
                    raise self._no_daemon(f"{path}: {error.strerror or error}") from error
                if time.monotonic() >= deadline:
                    _log.info(
                        "ckptd: the hand-off socket %s cannot be used (%s): bytes go over gRPC", path, error.strerror or error
                    )
                    return
            self._ended.wait(0.02)

    def _open_stream(self, instance: str, timeout: float) -> Any:
        request = messages.OpenSessionRequest(
            min_version=PROTOCOL_VERSION,
            max_version=PROTOCOL_VERSION,
            client_instance=instance,
            client_name=_CLIENT_NAME,
        )
        self._stream = self.checkpoints.OpenSession(request)
        timer = threading.Timer(timeout, self._stream.cancel)  # Not a timeout of the call, which lasts as long as the session.
        timer.start()
        try:
            first = next(self._stream)
        except grpc.RpcError as error:
            failure = to_error(error)
            if isinstance(failure, errors.Unavailable):
                raise self._no_daemon(str(failure)) from error
            raise failure from error
        except StopIteration:
            raise self._no_daemon("the daemon closed the stream before it opened a session") from None
        finally:
            timer.cancel()
        self._stream.add_done_callback(lambda _: self._ended.set())
        return first

    def _no_daemon(self, why: str) -> errors.CkptdError:
        if "Permission denied" in why:
            return errors.Refused(
                f"this user may not use {self.endpoint} ({why}); be root, or in the group that the socket belongs to",
                reason="EACCES",
            )
        return errors.Unavailable(
            f"no ckptd answers at {self.endpoint} ({why}); start one (systemctl start ckptd; without root: ckptd.LocalDaemon, or "
            "ckptd --local DIR in a terminal), or set $CKPTD_ENDPOINT to the one that runs",
            reason="UNAVAILABLE",
        )

    def _session_ended(self, error: ValueError) -> Exception:
        """Converts the ValueError that gRPC raises when another thread has closed the channel for a new
        session.
        """
        if not self._ended.is_set():
            return error
        return errors.Unavailable(f"the session with ckptd at {self.endpoint} has ended", reason="UNAVAILABLE")

    def _with_endpoint(self, error: errors.CkptdError) -> errors.CkptdError:
        """Puts the endpoint into the message of an error that gRPC made."""
        if isinstance(error, errors.Unavailable) and error.reason in (
            "UNAVAILABLE",
            "CANCELLED",
            "DEADLINE_EXCEEDED",
        ):
            return errors.Unavailable(f"ckptd at {self.endpoint}: {error}", reason=error.reason)
        return error


def is_transient(error: errors.CkptdError) -> bool:
    """Returns whether the same request may succeed later, with this daemon or with the next one.

    Repeating a request is safe: the daemon lets it take effect once.
    """
    return error.reason in ("UNAVAILABLE", "CANCELLED", "DRAINING", "UNKNOWN_TOKEN") or (
        error.reason == "UNKNOWN_RUN" and isinstance(error, errors.Unavailable)
    )


def segments_of(segments: "Sequence[Any]") -> List[Tuple[int, int]]:
    """Converts types.Segment messages to (id, size in bytes)."""
    return [(segment.id, segment.size_bytes) for segment in segments]
