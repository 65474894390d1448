"""How much memory the daemon keeps of saves that have ended."""

from __future__ import annotations

import pathlib
import uuid
from typing import List

import grpc
from ckptd.v1 import messages_pb2 as messages
from ckptd.v1 import service_pb2_grpc
from ckptd.v1 import types_pb2 as types

from bench.base import machine
from bench.base.context import MIB, BenchContext
from bench.base.daemon import Daemon
from bench.base.result import Result

FILES = 10_000


def run(context: BenchContext) -> None:
    saves, committed = (300, 1) if context.quick else (10_000, 3)
    with context.daemon(64 * MIB) as daemon:
        first, last = memory_of_saves(daemon, context.new_root(), saves, committed)
    words = (
        f"growth outside the pool from the first save of {FILES} files to {saves} more that are aborted and "
        f"{committed} that are committed; {last / MIB:.0f} MiB at the end"
    )
    context.report(Result("daemon.rss_of_ended_saves_mib", (last - first) / MIB, "MiB", words, 32))


class Rank:
    """The only rank of a job, in a session over gRPC alone. Its files are empty, so that a save is only a list of files."""

    def __init__(self, daemon: Daemon, root: pathlib.Path) -> None:
        self.channel = grpc.insecure_channel(
            daemon.endpoint, options=[("grpc.max_receive_message_length", -1)]
        )
        self.stub = service_pb2_grpc.CheckpointsStub(self.channel)
        hello = messages.OpenSessionRequest(min_version=1, max_version=1, client_instance=uuid.uuid4().hex)
        self.session = self.stub.OpenSession(hello)
        self.metadata = (("ckptd-token", next(self.session).token),)
        opened = self.stub.OpenRoot(
            messages.OpenRootRequest(path=str(root)), metadata=self.metadata, timeout=60
        )
        self.run = opened.root
        join = messages.JoinRunRequest(root=self.run, rank=0, world_size=1, launch_id=uuid.uuid4().hex)
        self.stub.JoinRun(join, metadata=self.metadata, timeout=60)
        self.files = [messages.FileSpec(path=f"layers/{i // 100}/tensor_{i}.bin") for i in range(FILES)]

    def save(self, tag: str, commit: bool) -> None:
        """Begins a save of all files, and either commits or aborts it."""
        key = types.SaveKey(run=self.run, rank=0, tag=tag, ordinal=1)
        begin = messages.BeginRequest(key=key, files=self.files, num_kept_ckpts=1)
        self.stub.Begin(begin, metadata=self.metadata, timeout=60)
        if not commit:
            self.stub.Abort(messages.AbortRequest(key=key), metadata=self.metadata, timeout=60)
            return
        self.stub.Seal(messages.SealRequest(key=key, files=self.files), metadata=self.metadata, timeout=60)
        wait = messages.WaitRequest(key=key, level=types.COMMITTED)
        wait.timeout.FromSeconds(600)
        ended = self.stub.Wait(wait, metadata=self.metadata, timeout=660).checkpoint
        if ended.level != types.COMMITTED:
            raise SystemExit(f"the save of {tag} ended with level {ended.level}: {ended.error.message}")

    def close(self) -> None:
        self.session.cancel()
        self.channel.close()


def memory_of_saves(daemon: Daemon, root: pathlib.Path, saves: int, committed: int) -> List[int]:
    """The daemon's bytes outside the pool, after one save, and after `saves` more that were aborted and `committed` more that
    were committed.
    """
    rank = Rank(daemon, root)
    rank.save("first", commit=True)
    measured = [machine.private_memory(daemon.pid)]
    for i in range(saves):
        rank.save(f"step_{i}", commit=False)
    for i in range(committed):
        rank.save(f"kept_{i}", commit=True)
    daemon.wait_until_idle()
    measured.append(machine.private_memory(daemon.pid))
    rank.close()
    return measured
