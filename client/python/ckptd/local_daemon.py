"""A private daemon, for a user without the system service and without root."""

import atexit
import fcntl
import hashlib
import logging
import os
import re
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
from ckptd._paths import directory_path
from ckptd._session import starters

_log = logging.getLogger("ckptd")
_START_SECONDS = 30.0
_RESTART_PAUSE_SECONDS = 5.0  # At least, between two starts of a daemon that ends again and again.
# Bytes. A Unix socket allows 107, and the hand-off socket's path has 8 more than this one.
_MAX_SOCKET_PATH = 99
_BACKENDS = {"auto": "BACKEND_AUTO", "io_uring": "BACKEND_IO_URING", "threads": "BACKEND_THREADS"}
# Variables by which a service manager addresses this process, and not its daemon.
_NOT_INHERITED = (
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_program(name: str = "ckptd") -> str:
    """Returns the path of a program of this package.

    It is beside ``$CKPTD_BIN`` (the path of the program ckptd) if that is set, else beside this Python, else
    on PATH.

    Raises:
        NotFound: there is no such program.
    """
    configured = os.environ.get("CKPTD_BIN")
    if configured:
        path = configured if name == "ckptd" else os.path.join(os.path.dirname(configured), name)
        for each in (configured, path):
            if not _is_program(each):
                raise errors.NotFound(f'$CKPTD_BIN leads to "{each}", which is not a program; set it to the path of ckptd', reason="NO_PROGRAM")
        return path
    schemes = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    if f"{os.name}_user" in sysconfig.get_scheme_names():
        schemes.append(sysconfig.get_path("scripts", f"{os.name}_user"))
    for folder in schemes:
        path = os.path.join(folder, name)
        if _is_program(path):
            return path
    found = shutil.which(name)
    if found:
        return found
    raise errors.NotFound(
        f"the program {name} is neither in {schemes[0]} nor on PATH; install it (pip install ckptd), or set $CKPTD_BIN",
        reason="NO_PROGRAM",
    )


class LocalDaemon:
    """A private daemon: starts the one of a folder, or joins it if it is running. A context manager.

    Many processes may do so at once; one of them starts the daemon, and its arguments count until the daemon
    ends.

    The daemon outlives the process that started it, until everything that is sealed is published. Then it
    ends at once if its last user has left the ``with`` block and no other process is connected, or after
    ``idle_timeout`` if its users have died. A process that does not call :meth:`stop` uses it to its end. If the
    daemon ends before, such as by an out-of-memory kill, a client of this process that needs it starts it again. It
    does not survive what ends every process of a container, a cgroup or a login session.

    Args:
        folder (str or os.PathLike): for its configuration, state and log; made if it is missing.
        pool_bytes (int or str): memory for saves in flight, such as ``"8GiB"``; at least 8 MiB. Default: 1 GiB
        populate_bytes (int or str, optional): how much of that the daemon takes from the system before a save needs
            it. What it does not take at its start makes the first saves slower. Default: all of it
        memory_idle_timeout (int): seconds without a save or a restore, after which the daemon gives the memory that it
            took for saves back to the system; 0: never. The next save takes it again, and a restore reads the disk, so
            let it be longer than the time between two saves. Default: 3600
        idle_timeout (float): seconds, see above. Default: 300
        io_backend (str): ``"auto"``, ``"io_uring"`` or ``"threads"``. Default: ``"auto"``
        log_level (str): of the daemon's log. Default: ``"info"``
        trash_grace (int): seconds for which a deleted checkpoint can be brought back, see :meth:`Run.undelete`.
            Default: 0

    Attributes:
        endpoint (str): for :func:`connect`.
        log_path (str): the daemon's log.
        pool_bytes (int): the pool of the daemon that runs, which its first user has chosen.
    """

    def __init__(
        self,
        folder: "Union[str, os.PathLike[str]]",
        pool_bytes: "Union[int, str]" = 1 << 30,
        idle_timeout: float = 300.0,
        io_backend: str = "auto",
        log_level: str = "info",
        trash_grace: int = 0,
        populate_bytes: "Optional[Union[int, str]]" = None,
        memory_idle_timeout: int = 3600,
    ) -> None:
        pool_bytes = _bytes_of(pool_bytes)
        if pool_bytes < 8 << 20:
            raise ValueError(f"pool_bytes is {pool_bytes}; it must be at least {8 << 20}")
        populate_bytes = pool_bytes if populate_bytes is None else _bytes_of(populate_bytes, "populate_bytes")
        if not 0 <= populate_bytes <= pool_bytes:
            raise ValueError(f"populate_bytes is {populate_bytes}; it must be 0 to pool_bytes, which is {pool_bytes}")
        if idle_timeout < 0:
            raise ValueError(f"idle_timeout is {idle_timeout}; it must be at least 0 seconds")
        if io_backend not in _BACKENDS:
            raise ValueError(f'io_backend is "{io_backend}"; it must be "auto", "io_uring" or "threads"')
        if not 0 <= trash_grace <= 31536000:
            raise ValueError(f"trash_grace is {trash_grace}; it must be 0 to 31536000 seconds (a year)")
        if not 0 <= memory_idle_timeout <= 31536000:
            raise ValueError(f"memory_idle_timeout is {memory_idle_timeout}; it must be 0 to 31536000 seconds (a year)")
        self.folder = directory_path(folder, "folder")
        self.pool_bytes = pool_bytes
        self.populate_bytes = populate_bytes
        self.memory_idle_timeout = memory_idle_timeout
        self.idle_timeout = idle_timeout
        self.io_backend = io_backend
        self.log_level = log_level
        self.trash_grace = trash_grace
        self.log_path = os.path.join(self.folder, "ckptd.log")
        self.socket_path = os.path.join(_socket_folder(self.folder), "ckptd.sock")
        self.endpoint = f"unix:{self.socket_path}"
        self._keeper: Optional[Client] = None
        self._lock = threading.Lock()  # Held while the daemon is started again.
        self._started_at = 0.0  # time.monotonic() of the last start.

    def start(self) -> "LocalDaemon":
        """Starts or joins the daemon, as entering the ``with`` block does.

        Raises:
            Unavailable: the daemon did not start, with the end of its log; or another process has been
                starting it, or the one before has been shutting down, for a minute.
            Refused: another user could write to the folder.
            NotFound: the program ckptd is not installed.
        """
        self._keeper = self._join_or_spawn()
        starters.add(self.endpoint, self._start_again)
        _at_exit()
        return self

    def stop(self) -> None:
        """Leaves the daemon, as leaving the ``with`` block does.

        After the last user, and when no other process is connected, it publishes what is sealed and ends.
        """
        starters.remove(self.endpoint, self._start_again)  # First: a client that loses the daemon now must not start it.
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()

    def _join_or_spawn(self) -> Client:
        """Returns a client that keeps the daemon alive."""
        for folder in {self.folder, os.path.dirname(self.socket_path)}:
            _make_private(folder)
        deadline = time.monotonic() + 2 * _START_SECONDS
        with open(os.path.join(self.folder, "start.lock"), "a", encoding="ascii", opener=_open_private) as lock:
            self._take(lock, deadline)  # Of several processes one starts the daemon; the others find it running.
            return self._join(deadline) or self._spawn()

    def _start_again(self) -> None:
        """Starts or joins the daemon, which has ended. errors.Unavailable if it was started a moment ago."""
        with self._lock:
            if time.monotonic() - self._started_at < _RESTART_PAUSE_SECONDS:
                raise errors.Unavailable(
                    f"the private daemon of {self.folder} has ended, or could not be started, a moment ago; its log "
                    f"{self.log_path} says why",
                    reason="UNAVAILABLE",
                )
            self._started_at = time.monotonic()
            _log.warning("ckptd: the private daemon of %s has ended, and is started again; see %s", self.folder, self.log_path)
            keeper, self._keeper = self._keeper, self._join_or_spawn()
        if keeper is not None:
            keeper.close()

    def __enter__(self) -> "LocalDaemon":
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The id of the daemon's process."""
        if self._keeper is None:
            raise errors.CkptdError("this LocalDaemon has not been started", reason="CLOSED")
        handoff = self._keeper._connection.session().handoff
        assert handoff is not None  # A keeper insists on it.
        return handoff.daemon_pid()

    def __repr__(self) -> str:
        return f"<ckptd.LocalDaemon {self.folder}>"

    def _take(self, lock: Any, deadline: float) -> None:
        """Locks the file `lock`. errors.Unavailable at the deadline."""
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
        """Returns a client that keeps the running daemon alive; None if none is running."""
        while True:
            try:
                client = Client(self.endpoint, keeper=True, timeout=5.0)
            except errors.Unavailable as error:
                if error.reason != "DRAINING":
                    return None  # There is no socket, or a killed daemon has left it behind.
            else:
                try:
                    status = client.status()
                    if not status.draining:
                        self._take_over_settings(status)
                        return client
                except errors.Unavailable:
                    pass
                client.close()
            # It publishes what is sealed and ends. Only then can the next daemon have its roots.
            if time.monotonic() >= deadline:
                raise errors.Unavailable(
                    f"the daemon of {self.folder} is still shutting down; try again later", reason="DRAINING"
                )
            time.sleep(0.05)

    def _take_over_settings(self, status: Any) -> None:
        """Takes over the pool of the daemon that runs, which the process that started it has chosen; warns if it differs."""
        running, segment = int(status.pool.total_bytes), max(1, int(status.pool.segment_bytes))
        if running != self.pool_bytes // segment * segment:  # The daemon rounds down to whole segments.
            _log.warning(
                "ckptd: the daemon of %s runs with pool_bytes=%d, as its first user asked; pool_bytes=%d counts when it is "
                "started anew",
                self.folder,
                running,
                self.pool_bytes,
            )
        self.pool_bytes = running

    def _spawn(self) -> Client:
        """Starts the daemon; returns a client that keeps it alive."""
        config = os.path.join(self.folder, "ckptd.txtpb")
        with open(config, "w", encoding="utf-8", opener=_open_private) as file:
            file.write(self._configuration())
        ready, theirs = os.pipe()
        try:
            try:
                process, log_begin = self._execute(config, theirs)
            finally:
                os.close(theirs)  # Only the daemon holds it then: the pipe ends if the daemon does.
            if not _says_ready(ready, _START_SECONDS):
                raise self._did_not_start(process, log_begin)
        finally:
            os.close(ready)
        # The daemon is our child. Reap it if it ends before us.
        threading.Thread(target=process.wait, name="ckptd-reaper", daemon=True).start()
        return Client(self.endpoint, keeper=True)

    def _configuration(self) -> str:
        ahead = f" populate_ahead_bytes: {self.populate_bytes}" if self.populate_bytes != self.pool_bytes else ""
        return (
            "# Written by ckptd.LocalDaemon at each start.\n"
            f"socket_path: {_quoted(self.socket_path)}\n"
            'socket_mode: "0600"\n'
            f"state_directory: {_quoted(os.path.join(self.folder, 'state'))}\n"
            f"pool {{ bytes: {self.pool_bytes}{ahead} idle_seconds: {int(self.memory_idle_timeout)} }}\n"
            f"io {{ backend: {_BACKENDS[self.io_backend]} }}\n"
            "metrics { port: -1 }\n"
            f"limits {{ trash_grace_seconds: {int(self.trash_grace)} }}\n"
            f"log {{ level: {_quoted(self.log_level)} }}\n"
        )

    def _execute(self, config: str, ready: int) -> "Tuple[subprocess.Popen[bytes], int]":
        """Starts the process; returns it, and where its output begins in the log."""
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
                cwd="/",  # The daemon outlives this process, and must not keep its directory's file system busy.
                start_new_session=True,  # A Ctrl-C in the trainer's terminal must not reach it.
            )
        return process, begin

    def _did_not_start(self, process: "subprocess.Popen[bytes]", log_begin: int) -> errors.Unavailable:
        # Wait for the process: its pipe may be closed a moment before it ends.
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
    """Returns the folder itself, or one in the temporary directory if the sockets' paths would be too long."""
    if len(os.fsencode(os.path.join(folder, "ckptd.sock"))) <= _MAX_SOCKET_PATH:
        return folder
    digest = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"ckptd-{os.getuid()}-{digest}")


