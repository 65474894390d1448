"""Trainers that tests kill: processes forked from a server that has imported everything, so that one starts in milliseconds."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import signal
from multiprocessing.connection import Connection
from typing import Any, Dict, Optional, Tuple

import ckptd

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ckptd", "trainer_process"])
TIMEOUT = 60.0
# Seconds that a rank waits for the others' Begin. It waits all of that when one of them died before.
ADMISSION_TIMEOUT = 2.0
# Seconds that a sealed part waits for the other ranks' seals, where the daemon was restarted and never knew of one that died.
COMMIT_TIMEOUT = 4.0


class TrainerProcess:
    """A rank. It runs one command after another; each has an answer."""

    def __init__(self, endpoint: str, launch: str, root: pathlib.Path, rank: int, world_size: int, keep: Optional[int]) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        arguments = (theirs, endpoint, launch, str(root), rank, world_size, keep)
        self.process = CONTEXT.Process(target=_main, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.rank = rank

    def send(self, command: str, *arguments: Any) -> None:
        """Starts a command (a method of _Rank). No-op if the process has ended."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((command, arguments))

    def receive(self, timeout: float = TIMEOUT) -> Any:
        """The answer to the oldest command without one. EOFError if the process has ended."""
        if not self.pipe.poll(timeout):
            raise AssertionError(f"rank {self.rank} did not answer within {timeout} s")
        try:
            return self.pipe.recv()
        except ConnectionResetError:
            raise EOFError from None

    def do(self, command: str, *arguments: Any) -> Any:
        self.send(command, *arguments)
        return self.receive()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(TIMEOUT)

    def close(self) -> None:
        self.kill()
        self.pipe.close()


# ---- in the process of the trainer


def _main(pipe: Connection, endpoint: str, launch: str, root: str, rank: int, world_size: int, keep: Optional[int]) -> None:
    os.environ["CKPTD_LAUNCH_ID"] = launch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trainer = _Rank(pipe, endpoint, root, rank, world_size, keep)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            command, arguments = pipe.recv()
            answer = getattr(trainer, command)(*arguments)
            pipe.send(answer)


class _Rank:
    def __init__(self, pipe: Connection, endpoint: str, root: str, rank: int, world_size: int, keep: Optional[int]) -> None:
        self.pipe = pipe
        self.endpoint = endpoint
        self.root = root
        self.rank = rank
        self.world_size = world_size
        self.keep = keep
        self.run: Any = None
        self.client: Any = None
        self.part: Any = None
        self.sealing: Tuple[str, Any] = ("", None)

    def fork_child(self) -> int:
        """Forks a process that outlives this one and keeps its descriptors open."""
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        return child

    def attach(self) -> str:
        if self.run is not None:
            return "attached"
        self.client = ckptd.connect(self.endpoint, timeout=TIMEOUT)
        self.run = self.client.run(
            self.root, rank=self.rank, world_size=self.world_size, num_kept_ckpts=self.keep, commit_timeout=COMMIT_TIMEOUT
        )
        return "attached"

    def begin(self, tag: str) -> str:
        self.part = self.run.begin(tag)
        return "begun"

    def copy(self, files: Dict[str, bytes]) -> str:
        for name, data in files.items():
            self.part.add(name, data)
        return "copied"

    def seal(self) -> str:
        """Remembers a failure for wait() to answer."""
        self.sealing = self._outcome(self.part.seal)
        return "sealed"

    def wait(self) -> Tuple[str, Any]:
        if self.sealing[0] != "committed":
            return self.sealing
        return self._outcome(lambda: self.part.wait("committed", TIMEOUT))

    def save(self, tag: str, files: Dict[str, bytes]) -> Tuple[str, Any]:
        """("committed", sequence), ("failed", reason) or ("unknown", reason)."""

        def save() -> Any:
            if self.run is None:
                self.attach()
            return self.run.save(tag, files=files, timeout=ADMISSION_TIMEOUT).wait("committed", TIMEOUT)

        return self._outcome(save)

    def _outcome(self, act: Any) -> Tuple[str, Any]:
        try:
            return "committed", act().sequence
        except (ckptd.CheckpointFailed, ckptd.Refused) as error:
            return "failed", error.reason or str(error)
        except ckptd.CkptdError as error:
            return "unknown", f"{type(error).__name__} {error.reason}: {error}"

    def resume(self) -> Tuple[str, Optional[str], int]:
        with self.run.resume(TIMEOUT) as checkpoint:
            return "resumed", checkpoint.tag if checkpoint else None, checkpoint.sequence if checkpoint else 0
