"""A real ckptd for each test, and clients small enough for these tests: saves over gRPC, sessions on the hand-off socket."""

from __future__ import annotations

import contextlib
import pathlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from ckptd.v1 import messages_pb2, service_pb2_grpc, types_pb2
from harness import TIMEOUT, DaemonProgram, HandoffConnection, closing, temporary_folder, until


class Trainer:
    """The only rank of a job. Its bytes go over gRPC; it has no shared memory."""

    def __init__(self, daemon: Daemon, root: pathlib.Path, launch: str = "launch") -> None:
        self.channel = grpc.insecure_channel(daemon.endpoint)
        self.stub = service_pb2_grpc.CheckpointsStub(self.channel)
        self.session = self.stub.OpenSession(
            messages_pb2.OpenSessionRequest(min_version=1, max_version=1, client_instance=uuid.uuid4().hex)
        )
        self.metadata = (("ckptd-token", next(self.session).token),)
        handle = self.call(self.stub.OpenRoot, messages_pb2.OpenRootRequest(path=str(root))).root
        joined = self.call(
            self.stub.JoinRun, messages_pb2.JoinRunRequest(root=handle, rank=0, world_size=1, launch_id=launch)
        )
        self.run = joined.run

    def call(self, method: Any, request: Any) -> Any:
        return method(request, timeout=TIMEOUT, metadata=self.metadata)

    def seal(self, tag: str, data: bytes, step: int | None = None) -> types_pb2.SaveKey:
        """Saves and returns after Seal, when the daemon has the bytes."""
        key = types_pb2.SaveKey(run=self.run, rank=0, tag=tag, ordinal=1)
        files = [messages_pb2.FileSpec(path="model.bin", size_bytes=len(data))]
        begin = messages_pb2.BeginRequest(key=key, files=files, step=step)
        self.call(self.stub.Begin, begin)
        header = messages_pb2.WriteFileHeader(key=key, path="model.bin")
        messages = [messages_pb2.WriteFileRequest(header=header)]
        piece = 2 << 20
        for offset in range(0, len(data), piece):
            messages.append(messages_pb2.WriteFileRequest(data=data[offset : offset + piece]))
        self.call(self.stub.WriteFile, iter(messages))
        self.call(self.stub.Seal, messages_pb2.SealRequest(key=key, files=files))
        return key

    def save(self, tag: str, data: bytes, step: int | None = None) -> types_pb2.Checkpoint:
        key = self.seal(tag, data, step)
        request = messages_pb2.WaitRequest(key=key, level=types_pb2.COMMITTED)
        checkpoint: types_pb2.Checkpoint = self.call(self.stub.Wait, request).checkpoint
        assert checkpoint.level == types_pb2.COMMITTED
        return checkpoint

    def close(self) -> None:
        self.session.cancel()
        self.channel.close()


class Daemon(DaemonProgram):
    """A ckptd with a small pool and without metrics."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(
            folder, "pool { bytes: 67108864 populate_ahead_bytes: 0 huge_pages: PLAIN }\nmetrics { port: -1 }\n"
        )

    def start(self, *more: str, environment: dict[str, str] | None = None) -> Daemon:
        """Returns when it serves."""
        assert self.launch(*more, environment=environment), self.log()
        return self

    def wait_log(self, text: str) -> None:
        until(lambda: text in self.log(), f"{text!r} in the log")


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with temporary_folder() as folder, closing(Daemon(folder)) as made:
        yield made


@pytest.fixture
def other(daemon: Daemon) -> Iterator[Daemon]:
    """A second daemon, which shares nothing with the first."""
    folder = daemon.folder / "other"
    folder.mkdir()
    with closing(Daemon(folder)) as made:
        yield made


@pytest.fixture
def trainer() -> Iterator[Callable[..., Trainer]]:
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **named: stack.enter_context(closing(Trainer(*arguments, **named)))


@pytest.fixture
def session() -> Iterator[Callable[..., HandoffConnection]]:
    """Opens sessions on the hand-off socket: session(daemon), or session(daemon, keeper=True)."""
    with contextlib.ExitStack() as stack:

        def make(daemon: Daemon, keeper: bool = False) -> HandoffConnection:
            made = stack.enter_context(closing(HandoffConnection(daemon.endpoint)))
            assert made.hello(keeper=keeper).hello.token
            return made

        yield make
