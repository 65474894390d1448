"""A fake daemon in this process: it speaks the protocol, keeps committed files in a dictionary, and obeys the
test.
"""

from __future__ import annotations

import array
import collections
import concurrent.futures
import contextlib
import mmap
import os
import pathlib
import socket
import tempfile
import threading
from typing import Any, Callable, Deque, Dict, Iterator, List, Tuple

import ckptd
import grpc
import pytest
from ckptd._wire.protocol import DETAILS_KEY, TOKEN_KEY, handoff, messages, services, types

SEGMENT = 1 << 20


class Part:
    def __init__(self) -> None:
        self.sizes: Dict[str, int] = {}
        self.offsets: Dict[str, int] = {}
        self.end = 0
        self.segments: List[int] = []
        self.ahead = 0
        self.sealed = False


class SaveState:
    def __init__(self, key: Any) -> None:
        self.checkpoint = types.Checkpoint(tag=key.tag, ordinal=key.ordinal, level=types.OPEN, sequence=1)
        self.parts: Dict[int, Part] = collections.defaultdict(Part)
        self.files: Dict[str, bytes] = {}


class FakeDaemon(services.CheckpointsServicer, services.AdminServicer):  # type: ignore[misc]
    """A daemon in this process.

    `calls` lists the names of the calls that it got. `script[name]` is a queue of functions; one of them runs
    before each call of that name, and may refuse the call or end the daemon. A sealed save is committed at
    once unless `hold` is set.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = str(folder / "d.sock")
        self.endpoint = f"unix:{self.path}"
        self.calls: List[str] = []
        self.requests: Dict[str, List[Any]] = collections.defaultdict(list)
        self.script: Dict[str, Deque[Callable[[], None]]] = collections.defaultdict(collections.deque)
        self.world_size = 1
        self.hold = False
        self.skips = 0  # This many Begin calls are answered as skipped.
        self.share_memory = True
        self.committed: Dict[str, Dict[str, bytes]] = {}
        self.latest = 0  # The sequence that GetCheckpoint answers for the newest checkpoint.
        self.history = messages.GetHistoryResponse()
        self.warnings: List[str] = []  # That JoinRun answers.
        self.goodbyes = 0
        self.started = 0
        self.ahead = 0  # Segments that a growing part gets before it has files for them.
        self.changed = threading.Condition()
        self.start()

    # ---- life

    def start(self) -> None:
        self.started += 1
        self.instance = f"daemon-{self.started}"
        self.saves: Dict[Tuple[str, int], SaveState] = {}
        self.memory: Dict[int, Tuple[int, mmap.mmap]] = {}
        self.free: List[int] = []  # Segments of saves that have ended.
        self.tokens: Dict[str, int] = {}
        self.connections: List[socket.socket] = []
        self.stopped = threading.Event()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(32))
        services.add_CheckpointsServicer_to_server(self, self.server)
        services.add_AdminServicer_to_server(self, self.server)
        self.server.add_insecure_port(self.endpoint)
        self.server.start()
        if self.share_memory:
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.listener.bind(self.path + ".handoff")
            self.listener.listen(16)
            threading.Thread(target=self._accept, args=(self.listener, self.stopped), daemon=True).start()

    def stop(self) -> None:
        """Ends the daemon as SIGKILL does: it loses all memory of sessions and saves."""
        self.stopped.set()
        with self.changed:
            self.changed.notify_all()
        if self.share_memory:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            os.unlink(self.path + ".handoff")
        for connection in self.connections:
            with contextlib.suppress(OSError):  # The thread that serves it may just have closed it.
                connection.shutdown(socket.SHUT_RDWR)
        self.server.stop(0).wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    # ---- the hand-off socket

    def _accept(self, listener: socket.socket, stopped: threading.Event) -> None:
        while not stopped.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        while True:
            try:
                frame, rights, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(16))
            except OSError:
                frame, rights = b"", []
            received = array.array("i")
            for _, _, data in rights:
                received.frombytes(data)
            for descriptor in received:
                os.close(descriptor)
            if not frame:
                return
            request = handoff.HandoffRequest.FromString(frame)
            answer, descriptors = self._answer(request)
            control = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            )
            connection.sendmsg([answer.SerializeToString()], control)
            if request.HasField("goodbye"):
                connection.close()
                return

    def _answer(self, request: Any) -> Tuple[Any, List[int]]:
        kind = request.WhichOneof("kind")
        self.calls.append(kind)
        answer, descriptors = handoff.HandoffResponse(id=request.id), []
        if kind == "hello":
            token = os.urandom(16).hex()
            self.tokens[token] = len(self.tokens)
            answer.hello.version, answer.hello.token, answer.hello.daemon_instance = 1, token, self.instance
        elif kind == "attach_root":
            answer.attach_root.root = "runs/1"
        elif kind == "fetch_segments":
            for segment in request.fetch_segments.ids:
                answer.fetch_segments.segments.add(id=segment, size_bytes=SEGMENT)
                descriptors.append(self.memory[segment][0])
        else:
            self.goodbyes += 1
            answer.goodbye.SetInParent()
        return answer, descriptors

    # ---- gRPC

    def refuse(
        self, context: Any, code: grpc.StatusCode, reason: str, message: str = "as the test wants"
    ) -> None:
        info = types.ErrorInfo(reason=reason, domain="ckptd").SerializeToString()
        detail = field(1, b"type.googleapis.com/google.rpc.ErrorInfo") + field(2, info)
        context.set_trailing_metadata(((DETAILS_KEY, field(3, detail)),))
        context.abort(code, message)

    def _enter(self, name: str, request: Any, context: Any) -> None:
        self.calls.append(name)
        self.requests[name].append(request)
        if dict(context.invocation_metadata()).get(TOKEN_KEY) not in self.tokens:
            self.refuse(context, grpc.StatusCode.UNAUTHENTICATED, "UNKNOWN_TOKEN")
        if self.script[name]:
            refusal = self.script[name].popleft()()
            if refusal is not None:
                self.refuse(context, *refusal)

    def OpenSession(self, request: Any, context: Any) -> Iterator[Any]:
        self.calls.append("OpenSession")
        token = os.urandom(16).hex()
        self.tokens[token] = len(self.tokens)
        yield messages.OpenSessionResponse(version=1, token=token, daemon_instance=self.instance)
        self.stopped.wait(60)

    def OpenRoot(self, request: Any, context: Any) -> Any:
        self._enter("OpenRoot", request, context)
        return messages.OpenRootResponse(root="runs/1")

    def JoinRun(self, request: Any, context: Any) -> Any:
        self._enter("JoinRun", request, context)
        self.world_size = request.world_size
        return messages.JoinRunResponse(run="runs/1", attempt=1, run_id="r", warnings=self.warnings)

    def _place(self, save: SaveState, part: Part, files: Any) -> Any:
        with self.changed:
            return self._place_now(save, part, files)

    def _place_now(self, save: SaveState, part: Part, files: Any) -> Any:
        for file in files:
            if file.path not in part.offsets:
                part.sizes[file.path], part.offsets[file.path] = file.size_bytes, part.end
                part.end += -(-file.size_bytes // 4096) * 4096
        while len(part.segments) * SEGMENT < part.end or len(part.segments) < part.ahead:
            if self.free:
                part.segments.append(self.free.pop())
                continue
            segment = len(self.memory) + 1 + 1000 * self.started
            descriptor = os.memfd_create("segment")
            os.ftruncate(descriptor, SEGMENT)
            self.memory[segment] = descriptor, mmap.mmap(descriptor, SEGMENT)
            part.segments.append(segment)
        segments = [types.Segment(id=segment, size_bytes=SEGMENT) for segment in part.segments]
        places = [
            types.FilePlacement(path=f.path, size_bytes=f.size_bytes, offset=part.offsets[f.path])
            for f in files
        ]
        return segments, places

    def Begin(self, request: Any, context: Any) -> Any:
        self._enter("Begin", request, context)
        if self.skips:
            self.skips -= 1
            return messages.BeginResponse(
                level=types.SKIPPED, error=types.SaveError(reason="SKIPPED", message="no memory")
            )
        save = self.saves.setdefault((request.key.tag, request.key.ordinal), SaveState(request.key))
        if save.checkpoint.level >= types.FAILED:
            self.refuse(context, grpc.StatusCode.ABORTED, save.checkpoint.error.reason)
        part = save.parts[request.key.rank]
        part.ahead = self.ahead if request.growing else 0
        segments, places = self._place(save, part, request.files)
        return messages.BeginResponse(sequence=1, level=types.OPEN, segments=segments, placements=places)

    def Extend(self, request: Any, context: Any) -> Any:
        self._enter("Extend", request, context)
        save = self.find(request.key)
        segments, places = self._place(save, save.parts[request.key.rank], request.files)
        return messages.ExtendResponse(segments=segments, placements=places)

    def WriteFile(self, stream: Any, context: Any) -> Any:
        header = next(stream).header
        self._enter("WriteFile", header, context)
        save, data = self.find(header.key), b"".join(message.data for message in stream)
        part = save.parts[header.key.rank]
        for at, byte_range in self._ranges(part, header.path):
            self.memory[part.segments[at // SEGMENT]][1][byte_range] = data[
                : byte_range.stop - byte_range.start
            ]
            data = data[byte_range.stop - byte_range.start :]
        return messages.WriteFileResponse(size_bytes=part.sizes[header.path])

    def _ranges(self, part: Part, path: str) -> Iterator[Tuple[int, slice]]:
        at, left = part.offsets[path], part.sizes[path]
        while left:
            n = min(left, SEGMENT - at % SEGMENT)
            yield at, slice(at % SEGMENT, at % SEGMENT + n)
            at, left = at + n, left - n

    def find(self, key: Any) -> SaveState:
        return self.saves[key.tag, key.ordinal]

    def Seal(self, request: Any, context: Any) -> Any:
        self._enter("Seal", request, context)
        save = self.saves.get((request.key.tag, request.key.ordinal))
        if save is None:
            self.refuse(context, grpc.StatusCode.NOT_FOUND, "UNKNOWN_SAVE")
        assert save is not None
        part = save.parts[request.key.rank]
        if part.ahead:
            self._place(save, part, request.files)
        part.sealed = True
        for file in request.files:
            pieces = [
                self.memory[part.segments[at // SEGMENT]][1][where]
                for at, where in self._ranges(part, file.path)
            ]
            save.files[file.path] = b"".join(pieces)
        with self.changed:
            sealed = sum(p.sealed for p in save.parts.values()) == self.world_size
            save.checkpoint.level = types.SEALED if sealed else types.OPEN
            if sealed and not self.hold:
                self.commit(request.key.tag, request.key.ordinal)
            self.changed.notify_all()
        return messages.SealResponse(level=types.SEALED if sealed else types.STAGED, sequence=1)

    def inherit(self, key: Any) -> None:
        """Adds a save that an earlier daemon has left sealed."""
        save = self.saves[key.tag, key.ordinal] = SaveState(key)
        save.parts[key.rank].sealed = True
        save.checkpoint.level = types.SEALED

    def commit(self, tag: str, ordinal: int = 1) -> None:
        with self.changed:
            save = self.saves[tag, ordinal]
            save.checkpoint.level = types.COMMITTED
            self.committed[tag] = save.files
            for part in save.parts.values():
                self.free += part.segments
            self.changed.notify_all()

    def fail(
        self, tag: str, level: Any = types.FAILED, reason: str = "IO_ERROR", ordinal: int = 1, ranks: Any = ()
    ) -> None:
        with self.changed:
            checkpoint = self.saves[tag, ordinal].checkpoint
            checkpoint.level = level
            checkpoint.error.reason, checkpoint.error.message = reason, "as the test wants"
            checkpoint.error.ranks.extend(ranks)
            self.changed.notify_all()

    def Abort(self, request: Any, context: Any) -> Any:
        self._enter("Abort", request, context)
        if (request.key.tag, request.key.ordinal) not in self.saves:
            self.refuse(context, grpc.StatusCode.NOT_FOUND, "UNKNOWN_SAVE")
        self.fail(
            request.key.tag, reason="SAVE_ABORTED", ordinal=request.key.ordinal, ranks=[request.key.rank]
        )
        return messages.AbortResponse()

    def Wait(self, request: Any, context: Any) -> Any:
        self._enter("Wait", request, context)
        save = self.saves.get((request.key.tag, request.key.ordinal))
        if save is None and not request.sequence:
            self.refuse(context, grpc.StatusCode.NOT_FOUND, "UNKNOWN_SAVE")
        if save is None:
            lost = types.Checkpoint(tag=request.key.tag, level=types.FAILED)
            lost.error.reason, lost.error.message = "STAGED_LOST", "the daemon ended"
            return messages.WaitResponse(checkpoint=lost)
        stopped = self.stopped
        with self.changed:
            self.changed.wait_for(
                lambda: save.checkpoint.level >= request.level or stopped.is_set() or not context.is_active(),
                request.timeout.seconds + request.timeout.nanos / 1e9,
            )
        if stopped.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the daemon ended")
        answer = types.Checkpoint()
        answer.CopyFrom(save.checkpoint)
        answer.missing_ranks.extend(r for r in range(self.world_size) if not save.parts[r].sealed)
        return messages.WaitResponse(checkpoint=answer)

    def ListCheckpoints(self, request: Any, context: Any) -> Any:
        self._enter("ListCheckpoints", request, context)
        return messages.ListCheckpointsResponse(
            checkpoints=[types.Checkpoint(tag=tag, level=types.COMMITTED) for tag in self.committed]
        )

    def GetCheckpoint(self, request: Any, context: Any) -> Any:
        self._enter("GetCheckpoint", request, context)
        if not self.latest:
            self.refuse(context, grpc.StatusCode.NOT_FOUND, "NO_CHECKPOINT")
        return types.Checkpoint(level=types.COMMITTED, sequence=self.latest)

    def GetHistory(self, request: Any, context: Any) -> Any:
        self._enter("GetHistory", request, context)
        return self.history

    def GetStatus(self, request: Any, context: Any) -> Any:
        return messages.Status(sessions=len(self.tokens))


def field(number: int, data: bytes) -> bytes:
    """Serializes a length-delimited field of a message, shorter than 16 KiB."""
    size = len(data)
    return (
        bytes([number << 3 | 2])
        + (bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7]))
        + data
    )


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:  # A socket's path must be short.
        fake = FakeDaemon(pathlib.Path(folder))
        yield fake
        fake.stop()


@pytest.fixture
def client(daemon: Any) -> Iterator[ckptd.Client]:
    with ckptd.connect(daemon.endpoint) as made:
        yield made


@pytest.fixture
def run(client: ckptd.Client, tmp_path: pathlib.Path) -> ckptd.Run:
    return client.run(tmp_path / "root", rank=0, world_size=1)
