"""The first process of Linux in user mode: boot.py FOLDER gets the machine ready, runs FOLDER/script there, writes its output and
its exit status to files beside it, and powers the machine off.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys
import traceback

MODULES = pathlib.Path(sys.prefix, "debian/shared-file-systems/usr/lib/uml/modules")
NEEDED = ("overlayfs/overlay.ko", "bridge/bridge.ko", "net/veth.ko", "nfsd/nfsd.ko", "nfs/nfsv4.ko")
MOUNTS = (
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("tmpfs", "/run"),
    ("tmpfs", "/dev/shm"),
)
FINIT_MODULE = 313  # x86-64
POWER_OFF = 0x4321FEDC


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    output = open(folder / "output", "wb")  # Here, because the machine's own disk is going to hide the folder.
    status_file = open(folder / "status", "w")
    try:
        os.environ.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", HOME="/root")
        script = (folder / "script").read_text()
        make_ready()
        status = subprocess.call(["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    except BaseException:
        output.write(traceback.format_exc().encode())
        status = 1
    status_file.write(str(status))
    status_file.close()
    output.close()


def make_ready() -> None:
    os.makedirs("/dev/shm", exist_ok=True)
    for kind, place in MOUNTS:
        mount("-t", kind, kind, place)
    mount("/dev/ubda", "/tmp")
    os.chmod("/tmp", 0o1777)
    for name in NEEDED:
        load(name)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def load(name: str) -> None:
    """Loads a module, after those that it needs."""
    (release,) = MODULES.iterdir()
    for line in (release / "modules.dep").read_text().splitlines():
        module, _, needs = line.partition(":")
        if module.endswith(f"/{name}"):
            for each in [*reversed(needs.split()), module]:
                load_file(release / each)
            return
    raise FileNotFoundError(f"no module {name} in {release}")


def load_file(path: pathlib.Path) -> None:
    if path.stem.replace("-", "_") in {line.split()[0] for line in open("/proc/modules")}:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file:
        if libc.syscall(FINIT_MODULE, file.fileno(), b"", 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))


def power_off() -> None:
    os.sync()
    ctypes.CDLL(None).reboot(POWER_OFF)


if __name__ == "__main__":
    try:
        main()
    finally:
        power_off()
