"""Runs a program whose nodes share a network file system: in namespaces of its own, on a kernel that has the file system. All that
the program starts, mounts and changes there ends with it, however it ends.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple, Optional

from shared_file_systems import LOCAL, VARIABLE, user_mode_linux
from shared_file_systems.file_system import PROGRAMS

from harness.workplace import module_path

_REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
# Programs are in /usr, as if they were installed. What they write beside a test's own folder is in memory.
_PREPARE = """set -e
mount -t overlay programs -o lowerdir={programs}/usr:/usr /usr
for folder in /var/lib /var/log /run; do mount -t tmpfs tmpfs $folder; done
ip link set lo up
cd {repository}
"""
_NAMESPACES = [
    *("setpriv", "--pdeathsig=KILL"),  # Ends with this process, also if that is killed.
    *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"),
]


class Finished(NamedTuple):
    status: int
    output: str


def why_not(name: str) -> str:
    """Why this machine has no sandbox for a file system, or for a local folder; empty if it has one."""
    if os.geteuid() != 0:
        return f"{name} needs root"
    if not PROGRAMS.exists():
        return f"no {PROGRAMS}; run tools/setup"
    probe = "ip link add name bridge0 type bridge; mount -t overlay programs -o lowerdir=/usr:/etc /usr"
    done = subprocess.run([*_NAMESPACES, "sh", "-ec", probe], capture_output=True, text=True)
    if done.returncode:
        return f"{name} needs namespaces, bridges and overlays: {done.stderr.strip()}"
    if name == LOCAL:
        return ""
    if name == "nfs":
        return "" if _kernel_has_nfs() else user_mode_linux.why_not()
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"{name} needs FUSE: {error}"
    return ""


def run_pytest(name: str, arguments: Sequence[str], timeout: float) -> Finished:
    """Runs pytest with these arguments, on a file system. After `timeout` seconds the sandbox ends with all that is in it."""
    process = _start(name, [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], subprocess.PIPE)
    try:
        output, _ = process.communicate(timeout=timeout)
        return Finished(process.returncode, output)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return Finished(-1, f"{output}\nended after {timeout} s")
    finally:
        _end(process)


def run_shown(name: str, command: Sequence[str]) -> int:
    """Runs a command on a file system, or on a local folder, and shows its output. Returns its status."""
    process = _start(name, command, None)
    try:
        return process.wait()
    finally:
        _end(process)


def _start(name: str, command: Sequence[str], output: Optional[int]) -> "subprocess.Popen[str]":
    kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
    environment = {**kept, VARIABLE: name, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/root"}
    words = [f"{key}={value}" for key, value in environment.items()]
    # The shell is the first process of these namespaces, and reaps those whose parents have ended.
    script = _PREPARE.format(programs=PROGRAMS, repository=_REPOSITORY)
    script += f"env -i {shlex.join([*words, *command])} & wait $!\n"
    program = ["sh", "-c", script]
    if name == "nfs" and not _kernel_has_nfs():
        program = user_mode_linux.command(script)
    return subprocess.Popen(
        [*_NAMESPACES, *program],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output and subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": module_path()},
    )


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _kernel_has_nfs() -> bool:
    return {"nfs4", "nfsd"} <= {line.split()[-1] for line in open("/proc/filesystems")}
