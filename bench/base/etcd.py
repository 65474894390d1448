"""One member of Debian's etcd, for daemons that share a root."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Optional

from bench.base import machine

MEMORY = pathlib.Path("/dev/shm")
PROGRAM = pathlib.Path(sys.prefix, "debian/etcd-server/usr/bin/etcd")  # tools/setup unpacks it.


class Etcd:
    """Runs within a `with` block, with its data in a new folder in `parent`. Whether it serves is not waited for."""

    def __init__(self, parent: pathlib.Path) -> None:
        self.endpoint = f"http://127.0.0.1:{machine.free_port()}"
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-etcd-", dir=parent))
        self._process: Optional["subprocess.Popen[bytes]"] = None

    def __enter__(self) -> "Etcd":
        if not PROGRAM.exists():
            raise SystemExit(f"no program {PROGRAM}: run tools/setup")
        peer = f"http://127.0.0.1:{machine.free_port()}"
        arguments = ["--name=m0", f"--data-dir={self._folder / 'data'}", f"--initial-cluster=m0={peer}"]
        arguments += [f"--{kind}-client-urls={self.endpoint}" for kind in ("listen", "advertise")]
        arguments += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        with open(self._folder / "log", "ab") as log:
            command = [str(PROGRAM), *arguments, "--logger=zap", "--log-level=warn"]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)
