"""File systems on loop devices and in memory, which a test may fill, freeze and break."""

from __future__ import annotations

import fcntl
import os
import pathlib
import struct
import subprocess
from typing import List

from harness import until

EXT4_IOC_SHUTDOWN, NOLOGFLUSH = 0x8004587D, 2


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stderr}"


class Disk:
    """A mounted file system; `root` is an empty folder on it."""

    def __init__(self, folder: pathlib.Path, mebibytes: int) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        self.mebibytes = mebibytes
        self.image = folder / "disk.img"
        self._ballast: List[pathlib.Path] = []
        self.make()
        self.mount()
        self.root = self.path / "ckpts"
        self.root.mkdir()

    def make(self) -> None:
        raise NotImplementedError

    def mount(self) -> None:
        raise NotImplementedError

    def fill(self) -> None:
        """Takes all free space, as another program would."""
        path = self.path / f"ballast{len(self._ballast)}"
        self._ballast.append(path)
        with open(path, "wb") as file:
            size = 1 << 20
            while size >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError:
                    size //= 2

    def free(self) -> None:
        while self._ballast:
            self._ballast.pop().unlink()

    def unmount(self) -> None:
        until(
            lambda: subprocess.run(["umount", str(self.path)], capture_output=True).returncode == 0,
            f"{self.path} to be unmounted",
            30,
        )

    def close(self) -> None:
        subprocess.run(["fsfreeze", "--unfreeze", str(self.path)], capture_output=True)
        try:
            self.unmount()
        except AssertionError:
            run("umount", "--lazy", str(self.path))


class Tmpfs(Disk):
    def make(self) -> None:
        pass

    def mount(self) -> None:
        run("mount", "-t", "tmpfs", "-o", f"size={self.mebibytes}m", "ckptd-kill", str(self.path))


class Ext4(Disk):
    def make(self) -> None:
        with open(self.image, "wb") as file:
            file.truncate(self.mebibytes << 20)
        run("mkfs.ext4", "-q", "-m", "0", str(self.image))

    def mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.path))

    @property
    def device(self) -> str:
        done = subprocess.run(["findmnt", "-no", "SOURCE", str(self.path)], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def freeze(self) -> None:
        run("fsfreeze", "--freeze", str(self.path))

    def thaw(self) -> None:
        run("fsfreeze", "--unfreeze", str(self.path))

    def detect_an_error(self) -> None:
        """The kernel finds an error, and makes the file system read-only at once, also for open files."""
        name = pathlib.Path(self.device).name
        pathlib.Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("a test of ckptd")

    def lose_the_device(self) -> None:
        """Makes every later call that needs the device fail."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        finally:
            os.close(descriptor)

    def repair(self) -> None:
        """Checks and remounts it, as an operator does. Nothing may have it open."""
        self.unmount()
        until(lambda: not self._loops(), "the loop device to be released", 30)
        done = subprocess.run(["e2fsck", "-fy", str(self.image)], capture_output=True, text=True)
        assert done.returncode <= 1, done.stdout
        self.mount()

    def _loops(self) -> str:
        return subprocess.run(["losetup", "--associated", str(self.image)], capture_output=True, text=True).stdout
