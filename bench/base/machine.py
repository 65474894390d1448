"""Settings of the machine, and what a process costs. Used by tools/bench and tools/demo."""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import socket
import struct
import subprocess
import sys
import time
from typing import Callable, Optional, TypeVar

T = TypeVar("T")


def log(line: str = "") -> None:
    """Prints progress to stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


def wait_until(condition: Callable[[], Optional[T]], what: str, timeout: float, interval: float = 0.02) -> T:
    """Polls until `condition` returns something true, and returns that. SystemExit after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out after {timeout:g} s waiting for {what}")
        time.sleep(interval)


def require_disk(folder: pathlib.Path, free: int) -> None:
    """SystemExit unless `folder` is on a disk with `free` bytes left."""
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(folder)], check=True, capture_output=True, text=True
    )
    if kind.stdout.strip() in ("tmpfs", "ramfs"):
        raise SystemExit(
            f"{folder} is in memory ({kind.stdout.strip()}), not on a disk: choose another folder with --dir"
        )
    left = shutil.disk_usage(folder).free
    if left < free:
        raise SystemExit(
            f"{folder} has {left / 1e9:.1f} GB free, and {free / 1e9:.1f} GB are needed: choose another folder with --dir"
        )


# ---- processes


def program(name: str) -> str:
    """The path of ckptd or ckptctl: beside $CKPTD_BIN if that is set, else where the wheel has put it, beside this Python."""
    configured = os.environ.get("CKPTD_BIN")
    if configured and pathlib.Path(configured).is_dir():
        raise SystemExit(f"CKPTD_BIN is a folder, {configured}: set it to the path of the program ckptd")
    place = pathlib.Path(configured or sys.executable).parent / name
    if not os.access(place, os.X_OK):
        raise SystemExit(
            f"no program {place}: run tools/setup" + (", or unset CKPTD_BIN" if configured else "")
        )
    return str(place)


def listener_pid(socket_path: str) -> int:
    """The process id of the listener of a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(socket_path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def written_bytes(pid: int) -> int:
    """Bytes that a process has sent to disks."""
    fields = dict(line.split(": ") for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["write_bytes"])


def processor() -> str:
    """Its name, and the family and model that tell processors of the same name apart."""
    first = pathlib.Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    if "model name" not in fields:  # Not x86.
        return f"{platform.machine()} (part {fields.get('CPU part', 'unknown')})"
    return f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']})"


def private_memory(pid: int) -> int:
    """Resident bytes of a process without shared memory: VmRSS - RssShmem."""
    fields = dict(
        line.split(":", 1)
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":" in line
    )
    return (int(fields["VmRSS"].split()[0]) - int(fields["RssShmem"].split()[0])) * 1024


def process_runs(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
