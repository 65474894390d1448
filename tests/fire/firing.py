"""A ckptd that a test kills at a system call of its choice, ranks that save with it, and what it must not leave behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import mmap
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
from typing import Any, Dict, Iterator, List, Optional

import kill_at
from harness import until
from record import Record, Version

import ckptd
from ckptd.local_daemon import find_program

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 30.0
CKPTD = find_program()  # Now, and not by several threads at once, which sysconfig does not take.
POOL_BYTES = 16 << 20
COMMIT = 10.0  # Seconds from the first Begin to the last Seal.
KINDS = {name: number for number, name in kill_at.CALLS.items()}


class Killer:
    """The other side of kill_at.Control, for one life of a program."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        with open(path, "w+b") as file:
            file.truncate(ctypes.sizeof(kill_at.Control))
            self.control = kill_at.Control.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(kill_at.Control)))

    def arm(self, kind: str = "", at: int = 0, after: bool = False, at_exchange: bool = False) -> "Killer":
        self.control.kind = KINDS[kind] if kind else 0
        self.control.at, self.control.after, self.control.at_exchange = at, after, at_exchange
        self.control.armed = 1
        return self

    def disarm(self) -> None:
        self.control.armed = 0

    @property
    def hit(self) -> str:
        """The name of the call at which it struck; empty: not yet."""
        return kill_at.CALLS[self.control.hit] if self.control.hit else ""

    @property
    def count(self) -> int:
        return int(self.control.count)


class Daemon:
    """One ckptd in a folder of its own, and whatever process serves there now."""

    def __init__(self, folder: pathlib.Path, backend: str = "auto", **pool: Any) -> None:
        self.folder = folder
        self.socket = folder / "s"
        self.endpoint = f"unix:{self.socket}"
        self.log_path = folder / "log"
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.pid = 0
        self._configuration = folder / "ckptd.txtpb"
        pool = {"bytes": POOL_BYTES, "segment_bytes": 2 << 20, "huge_pages": "PLAIN", **pool}
        self._configuration.write_text(
            f'socket_path: "{self.socket}"\nstate_directory: "{folder / "state"}"\n'
            f"pool {{ {' '.join(f'{name}: {value}' for name, value in pool.items())} }}\n"
            f"io {{ backend: BACKEND_{backend.upper()} chunk_bytes: 65536 }}\n"
            "degraded_after_seconds: 1\nmetrics { port: -1 }\n"
        )

    def start(self, killer: Optional[Killer] = None, must: bool = True) -> bool:
        """Returns when it serves; false when it ended before, which it may only if not `must`."""
        ready, write = os.pipe()
        command = [CKPTD, f"--config={self._configuration}", f"--ready_fd={write}"]
        if killer is not None:
            # Without the installed packages, for the sake of speed.
            command = [sys.executable, "-I", "-S", str(HERE / "kill_at.py"), str(killer.path), *command]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command, pass_fds=[write], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        os.close(write)
        try:
            assert select.select([ready], [], [], PATIENCE)[0], f"not ready in {PATIENCE} s: {self.log()}"
            serves = os.read(ready, 6) == b"READY\n"
        finally:
            os.close(ready)
        assert serves or not must, f"it did not start: {self.log()[-3000:]}"
        self.pid = int(killer.control.pid) if killer is not None else self.process.pid
        return serves

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait(self) -> int:
        """Returns when nothing of it is left."""
        assert self.process is not None
        return self.process.wait(PATIENCE)

    def fall(self) -> None:
        """Returns when a killer that has struck is through with it."""
        assert self.process is not None
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.kill()  # The call is one that also waits for more to do: it would be over only then.

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self.kill()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def status(self) -> Any:
        with ckptd.connect(self.endpoint) as client:
            return client.status()


class Ranks:
    """The trainers of one launch, as threads of this process: for what does not kill them."""

    def __init__(self, daemon: Daemon, record: Record, world_size: int) -> None:
        self.daemon = daemon
        self.record = record
        self.world_size = world_size
        self._pool = concurrent.futures.ThreadPoolExecutor(world_size)
        self._clients: List[ckptd.Client] = []
        self._runs: Dict[int, ckptd.Run] = {}
        self._lock = threading.Lock()
        self._closing = False

    def connect(self) -> "Ranks":
        """To a daemon that must be there; from then on they come back by themselves."""
        while len(self._clients) < self.world_size:
            self._clients.append(ckptd.connect(self.daemon.endpoint))
        return self

    def save(self, tag: str, size: int) -> "concurrent.futures.Future[None]":
        """All of them; the record has what they heard when the future is done."""
        self.connect()
        version = self.record.begin(tag, self.world_size, size)
        ranks = [self._pool.submit(self._save, rank, version) for rank in range(self.world_size)]
        done: "concurrent.futures.Future[None]" = concurrent.futures.Future()

        def finished(_: Any) -> None:
            with self._lock:
                if done.done() or not all(rank.done() for rank in ranks):
                    return
                error = next((rank.exception() for rank in ranks if rank.exception()), None)
                done.set_exception(error) if error else done.set_result(None)

        for rank in ranks:
            rank.add_done_callback(finished)
        return done

    def run(self, rank: int) -> ckptd.Run:
        if rank not in self._runs:
            self._runs[rank] = self._clients[rank].run(
                str(self.record.root),
                rank=rank,
                world_size=self.world_size,
                num_kept_ckpts=self.record.keep,
                commit_timeout=COMMIT,
            )
        return self._runs[rank]

    def _save(self, rank: int, version: Version) -> None:
        try:
            save = self.run(rank).save(version.tag, files={version.name(rank): version.data(rank)}, timeout=COMMIT)
            save.wait("committed", PATIENCE)
            self.record.committed(version, save.sequence)
        except ckptd.CheckpointFailed as error:
            assert error.reason != "RANKS_MISSING", f"rank {rank} waited in vain for one that lives: {error}"
            self.record.failed(version, error.reason)
        except ckptd.CkptdError:
            if not self._closing:
                raise

    def close(self) -> None:
        """What is under way is given up: nobody hears how it ends."""
        self._closing = True
        for client in self._clients:
            client.close()
        self._pool.shutdown()


def leftovers(root: pathlib.Path) -> List[str]:
    """What is only there while something is under way."""
    node = root / ".ckptd/nodes/local"
    found = [str(path.relative_to(root)) for name in ("inflight", "trash") for path in (node / name).glob("*")]
    return found + [str(node / name) for name in ("swap", "scratch") if (node / name).exists()]


def temporaries(root: pathlib.Path) -> List[str]:
    """Records that were being written. A killed daemon may leave one; it has a fixed name, and goes with the next write."""
    # os.walk, for it takes no offence at what goes away meanwhile.
    return [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith(".tmp")]


def await_nothing_left(root: pathlib.Path) -> None:
    try:
        until(lambda: not leftovers(root), "the end of what is under way", PATIENCE)
    except AssertionError:
        raise AssertionError(f"left behind: {leftovers(root)}") from None


@contextlib.contextmanager
def closing(thing: Any) -> Iterator[Any]:
    try:
        yield thing
    finally:
        thing.close()
