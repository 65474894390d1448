"""Clients without the checks of the package's own client: they send arbitrary frames and calls."""

import collections
import contextlib
import mmap
import os
import threading
import time
import uuid

import grpc
from harness import HandoffConnection, alive

from ckptd.v1 import handoff_pb2 as handoff
from ckptd.v1 import messages_pb2 as messages
from ckptd.v1 import service_pb2_grpc
from ckptd.v1 import types_pb2 as types

CALL_TIMEOUT = 20.0


class Attacker:
    """A session over gRPC (bytes by WriteFile), or, with `descriptors`, on the hand-off socket."""

    def __init__(self, daemon, descriptors=False, instance=None):
        instance = instance or uuid.uuid4().hex
        self.channel = grpc.insecure_channel(daemon.endpoint, options=[("grpc.use_local_subchannel_pool", 1)])
        self.stub = service_pb2_grpc.CheckpointsStub(self.channel)
        self.wire = self.stream = None
        if descriptors:
            self.wire = HandoffConnection(daemon.endpoint)
            token = self.wire.hello(instance).hello.token
        else:
            request = messages.OpenSessionRequest(min_version=1, max_version=1, client_instance=instance)
            self.stream = self.stub.OpenSession(request)
            token = next(self.stream).token
        self.metadata = (("ckptd-token", token),)

    def call(self, name, request, timeout=CALL_TIMEOUT):
        return getattr(self.stub, name)(request, metadata=self.metadata, timeout=timeout)

    def refused(self, name, request):
        """Expects an error, and returns its (code, reason)."""
        try:
            answer = self.call(name, request)
        except grpc.RpcError as error:
            return error.code(), reason_of(error)
        raise AssertionError(f"{name} was answered: {answer}")

    def join(self, root, rank=0, world_size=1, launch="attack"):
        if self.wire:
            directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            try:
                answer, _ = self.wire.ask([directory], attach_root=handoff.AttachRoot(path=root))
            finally:
                os.close(directory)
            self.run = answer.attach_root.root
            assert self.run, answer
        else:
            self.run = self.call("OpenRoot", messages.OpenRootRequest(path=root)).root
        self.rank = rank
        request = messages.JoinRunRequest(root=self.run, rank=rank, world_size=world_size, launch_id=launch)
        self.call("JoinRun", request)
        return self

    def key(self, tag):
        return types.SaveKey(run=self.run, rank=self.rank, tag=tag, ordinal=1)

    def begin(self, tag, size=1 << 20, commit_timeout=600, **more):
        request = messages.BeginRequest(key=self.key(tag), files=[messages.FileSpec(path=f"f{self.rank}", size_bytes=size)])
        request.commit_timeout.FromMilliseconds(int(commit_timeout * 1000))
        request.MergeFrom(messages.BeginRequest(**more))
        return request

    def seal(self, tag, size=1 << 20):
        return messages.SealRequest(key=self.key(tag), files=[messages.FileSpec(path=f"f{self.rank}", size_bytes=size)])

    def wait(self, tag):
        request = messages.WaitRequest(key=self.key(tag), level=types.COMMITTED)
        return self.call("Wait", request).checkpoint

    def write(self, tag, pieces):
        """Starts a WriteFile of what `pieces` yields. Returns the call, which ends with its result or by
        cancel.
        """

        def stream():
            yield messages.WriteFileRequest(header=messages.WriteFileHeader(key=self.key(tag), path=f"f{self.rank}"))
            for piece in pieces:
                yield messages.WriteFileRequest(data=piece)

        return self.stub.WriteFile.future(stream(), metadata=self.metadata, timeout=CALL_TIMEOUT)

    def save(self, tag, data=b"x" * 100_000):
        """Saves as a correct client does: begins, writes, seals, and waits for the commit."""
        self.call("Begin", self.begin(tag, len(data)))
        if data:
            self.write(tag, [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]).result()
        self.call("Seal", self.seal(tag, len(data)))
        ended = self.wait(tag)
        assert ended.level == types.COMMITTED, ended

    def map(self, segments):
        """Maps the segments that a Begin has granted."""
        ids = handoff.FetchSegments(ids=[segment.id for segment in segments])
        answer, descriptors = self.wire.ask(fetch_segments=ids)
        mapped = [mmap.mmap(fd, s.size_bytes) for fd, s in zip(descriptors, answer.fetch_segments.segments)]
        for descriptor in descriptors:
            os.close(descriptor)
        return mapped

    def close(self):
        if self.stream is not None:
            self.stream.cancel()
        if self.wire is not None:
            self.wire.close()
        self.channel.close()


def reason_of(error):
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            # google.rpc.Status > Any > ErrorInfo, whose first field is the reason, in upper case.
            start = value.index(b"ErrorInfo") + len("ErrorInfo")
            info = value[start:]
            at = info.index(b"\n", 2)
            return info[at + 2 : at + 2 + info[at + 1]].decode()
    return ""


def descriptor_kinds(daemon):
    """Counts the daemon's descriptors by kind: "socket", "anon_inode", or a path. Leaves out the pool's
    memory, which the daemon allocates ahead at its own pace.
    """
    kinds = collections.Counter()
    for number in os.listdir(f"/proc/{daemon.pid}/fd"):
        with contextlib.suppress(OSError):
            kinds[os.readlink(f"/proc/{daemon.pid}/fd/{number}").split(":[")[0]] += 1
    del kinds["/memfd:ckptd-segment (deleted)"]
    return kinds


def descriptors_of(daemon):
    return sum(descriptor_kinds(daemon).values())


def memory_of(daemon):
    """Returns the daemon's private memory in bytes, without the pool, which is shared memory."""
    with open(f"/proc/{daemon.pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


@contextlib.contextmanager
def others_are_served(daemon, rank, within=10.0):
    """While the block runs, a healthy client saves repeatedly: at least three times, each within `within`
    seconds. Afterwards the daemon is the same process and has no more descriptors than before.
    """
    rank.save(f"healthy{uuid.uuid4().hex}")
    before = descriptors_of(daemon)
    kinds = descriptor_kinds(daemon)
    slowest, failure, over = [0.0], [], threading.Event()
    saved = [0]

    def save():
        try:
            while not over.is_set() or saved[0] < 3:
                started = time.monotonic()
                rank.save(f"healthy{uuid.uuid4().hex}")
                slowest[0] = max(slowest[0], time.monotonic() - started)
                saved[0] += 1
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failure, failure
    assert alive(daemon.pid) and slowest[0] < within, f"a healthy save took {slowest[0]:.1f} s"
    deadline = time.monotonic() + CALL_TIMEOUT
    # One or two saves may still run; and while the daemon accepts a connection, it inspects the peer's
    # process.
    while (now := descriptors_of(daemon)) > before + 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert now <= before + 2, descriptor_kinds(daemon) - kinds
