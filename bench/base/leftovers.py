"""What a run makes outside of its own memory, and how all of it goes away, however the run ends.

A run has two folders: one for temporary files, and one on the disk that is measured. Each has a file that says which run
it belongs to. The first also has an entry for each setting and mount of the machine that the run has changed. A guard, a
process in a session of its own, waits for the end of the run and then ends its processes, undoes the entries and
removes the folders. What is left when the guard was killed, too, the next run removes.

As a program, `leftovers RUN` is the guard: it waits for the end of its input. RUN is the JSON of a Run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Optional

from bench.base import processes
from bench.base.machine import log, wait_until

MARK = "ckptd-bench-run.json"
UNDO = "undo"  # The folder of the entries.
_PREFIX = "ckptd-bench-"
_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_GUARD_SECONDS = 60.0
_END = "end"  # What the guard reads when a run ends in order.


def _boot_id() -> str:
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


@dataclasses.dataclass
class Run:
    """Names a run among all that have ever been on this machine, and its folders."""

    token: str
    temporary: str
    disk: str
    pid: int
    start_ticks: int
    guard_pid: int = 0
    guard_start_ticks: int = 0
    boot_id: str = dataclasses.field(default_factory=_boot_id)
    pid_namespace: int = dataclasses.field(default_factory=_pid_namespace)
    host: str = dataclasses.field(default_factory=socket.gethostname)

    @property
    def folders(self) -> List[pathlib.Path]:
        return [pathlib.Path(self.temporary), pathlib.Path(self.disk)]

    def is_of_this_boot(self) -> bool:
        return self.boot_id == _boot_id()

    def is_over(self) -> Optional[bool]:
        """None if this process cannot know: the run is on another host, or in another container."""
        if not self.is_of_this_boot():
            return True if self.host == socket.gethostname() else None
        if self.pid_namespace != _pid_namespace():
            return None
        return not self._runs(self.pid, self.start_ticks)

    def has_guard(self) -> bool:
        return self.is_of_this_boot() and self._runs(self.guard_pid, self.guard_start_ticks)

    @staticmethod
    def _runs(pid: int, ticks: int) -> bool:
        return ticks != 0 and processes.start_ticks(pid) == ticks


class Leftovers:
    """For a `with` block, which makes the two folders and removes all that was made within it.

    Within it TMPDIR is the folder for temporary files, for this process and those that it starts.
    """

    def __init__(self, disk: pathlib.Path) -> None:
        """disk: a folder on the disk to measure; it is made if it does not exist."""
        token = secrets.token_hex(4)
        temporary = pathlib.Path(tempfile.gettempdir()) / f"{_PREFIX}{token}"
        pid = os.getpid()
        self.run = Run(token, str(temporary), str(disk / f"b{token}"), pid, processes.start_ticks(pid))
        self.temporary, self.disk = self.run.folders

    def __enter__(self) -> "Leftovers":
        remove_dead_runs([self.temporary.parent, self.disk.parent])
        environment = {name: value for name, value in os.environ.items() if name != processes.VARIABLE}
        environment["PYTHONPATH"] = str(_REPOSITORY)  # Whatever the current folder is.
        command = [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(self.run))]
        # In a session of its own: what ends this process's group does not end it.
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True, env=environment)
        self.run.guard_pid = self._guard.pid
        self.run.guard_start_ticks = processes.start_ticks(self._guard.pid)
        self._before = {name: os.environ.get(name) for name in (processes.VARIABLE, "TMPDIR")}
        try:
            for folder in self.run.folders:
                folder.mkdir(parents=True)
                folder.chmod(0o711)  # The hostile user of a case must reach a daemon's socket.
                (folder / MARK).write_text(json.dumps(dataclasses.asdict(self.run)))
            (self.temporary / UNDO).mkdir()
        except BaseException:
            self._end()
            raise
        os.environ.update({processes.VARIABLE: self.run.token, "TMPDIR": str(self.temporary)})
        tempfile.tempdir = None  # So that it reads TMPDIR again.
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        tempfile.tempdir = None
        self._end()

    def let_go(self) -> None:
        """For a forked child: it no longer keeps the guard from seeing the end of the run."""
        assert self._guard.stdin
        self._guard.stdin.close()

    def _end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.communicate(_END, timeout=_GUARD_SECONDS)
        self._guard.kill()  # No-op if it has ended.
        self._guard.wait()
        remove(self.run)  # No-op, unless the guard was killed.

    def undo_all(self) -> None:
        """Undoes what a killed round of this run has left."""
        _undo_all(self.temporary)

    @contextlib.contextmanager
    def undone(self, entry: Dict[str, str]) -> Iterator["Entry"]:
        """Undoes a change of the machine after the block, or when the run is killed within it. The block makes the change.

        Args:
            entry: {"mount": FOLDER}, or {"setting": FILE, "ours": VALUE, "before": VALUE}. A setting that no longer has
                our value is left alone: another program has changed it.
        """
        made = Entry(self.temporary / UNDO / f"{time.monotonic_ns():020}.json")
        made.update(entry)
        try:
            yield made
        finally:
            made.undo()


@dataclasses.dataclass
class Entry:
    file: pathlib.Path

    def update(self, entry: Dict[str, str]) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(entry))
        new.rename(self.file)

    def undo(self) -> None:
        _undo(json.loads(self.file.read_text()))
        self.file.unlink()


def _undo(entry: Dict[str, str]) -> None:
    if mount := entry.get("mount"):
        if pathlib.Path(mount).is_mount():
            subprocess.run(["umount", "--lazy", mount], check=True)  # A killed run's fio may use it still.
        return
    setting = pathlib.Path(entry["setting"])
    now = value_of(setting)
    if now == entry["before"]:
        return
    if now != entry["ours"]:
        return log(f"another program has changed {setting} to '{now}'; not restored")
    setting.write_text(entry["before"])


def value_of(setting: pathlib.Path) -> str:
    """The word in brackets, where there are several."""
    try:
        words = setting.read_text().split()
    except OSError:
        return "absent"
    return next((word[1:-1] for word in words if word.startswith("[")), words[0])


def remove(run: Run) -> None:
    """Removes what a run that is over has left. No-op for what is gone already."""
    if run.is_of_this_boot():  # Else the machine's end was the end of all this.
        processes.kill(run.token)
        if _is_of(run, pathlib.Path(run.temporary)):
            _undo_all(pathlib.Path(run.temporary))
    for folder in reversed(run.folders):
        _remove_folder(run, folder)
    with contextlib.suppress(OSError):
        pathlib.Path(run.disk).parent.rmdir()  # If it is empty.


def _undo_all(temporary: pathlib.Path) -> None:
    """In the order opposite to that in which the changes were made."""
    for file in sorted((temporary / UNDO).glob("*.json"), reverse=True):
        Entry(file).undo()


def _remove_folder(run: Run, folder: pathlib.Path) -> None:
    """Its mark goes last: what is killed here leaves something that the next run recognises."""
    if _is_of(run, folder):
        for path in folder.iterdir():
            if path.name == MARK:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        (folder / MARK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_of(run: Run, folder: pathlib.Path) -> bool:
    marked = _mark_of(folder)
    return marked is not None and marked.token == run.token


def _mark_of(folder: pathlib.Path) -> Optional[Run]:
    """The run that a folder belongs to. None if it is no run's, or another user's: what its mark says may be a trap."""
    try:
        with open(folder / MARK, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid() or folder.stat().st_uid != os.geteuid():
                return None
            fields: Dict[str, Any] = json.load(file)
        return Run(**fields)
    except (OSError, ValueError, TypeError):
        return None


def remove_dead_runs(parents: List[pathlib.Path]) -> None:
    """Removes what runs have left that were killed together with their guards."""
    dead: Dict[str, Run] = {}
    for parent in parents:
        for mark in parent.glob(f"*/{MARK}"):
            run = _mark_of(mark.parent)
            # A folder that was copied or moved is no longer the run's own.
            if run is None or str(mark.parent) not in (run.temporary, run.disk):
                continue
            over = run.is_over()
            if over is None:
                log(f"{mark.parent} is of a bench on another host or in another container ({run.host}): remove it if that has ended")
            elif over:
                dead[run.token] = run
    for run in dead.values():
        deadline = time.monotonic() + _GUARD_SECONDS
        while run.has_guard() and time.monotonic() < deadline:  # It is at work on that.
            time.sleep(0.05)
        existing = [folder for folder in run.folders if folder.exists()]
        remove(run)
        if existing:
            log(f"removed what a killed bench (pid {run.pid}) had left: {', '.join(map(str, existing))}")


def _guard(run: Run) -> None:
    if sys.stdin.read() != _END:
        # It was killed. Its children get SIGKILL before it is gone.
        wait_until(lambda: run.is_over(), "the killed bench to be gone", _GUARD_SECONDS)
    remove(run)


if __name__ == "__main__":
    _guard(Run(**json.loads(sys.argv[1])))
