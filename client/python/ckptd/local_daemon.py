"""A private daemon: no service, no root."""

import fcntl
import hashlib
import os
import select
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from typing import Any, Optional, Tuple, Union

from ckptd import errors
from ckptd._client import Client

_START_SECONDS = 30.0
_LONGEST_SOCKET_PATH = 99  # Bytes; the hand-off socket's has 8 more.
_BACKENDS = {"auto": "BACKEND_AUTO", "io_uring": "BACKEND_IO_URING", "threads": "BACKEND_THREADS"}
# What a service manager said to this process is not for its daemon.
_NOT_INHERITED = (
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
)


def find_program(name: str = "ckptd") -> str:
    """A program of this package: $CKPTD_BIN (a path to ckptd; others beside it), else beside this Python,
    else on PATH.
    """
    configured = os.environ.get("CKPTD_BIN")
    if configured:
        path = configured if name == "ckptd" else os.path.join(os.path.dirname(configured), name)
        if os.access(path, os.X_OK):
            return path
        raise errors.NotFound(f'$CKPTD_BIN leads to "{path}", which is no program', reason="NO_PROGRAM")
    schemes = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    if f"{os.name}_user" in sysconfig.get_scheme_names():
        schemes.append(sysconfig.get_path("scripts", f"{os.name}_user"))
    for folder in schemes:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if found:
        return found
    raise errors.NotFound(
        f"the program {name} is neither in {schemes[0]} nor on PATH; pip install ckptd brings it, and $CKPTD_BIN says where else",
        reason="NO_PROGRAM",
    )


