"""One session with one daemon: the hand-off connection, or a gRPC stream where descriptors cannot pass."""

import logging
import os
import threading
import time
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import grpc

from ckptd import errors
from ckptd._handoff import Handoff
from ckptd._segments import Segments
from ckptd._version import __version__
from ckptd._wire import PROTOCOL_VERSION, TOKEN_KEY, handoff, messages, services, to_error

_log = logging.getLogger("ckptd")

_CLIENT_NAME = f"ckptd-python/{__version__}"
_STARTING_SECONDS = 0.5  # Between the two sockets of a daemon that starts.
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 256 << 20),  # A list with the files of many checkpoints.
    # A connection of its own: one that failed before must not lend this one its back-off.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 500),
]


def socket_path(endpoint: str) -> str:
    """The path in `unix:/path`; Refused for anything else."""
    path = endpoint[len("unix:") :] if endpoint.startswith("unix:") else ""
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/"):
        raise errors.invalid(
            f'endpoint "{endpoint}" is not a Unix socket with an absolute path; write unix:/path/to/ckptd.sock'
        )
    return path


class Session:
    """Thread-safe. It ends when the daemon ends it, or by close(); then `alive` is false for good and a new
    one must be made.
    """

    def __init__(self, endpoint: str, instance: str, keeper: bool, must_share: bool, timeout: float) -> None:
        """must_share: do without gRPC for bytes. Unavailable when no daemon answers."""
        self.endpoint = endpoint
        path = socket_path(endpoint)
        self._ended = threading.Event()
        self._stream: Any = None
        self.handoff: Optional[Handoff] = None
        self.segments: Optional[Segments] = None  # None: bytes go over gRPC.
        self._channel = grpc.insecure_channel(f"unix:{path}", options=_CHANNEL_OPTIONS)
        try:
            self.checkpoints = services.CheckpointsStub(self._channel)
            self.admin = services.AdminStub(self._channel)
            if must_share or os.environ.get("CKPTD_TRANSPORT") != "grpc":
                self._connect(f"{path}.handoff", must_share)
            if self.handoff is not None:
                hello = handoff.Hello(
                    min_version=PROTOCOL_VERSION,
                    max_version=PROTOCOL_VERSION,
                    client_instance=instance,
                    client_name=_CLIENT_NAME,
                    keeper=keeper,
                )
                answer = self.handoff.hello(hello, timeout)
                self.segments = Segments(self.handoff)
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
        return "shm" if self.handoff is not None else "grpc"

    def alive(self) -> bool:
        return not self._ended.is_set() and (self.handoff is None or self.handoff.alive())

    def end(self) -> None:
        """The daemon does not know it any more."""
        self._ended.set()

    def call(self, method: Any, request: Any, timeout: float) -> Any:
        """One gRPC call; what fails comes as a CkptdError."""
        try:
            return method(request, timeout=timeout, metadata=self.metadata)
        except grpc.RpcError as error:
            raise self._explained(to_error(error)) from None
        except ValueError as error:
            raise self._over(error) from None

    def stream(self, method: Any, request: Any, timeout: float) -> Iterator[Any]:
        """The answers of a streaming call."""
        try:
            yield from method(request, timeout=timeout, metadata=self.metadata)
        except grpc.RpcError as error:
            raise self._explained(to_error(error)) from None
        except ValueError as error:
            raise self._over(error) from None

    def start(self, method: Any, request: Any, timeout: float) -> Any:
        """The same as a grpc.Future. Unavailable when the session is over."""
        try:
            return method.future(request, timeout=timeout, metadata=self.metadata)
        except ValueError as error:
            raise self._over(error) from None

    def attach_root(self, descriptor: Optional[int], path: str, timeout: float) -> str:
        """The handle of a root directory in this session."""
        if self.handoff is not None:
            assert descriptor is not None
            return self.handoff.attach_root(descriptor, path, timeout)
        return str(self.call(self.checkpoints.OpenRoot, messages.OpenRootRequest(path=path), timeout).root)

    def close(self, goodbye: bool = True, timeout: float = 2.0) -> None:
        """Ends the session: parts that are not sealed are dropped."""
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
        self._channel.close()

    def _connect(self, path: str, must: bool) -> None:
        """The hand-off connection; none where there is only a gRPC socket, as in a container that got no
        other.
        """
        deadline = time.monotonic() + _STARTING_SECONDS
        while True:
            try:
                self.handoff = Handoff(path)
                return
            except OSError as error:
                if must or not os.path.exists(path[: -len(".handoff")]):
                    raise self._no_daemon(f"{path}: {error.strerror or error}") from error
                if time.monotonic() >= deadline:
                    _log.info(
                        "ckptd: %s cannot be used (%s): bytes go over gRPC", path, error.strerror or error
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
        timer = threading.Timer(timeout, self._stream.cancel)
        timer.start()
        try:
            first = next(self._stream)
        except grpc.RpcError as error:
            failure = to_error(error)
            if isinstance(failure, errors.Unavailable):
                raise self._no_daemon(str(failure)) from error
            raise failure from error
        except StopIteration:
            raise self._no_daemon("it opened no session") from None
        finally:
            timer.cancel()
        self._stream.add_done_callback(lambda _: self._ended.set())
        return first

    def _no_daemon(self, why: str) -> errors.CkptdError:
        if "Permission denied" in why:
            return errors.Refused(
                f"{self.endpoint} may not be used by this user ({why}); be root, or in the group that the socket belongs to",
                reason="EACCES",
            )
        return errors.Unavailable(
            f"no ckptd answers at {self.endpoint} ({why}); start one (systemctl start ckptd, or ckptd.LocalDaemon), or set "
            "$CKPTD_ENDPOINT",
            reason="UNAVAILABLE",
        )

    def _over(self, error: ValueError) -> Exception:
        """What gRPC says of a channel that another thread has closed, for it has made a new session."""
        if not self._ended.is_set():
            return error
        return errors.Unavailable(f"the session with ckptd at {self.endpoint} is over", reason="UNAVAILABLE")

    def _explained(self, error: errors.CkptdError) -> errors.CkptdError:
        if isinstance(error, errors.Unavailable) and error.reason in (
            "UNAVAILABLE",
            "CANCELLED",
            "DEADLINE_EXCEEDED",
        ):
            return errors.Unavailable(f"ckptd at {self.endpoint}: {error}", reason=error.reason)
        return error


def is_transient(error: errors.CkptdError) -> bool:
    """Whether the same request may succeed with this daemon later, or with its successor. Such requests
    take effect once.
    """
    return error.reason in ("UNAVAILABLE", "CANCELLED", "DRAINING", "UNKNOWN_TOKEN") or (
        error.reason == "UNKNOWN_RUN" and isinstance(error, errors.Unavailable)
    )


Segment = Tuple[int, int]


def segments_of(messages_: "Sequence[Any]") -> List[Segment]:
    return [(segment.id, segment.size_bytes) for segment in messages_]
