"""A real ckptd for each test, and the little of a client that these tests need: saves over gRPC alone."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from ckptd.v1 import handoff_pb2, messages_pb2, service_pb2_grpc, types_pb2

CKPTD = os.environ.get("CKPTD_BIN") or str(pathlib.Path(sys.executable).parent / "ckptd")
PATIENCE = 60.0


class Trainer:
    """A rank of a world of one, without descriptors."""

    def __init__(self, daemon: Daemon, root: pathlib.Path, launch: str = "launch") -> None:
        self.channel = grpc.insecure_channel(f"unix:{daemon.socket}")
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
        return method(request, timeout=PATIENCE, metadata=self.metadata)

    def seal(self, tag: str, data: bytes, step: int | None = None) -> types_pb2.SaveKey:
        """Returns when the bytes are the daemon's."""
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


class Session:
    """A session on the hand-off socket."""

    def __init__(self, daemon: Daemon, keeper: bool = False) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(f"{daemon.socket}.handoff")
        hello = handoff_pb2.Hello(min_version=1, max_version=1, client_instance="0" * 32, client_name="t", keeper=keeper)
        assert self.ask(handoff_pb2.HandoffRequest(id=1, hello=hello)).hello.token

    def ask(self, request: handoff_pb2.HandoffRequest) -> handoff_pb2.HandoffResponse:
        self.socket.sendall(request.SerializeToString())
        return handoff_pb2.HandoffResponse.FromString(self.socket.recv(1 << 16))

    def goodbye(self) -> None:
        self.ask(handoff_pb2.HandoffRequest(id=2, goodbye=handoff_pb2.Goodbye()))


class Daemon:
    """One ckptd in a folder of its own, and whatever process serves there now."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.socket = folder / "s"
        self.log_path = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def arguments(self, *more: str) -> list[str]:
        config = self.folder / "ckptd.txtpb"
        if not config.exists():
            config.write_text(
                f'socket_path: "{self.socket}"\nstate_directory: "{self.folder / "state"}"\n'
                "pool { bytes: 67108864 populate_ahead_bytes: 0 huge_pages: PLAIN }\nmetrics { port: -1 }\n"
            )
        return [CKPTD, f"--config={config}", *more]

    def start(self, *more: str, environment: dict[str, str] | None = None) -> Daemon:
        """Returns when it serves."""
        ready, write = os.pipe()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.arguments(f"--ready_fd={write}", *more),
                pass_fds=[write],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        os.close(write)
        with os.fdopen(ready, "rb") as pipe:
            assert select.select([pipe], [], [], PATIENCE)[0], f"not ready in {PATIENCE} s: {self.log()}"
            assert pipe.read() == b"READY\n", self.log()
        return self

    def log(self) -> str:
        return self.log_path.read_text()

    def wait_log(self, text: str) -> None:
        wait_until(lambda: text in self.log(), f"{text!r} in the log")

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def status(self) -> messages_pb2.Status:
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            status: messages_pb2.Status = service_pb2_grpc.AdminStub(channel).GetStatus(
                messages_pb2.GetStatusRequest(), timeout=PATIENCE
            )
            return status


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        time.sleep(0.02)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    # Not pytest's own folder: a socket's path has room for 107 bytes.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd."))
    made = Daemon(folder)
    try:
        yield made
    finally:
        if made.process is not None:
            with contextlib.suppress(ProcessLookupError):
                made.process.kill()
            made.process.wait(PATIENCE)
        shutil.rmtree(folder)


@pytest.fixture
def other(daemon: Daemon) -> Iterator[Daemon]:
    """A second one, that shares nothing with the first."""
    folder = daemon.folder / "other"
    folder.mkdir()
    made = Daemon(folder)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait(PATIENCE)


@pytest.fixture
def trainer() -> Iterator[Callable[..., Trainer]]:
    made: list[Trainer] = []

    def make(*arguments: Any, **named: Any) -> Trainer:
        made.append(Trainer(*arguments, **named))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def session() -> Iterator[Callable[..., Session]]:
    made: list[Session] = []

    def make(*arguments: Any, **named: Any) -> Session:
        made.append(Session(*arguments, **named))
        return made[-1]

    yield make
    for one in made:
        one.socket.close()