def _make_private(folder: str) -> None:
    """Makes a folder, or refuses one in which another user could put a configuration, a lock or a socket."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        is_directory = stat.S_ISDIR(info.st_mode)
        why = f"belongs to uid {info.st_uid}" if is_directory else "is a link and not a directory"
        raise errors.Refused(
            f"{folder} {why}, so that another user may write there; this user is uid {os.getuid()}: have its owner or root "
            "remove it, or choose another folder (for the daemon that adapters start: another $TMPDIR, or $CKPTD_ENDPOINT)",
            reason="WRONG_UID",
        )
    if info.st_mode & 0o022:
        raise errors.Refused(
            f"{folder} has mode {stat.S_IMODE(info.st_mode):04o}, so that others may write there: "
            f"chmod go-w {folder}, or choose another folder",
            reason="WRONG_UID",
        )


def _open_private(path: str, flags: int) -> int:
    """Opens, for open(), a file that no other user may read, write or lock. Does not follow a link."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


_registered = False


def _at_exit() -> None:
    """Has the process start no daemon again while it ends. The clients of a process close after that."""
    global _registered
    if not _registered:
        _registered = True
        # Handlers run in the reverse order, and the keeper has just registered the one of all clients.
        atexit.register(starters.clear)


def _bytes_of(size: "Union[int, str]", name: str = "pool_bytes") -> int:
    """Returns a number of bytes; a str has a unit, such as "8GiB"."""
    if not isinstance(size, str):
        return int(size)
    found = re.fullmatch(r"(\d+) ?([KMGT])iB", size.strip())
    if found is None:
        raise ValueError(f'{name} is "{size}"; it must be a number of bytes, or such as "8GiB" or "512MiB"')
    return int(found[1]) << 10 * ("KMGT".index(found[2]) + 1)


def _quoted(text: str) -> str:
    """Quotes a string for a text proto."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _says_ready(descriptor: int, seconds: float) -> bool:
    """Returns whether READY comes in time. False also at the end of the pipe, when the daemon has ended."""
    deadline = time.monotonic() + seconds
    poll = select.poll()  # select() refuses descriptors above 1023.
    poll.register(descriptor, select.POLLIN)
    received = b""
    while b"READY" not in received:
        readable = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        piece = os.read(descriptor, 64) if readable else b""
        if not piece:
            return False
        received += piece
    return True
