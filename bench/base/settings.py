"""Settings of the kernel that a run changes, and that are restored when it ends, however it ends.

As a program, `settings SETTING OURS BEFORE [MOUNT]` waits for the end of its input and then restores a setting. It is
started for each change, and outlives a run that is killed.
"""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
import tempfile
from typing import Iterator, Optional

from bench.base.machine import log

HUGE_RESERVED = pathlib.Path("/proc/sys/vm/nr_hugepages")
SHARED_HUGE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_HUGE_PAGE = 2 << 20


@contextlib.contextmanager
def reserved_huge_pages(size: int) -> Iterator[Optional[pathlib.Path]]:
    """Reserves `size` bytes of huge pages within the block. Yields a file system that has them; None if that fails."""
    pages = -(-size // _HUGE_PAGE)
    consequence = "its buffers are ordinary memory, so it may be slower than the disk"
    try:
        before = int(HUGE_RESERVED.read_text())
        HUGE_RESERVED.write_text(str(before + pages))
    except OSError as error:
        log(f"fio: cannot reserve huge pages ({error.strerror}): {consequence}")
        yield None
        return
    with (
        tempfile.TemporaryDirectory(prefix="huge-pages-") as folder,
        restored(HUGE_RESERVED, _value(HUGE_RESERVED), str(before), folder),
    ):
        size_of_all = f"{pages * 2}M"
        options = f"size={size_of_all},min_size={size_of_all}"
        mount = ["mount", "-t", "hugetlbfs", "-o", options, "none", folder]
        mounted = subprocess.run(mount, capture_output=True, text=True)
        if mounted.returncode != 0:
            log(f"fio: cannot get {pages} huge pages ({mounted.stderr.strip().splitlines()[0]}): {consequence}")
            yield None
        else:
            log(f"fio: reserved {pages * 2} MiB of huge pages for its buffers")
            yield pathlib.Path(folder)


@contextlib.contextmanager
def changed(setting: pathlib.Path, value: str) -> Iterator[None]:
    """Gives a setting another value within the block. SystemExit if the kernel does not take it."""
    before = _value(setting)
    if before == value:
        yield
        return
    try:
        setting.write_text(value)
    except OSError as error:
        raise SystemExit(f"{setting} cannot be set to '{value}': {error.strerror}") from error
    with restored(setting, value, before):
        yield


@contextlib.contextmanager
def restored(setting: pathlib.Path, ours: str, before: str, mount: str = "") -> Iterator[None]:
    """Restores a setting after the block, or when this process is killed within it.

    Args:
        ours: the value that it has now. It is left alone if another program has changed it by then.
        mount: a folder; what is mounted there is unmounted first.
    """
    command = [sys.executable, "-m", __name__, str(setting), ours, before, mount]
    # In a session of its own: what ends this process's group does not end it.
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert guard.stdin
    try:
        yield
    finally:
        guard.stdin.close()
        if guard.wait(60) != 0:
            raise SystemExit(f"{setting} was not restored to '{before}'")


def _value(setting: pathlib.Path) -> str:
    """The word in brackets, where there are several."""
    try:
        words = setting.read_text().split()
    except OSError:
        return "absent"
    return next((word[1:-1] for word in words if word.startswith("[")), words[0])


def _main(setting: pathlib.Path, ours: str, before: str, mount: str) -> None:
    sys.stdin.read()  # Until the run ends.
    if mount and pathlib.Path(mount).is_mount():
        subprocess.run(["umount", "--lazy", mount], check=True)  # A killed run's fio may use it still.
    now = _value(setting)
    if now != ours:
        return log(f"another program has changed {setting} to '{now}'; not restored")
    setting.write_text(before)
    log(f"restored {setting} to '{before}'")


if __name__ == "__main__":
    _main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
