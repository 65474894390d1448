"""A rank that talks to the daemon by gRPC alone, so that only the daemon's own work is measured."""

from __future__ import annotations

import pathlib
import uuid
from typing import Any

import grpc
from ckptd.v1 import messages_pb2 as messages
from ckptd.v1 import service_pb2_grpc
from ckptd.v1 import types_pb2 as types

from bench.base.daemon import Daemon


class Rank:
    """A rank in a session over gRPC alone. Its files are empty, so that a save is only a list of files."""

    def __init__(
        self,
        daemon: Daemon,
        root: pathlib.Path,
        number: int = 0,
        world_size: int = 1,
        launch: str = "",
        files: int = 1,
    ) -> None:
        """launch: the ranks of one launch name the same. Default: one of its own"""
        self.channel = grpc.insecure_channel(
            daemon.endpoint,
            # A connection of its own, as a rank has that is a process.
            options=[("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)],
        )
        self.stub = service_pb2_grpc.CheckpointsStub(self.channel)
        hello = messages.OpenSessionRequest(min_version=1, max_version=1, client_instance=uuid.uuid4().hex)
        self.session = self.stub.OpenSession(hello)
        self.metadata = (("ckptd-token", next(self.session).token),)
        opened = self.stub.OpenRoot(
            messages.OpenRootRequest(path=str(root)), metadata=self.metadata, timeout=60
        )
        self.run = opened.root
        self._number = number
        self._layout = 0  # The daemon's number of `files`, as a client uses it; 0: it has none.
        join = messages.JoinRunRequest(
            root=self.run, rank=number, world_size=world_size, launch_id=launch or uuid.uuid4().hex
        )
        self.stub.JoinRun(join, metadata=self.metadata, timeout=60)
        folder = f"rank_{number}/" if world_size > 1 else ""
        self.files = [
            messages.FileSpec(path=f"{folder}layers/{i // 100}/tensor_{i}.bin") for i in range(files)
        ]

    def save(self, tag: str, commit: bool) -> None:
        """Begins a save of all files, and either commits or aborts it."""
        self.begin(tag, num_kept_ckpts=1)
        if not commit:
            self.stub.Abort(messages.AbortRequest(key=self._key(tag)), metadata=self.metadata, timeout=60)
            return
        self.seal(tag)
        self.wait(tag)

    def begin(self, tag: str, num_kept_ckpts: int = 0) -> None:
        """num_kept_ckpts: 0 keeps all."""
        self._layout = self.begin_later(tag, num_kept_ckpts).result().layout

    def begin_later(self, tag: str, num_kept_ckpts: int = 0) -> Any:
        """Returns the call's future."""
        begin = messages.BeginRequest(key=self._key(tag), layout=self._layout or -1)
        if not self._layout:
            begin.files.extend(self.files)
        if num_kept_ckpts:
            begin.num_kept_ckpts = num_kept_ckpts
        return self.stub.Begin.future(begin, metadata=self.metadata, timeout=60)

    def seal(self, tag: str) -> None:
        seal = messages.SealRequest(key=self._key(tag), as_placed=self._layout > 0)
        if not self._layout:
            seal.files.extend(self.files)
        self.stub.Seal(seal, metadata=self.metadata, timeout=60)

    def wait(self, tag: str) -> None:
        """Waits until the save is committed."""
        wait = messages.WaitRequest(key=self._key(tag), level=types.COMMITTED)
        wait.timeout.FromSeconds(600)
        ended = self.stub.Wait(wait, metadata=self.metadata, timeout=660).checkpoint
        if ended.level != types.COMMITTED:
            raise SystemExit(f"the save of {tag} ended with level {ended.level}: {ended.error.message}")

    def _key(self, tag: str) -> types.SaveKey:
        return types.SaveKey(run=self.run, rank=self._number, tag=tag, ordinal=1)

    def close(self) -> None:
        self.session.cancel()
        self.channel.close()
