"""Trainers that are killed: processes of their own, forked from a server that has imported everything, so that one starts in
milliseconds.
"""

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
CONTEXT.set_forkserver_preload(["ckptd", "trainers"])
PATIENCE = 60.0
# How long a rank waits for the others' Begin: all of it when one of them died before.
ADMISSION = 2.0
# And how long one that has sealed waits for the others' seal, when the daemon does not know that one has died: its own life was
# shorter.
COMMIT = 4.0


class Trainer:
    """A rank, and what it says. One that is gone says nothing: EOFError."""

    def __init__(self, endpoint: str, launch: str, root: pathlib.Path, rank: int, world_size: int, keep: Optional[int]) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        arguments = (theirs, endpoint, launch, str(root), rank, world_size, keep)
        self.process = CONTEXT.Process(target=_live, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.rank = rank

    def tell(self, command: str, *arguments: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((command, arguments))

    def hear(self, timeout: float = PATIENCE) -> Any:
        if not self.pipe.poll(timeout):
            raise AssertionError(f"rank {self.rank} said nothing for {timeout} s")
        try:
            return self.pipe.recv()
        except ConnectionResetError:
            raise EOFError from None

    def do(self, command: str, *arguments: Any) -> Any:
        self.tell(command, *arguments)
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE)

    def close(self) -> None:
        self.kill()
        self.pipe.close()


# ---- in the process of the trainer


def _live(pipe: Connection, endpoint: str, launch: str, root: str, rank: int, world_size: int, keep: Optional[int]) -> None:
    os.environ["CKPTD_LAUNCH_ID"] = launch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    life = _Life(pipe, endpoint, root, rank, world_size, keep)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            command, arguments = pipe.recv()
            answer = getattr(life, command)(*arguments)
            pipe.send(answer)


class _Life:
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
        """One that has everything of ours open, and outlives us."""
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        return child

    def attach(self) -> str:
        if self.run is not None:
            return "attached"
        self.client = ckptd.connect(self.endpoint, timeout=PATIENCE)
        self.run = self.client.run(
            self.root, rank=self.rank, world_size=self.world_size, num_kept_ckpts=self.keep, commit_timeout=COMMIT
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
        """What goes wrong is what wait() answers."""
        self.sealing = self._outcome(self.part.seal)
        return "sealed"

    def wait(self) -> Tuple[str, Any]:
        if self.sealing[0] != "committed":
            return self.sealing
        return self._outcome(lambda: self.part.wait("committed", PATIENCE))

    def save(self, tag: str, files: Dict[str, bytes]) -> Tuple[str, Any]:
        """("committed", sequence), ("failed", reason) or ("unknown", reason)."""

        def save() -> Any:
            if self.run is None:
                self.attach()
            return self.run.save(tag, files=files, timeout=ADMISSION).wait("committed", PATIENCE)

        return self._outcome(save)

    def _outcome(self, act: Any) -> Tuple[str, Any]:
        try:
            return "committed", act().sequence
        except (ckptd.CheckpointFailed, ckptd.Refused) as error:
            return "failed", error.reason or str(error)
        except ckptd.CkptdError as error:
            return "unknown", f"{type(error).__name__} {error.reason}: {error}"

    def resume(self) -> Tuple[str, Optional[str], int]:
        with self.run.resume(PATIENCE) as checkpoint:
            return "resumed", checkpoint.tag if checkpoint else None, checkpoint.sequence if checkpoint else 0
