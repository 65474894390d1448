"""Starts trainers by fork from a process that has imported what they need.

Importing torch takes more than a second of processor time, and the tests start hundreds of trainers. A fork takes some
milliseconds. One server runs for each set of imports, as long as the tests' own process.

A forked trainer differs from one that was executed: its parent is the server, /proc/PID/cmdline is the server's, memory of
imported modules counts as its own in VmRSS, and trainers of one server have the same seed of str's hashes. The server imports,
but calls nothing: it has one thread, no gRPC, and no state of torch that a fork would break.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Optional

# What a process reads while it starts and imports. All other variables are set after the fork.
_READ_BY_IMPORTS = ("CKPTD_TEST_IMPORTS", "CKPTD_TEST_TORCH", "PYTHONPATH")
_MAX_REQUEST_BYTES = 1 << 20
_SECONDS = 180  # For an answer; the first one comes after the imports.
_STDERR = 2
_STANDARD_STREAMS = 3


class ForkedProcess:
    """A trainer started by fork; as much of subprocess.Popen as the tests use, with pipes of text."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._server = _server(environment)
        self.returncode: Optional[int] = None
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self.stdin = os.fdopen(ours_in, "w")
        self.stdout = os.fdopen(ours_out)
        try:
            request = {"environment": dict(environment), "cwd": os.getcwd()}
            self.pid = self._server.ask(request, theirs_in, theirs_out, _STDERR)
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._pidfd = os.pidfd_open(self.pid)  # The server reaps a process only when poll() asks it to.

    def poll(self) -> Optional[int]:
        if self.returncode is None and self._ended(0):
            self.returncode = os.waitstatus_to_exitcode(self._server.ask({"reap": self.pid}))
            os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        if self.returncode is None and not self._ended(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(["trainer"], timeout)
        status = self.poll()
        assert status is not None
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ended(self, timeout: Optional[float]) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))


class _Server:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_SECONDS)
        self._lock = threading.Lock()
        read = {name: environment[name] for name in _READ_BY_IMPORTS if name in environment}
        # OpenBLAS starts its threads when numpy loads it.
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=theirs, env={**os.environ, **read, "OPENBLAS_NUM_THREADS": "1"}
            )

    def ask(self, request: Mapping[str, Any], *descriptors: int) -> int:
        with self._lock:
            answer = b""
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
                answer = self._socket.recv(_MAX_REQUEST_BYTES)
        assert answer, "the server of trainers has ended: stderr says why"
        return int(answer)


_servers: dict[tuple[Optional[str], ...], _Server] = {}


def _server(environment: Mapping[str, str]) -> _Server:
    key = tuple(environment.get(name) for name in _READ_BY_IMPORTS)
    if key not in _servers:
        _servers[key] = _Server(environment)
    return _servers[key]


def _serve() -> None:
    """Returns in each trainer, which then runs on, and in the server when the tests' process has ended."""
    import trainer_program  # Beside this file, which runs as a program here.

    before = dict(os.environ)
    namespace = trainer_program.imports()
    if "torch" in sys.modules:
        import torch._dynamo  # noqa: F401  # The first optimizer of a process imports it: half a second and more.
    set_by_imports = dict(os.environ.items() - before.items())
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"imports started {len(threads) - 1} threads: a fork would lose them"
    requests = socket.socket(fileno=0)
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, _STANDARD_STREAMS)
        if not data:
            return
        request = json.loads(data)
        if "reap" in request:
            requests.send(str(os.waitpid(request["reap"], 0)[1]).encode())
            continue
        pid = os.fork()
        if pid == 0:
            requests.detach()  # The trainer's own stdin takes its place.
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.environ.clear()
            os.environ.update({**request["environment"], **set_by_imports})
            os.chdir(request["cwd"])
            trainer_program.run(namespace)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())


if __name__ == "__main__":
    _serve()