class LocalDaemon:
    """Starts the private daemon of a folder, or joins the one that runs there; a context manager.

    Many processes may do so at once: one of them starts it. It outlives its starter until all that is
    sealed is published; then it ends at once when its last user left the `with`, and `idle_timeout` seconds
    later when its users died. What ends it with them: whatever ends every process of a container, a cgroup
    or a login session.

    folder: where its configuration, state and log are; made when missing. pool_bytes: memory for saves in
    flight. io_backend: "auto", "io_uring" or "threads". What the first one to come says of these counts
    until the daemon ends.
    """

    def __init__(
        self,
        folder: "Union[str, os.PathLike[str]]",
        pool_bytes: int = 1 << 30,
        idle_timeout: float = 300.0,
        io_backend: str = "auto",
        log_level: str = "info",
    ) -> None:
        if pool_bytes < 8 << 20:
            raise ValueError(f"pool_bytes is {pool_bytes}; it is at least {8 << 20}")
        if idle_timeout < 0:
            raise ValueError(f"idle_timeout is {idle_timeout}; it is at least 0 seconds")
        if io_backend not in _BACKENDS:
            raise ValueError(f'io_backend is "{io_backend}"; it is "auto", "io_uring" or "threads"')
        self.folder = os.path.abspath(os.fspath(folder))
        self.pool_bytes = int(pool_bytes)
        self.idle_timeout = idle_timeout
        self.io_backend = io_backend
        self.log_level = log_level
        self.log_path = os.path.join(self.folder, "ckptd.log")
        self.socket_path = os.path.join(_socket_folder(self.folder), "ckptd.sock")
        self.endpoint = f"unix:{self.socket_path}"
        self._keeper: Optional[Client] = None

    def start(self) -> "LocalDaemon":
        """As entering the `with`."""
        for folder in {self.folder, os.path.dirname(self.socket_path)}:
            _make_private(folder)
        deadline = time.monotonic() + 2 * _START_SECONDS
        with open(os.path.join(self.folder, "start.lock"), "a", encoding="ascii", opener=_open_private) as lock:
            self._take(lock, deadline)
            self._keeper = self._join(deadline) or self._spawn()
        return self

    def stop(self) -> None:
        """As leaving the `with`: when the last user leaves, the daemon publishes what is sealed and ends."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()

    def __enter__(self) -> "LocalDaemon":
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The daemon's process."""
        if self._keeper is None:
            raise errors.CkptdError("this LocalDaemon has not been started", reason="CLOSED")
        handoff = self._keeper._sessions.current().handoff
        assert handoff is not None  # A keeper has no other way.
        return handoff.daemon_pid()

    def __repr__(self) -> str:
        return f"<ckptd.LocalDaemon {self.folder}>"

    def _take(self, lock: Any, deadline: float) -> None:
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise errors.Unavailable(
                        f"another process has been starting the daemon of {self.folder} for {2 * _START_SECONDS:.0f} s",
                        reason="UNAVAILABLE",
                    ) from None
                time.sleep(0.02)  # flock has no deadline of its own.

    def _join(self, deadline: float) -> Optional[Client]:
        """A keeper's client of the daemon that runs there; None when none does."""
        while True:
            try:
                client = Client(self.endpoint, keeper=True, timeout=5.0)
            except errors.Unavailable as error:
                if error.reason != "DRAINING":
                    return None  # Not there, or a socket that a killed daemon left behind.
            else:
                try:
                    if not client.status().draining:
                        return client
                except errors.Unavailable:
                    pass
                client.close()
            # It publishes what is sealed and ends; then its successor can have the roots.
            if time.monotonic() >= deadline:
                raise errors.Unavailable(
                    f"the daemon of {self.folder} is ending, and has not for long", reason="DRAINING"
                )
            time.sleep(0.05)

    def _spawn(self) -> Client:
        config = os.path.join(self.folder, "ckptd.txtpb")
        with open(config, "w", encoding="utf-8", opener=_open_private) as file:
            file.write(self._configuration())
        ready, theirs = os.pipe()
        try:
            try:
                process, log_begin = self._execute(config, theirs)
            finally:
                os.close(theirs)
            if not _says_ready(ready, _START_SECONDS):
                raise self._did_not_start(process, log_begin)
        finally:
            os.close(ready)
        # It is our child and outlives us; while we live its end must not leave a zombie.
        threading.Thread(target=process.wait, name="ckptd-reaper", daemon=True).start()
        return Client(self.endpoint, keeper=True)

    def _configuration(self) -> str:
        return (
            "# Written by ckptd.LocalDaemon at each start.\n"
            f"socket_path: {_quoted(self.socket_path)}\n"
            'socket_mode: "0600"\n'
            f"state_directory: {_quoted(os.path.join(self.folder, 'state'))}\n"
            f"pool {{ bytes: {self.pool_bytes} }}\n"
            f"io {{ backend: {_BACKENDS[self.io_backend]} }}\n"
            "metrics { port: -1 }\n"
            f"log {{ level: {_quoted(self.log_level)} }}\n"
        )

    def _execute(self, config: str, ready: int) -> "Tuple[subprocess.Popen[bytes], int]":
        command = [find_program(), f"--config={config}", "--private"]
        command += [f"--idle_timeout={int(self.idle_timeout)}", f"--ready_fd={ready}"]
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        with open(self.log_path, "ab", opener=_open_private) as log:
            begin = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(ready,),
                env=environment,
                cwd="/",
                start_new_session=True,  # A Ctrl-C at the trainer is not for it.
            )
        return process, begin

    def _did_not_start(self, process: "subprocess.Popen[bytes]", log_begin: int) -> errors.Unavailable:
        # The pipe may end a moment before the process does.
        with_code = None
        try:
            with_code = process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        how = (
            f"ended with {with_code}"
            if with_code is not None
            else f"was not ready after {_START_SECONDS:.0f} s"
        )
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            log.seek(log_begin)
            tail = "".join(log.readlines()[-15:]).rstrip()
        return errors.Unavailable(
            f"{find_program()} {how}; its log {self.log_path} says:\n{tail}",
            reason="UNAVAILABLE",
        )


def _socket_folder(folder: str) -> str:
    """The folder itself, or, where sockets' names would get too long, one in the temporary directory that
    stands for it.
    """
    if len(os.fsencode(os.path.join(folder, "ckptd.sock"))) <= _LONGEST_SOCKET_PATH:
        return folder
    digest = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"ckptd-{os.getuid()}-{digest}")


def _make_private(folder: str) -> None:
    """Makes the folder, or refuses one in which another user could put a configuration, a lock or a socket."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise errors.Refused(
            f"{folder} is not a directory of this user, uid {os.getuid()}, but a link, or of uid {info.st_uid}: "
            "remove it, or choose another folder",
            reason="WRONG_UID",
        )
    if info.st_mode & 0o022:
        raise errors.Refused(
            f"{folder} has mode {stat.S_IMODE(info.st_mode):04o}, so that others may write there: "
            f"chmod go-w {folder}, or choose another folder",
            reason="WRONG_UID",
        )


def _open_private(path: str, flags: int) -> int:
    """For open(): a file that no other user may read, write or lock; follows no link."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


def _quoted(text: str) -> str:
    """A string of a text proto."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _says_ready(descriptor: int, seconds: float) -> bool:
    """Whether READY comes; False at the end of the pipe (the daemon has ended) or of the time."""
    deadline = time.monotonic() + seconds
    said = b""
    while b"READY" not in said:
        readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(descriptor, 64) if readable else b""
        if not piece:
            return False
        said += piece
    return True
