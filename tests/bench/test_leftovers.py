"""Nothing that a bench has made is left when it ends, when it is killed, and, at the latest, when the next one starts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterator, List

import pytest

from bench.base import leftovers, machine, processes, settings
from bench.base.leftovers import MARK, Leftovers, Run
from bench.run import round_process
from bench.run.round_process import RoundFailed, RoundTooLong

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 60.0  # A last resort: what is waited for takes a second.


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """The folder for temporary files, which tmp_path is not in. Its path is short, because a daemon's socket is in it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="left-"))
    folder.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    shutil.rmtree(folder)
    monkeypatch.undo()
    tempfile.tempdir = None


@pytest.fixture
def disk(temporary: pathlib.Path) -> pathlib.Path:
    return temporary / "disk"


def start_bench(disk: pathlib.Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench", "save", "--minutes=4", "--quick", "--client=python", f"--dir={disk}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def run_of(disk: pathlib.Path) -> Run:
    """The run whose folder is on the disk, as soon as it is marked."""

    def found() -> "Run | None":
        for mark in disk.glob(f"*/{MARK}"):
            with contextlib.suppress(ValueError):  # It is being written.
                return Run(**json.loads(mark.read_text()))
        return None

    return machine.wait_until(found, "the bench to mark its folder", SECONDS)


def commands_of(run: Run) -> str:
    """The command lines of a run's processes."""
    lines = []
    for pid in processes.of_run(run.token):
        with contextlib.suppress(OSError):
            lines.append(pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return "\n".join(lines)


def wait_until_busy(run: Run) -> None:
    """Until it has a daemon, a process that saves, and a file on the disk."""

    def busy() -> bool:
        commands = commands_of(run)
        files = any(path.is_file() and path.stat().st_size > 1 << 20 for path in pathlib.Path(run.disk).rglob("*"))
        return files and "--ready_fd" in commands and "saving_process" in commands

    machine.wait_until(busy, "the bench to save", SECONDS, 0.005)


def mounts_in(folder: pathlib.Path) -> List[str]:
    return [line for line in pathlib.Path("/proc/self/mounts").read_text().splitlines() if f" {folder}/" in line]


def assert_nothing_is_left(run: Run, temporary: pathlib.Path) -> None:
    assert not processes.of_run(run.token), commands_of(run)
    assert not mounts_in(temporary)
    assert not list(temporary.iterdir())


def test_sigterm_ends_a_bench_in_order_and_nothing_is_left(temporary: pathlib.Path, disk: pathlib.Path) -> None:
    reserved = settings.HUGE_RESERVED.read_text()
    with start_bench(disk) as bench:
        run = run_of(disk)
        wait_until_busy(run)
        bench.terminate()
        output, errors = bench.communicate(timeout=SECONDS)
    assert bench.returncode == 128 + signal.SIGTERM
    assert not output, "no round has ended"
    assert errors.splitlines()[0].startswith("save: ") and "Traceback" not in errors
    assert_nothing_is_left(run, temporary)
    assert settings.HUGE_RESERVED.read_text() == reserved


def test_guard_removes_everything_when_a_bench_and_its_process_group_are_killed(
    temporary: pathlib.Path, disk: pathlib.Path
) -> None:
    reserved = settings.HUGE_RESERVED.read_text()
    with start_bench(disk) as bench:
        run = run_of(disk)
        wait_until_busy(run)
        os.killpg(bench.pid, signal.SIGKILL)
        bench.wait()
        machine.wait_until(lambda: not run.has_guard(), "the guard to end", SECONDS)
    assert_nothing_is_left(run, temporary)
    assert settings.HUGE_RESERVED.read_text() == reserved


def test_next_bench_removes_what_is_left_when_the_guard_is_killed_too(
    temporary: pathlib.Path, disk: pathlib.Path
) -> None:
    reserved = settings.HUGE_RESERVED.read_text()
    with start_bench(disk) as bench:
        run = run_of(disk)
        wait_until_busy(run)
        os.kill(run.guard_pid, signal.SIGKILL)
        bench.kill()
        bench.wait()
        assert pathlib.Path(run.disk).exists() and "--ready_fd" in commands_of(run)
        with Leftovers(disk) as next_run:
            assert not pathlib.Path(run.disk).exists() and not pathlib.Path(run.temporary).exists()
            assert not processes.of_run(run.token)
            assert next_run.disk.exists()
    assert_nothing_is_left(run, temporary)
    assert settings.HUGE_RESERVED.read_text() == reserved


def test_folders_of_a_living_bench_stay(disk: pathlib.Path) -> None:
    with Leftovers(disk) as living:
        (living.disk / "file").touch()
        with Leftovers(disk):
            pass
        assert (living.disk / "file").exists() and living.temporary.exists()


def forge(folder: pathlib.Path, run: Run, **changes: Any) -> Run:
    """A folder that is marked as a run's, with a file in it."""
    forged = dataclasses.replace(run, token="forged", **changes)
    folder.mkdir(parents=True)
    (folder / "file").touch()
    (folder / MARK).write_text(json.dumps(dataclasses.asdict(forged)))
    return forged


def killed_run(folder: pathlib.Path, **changes: Any) -> None:
    """As a killed bench would leave it: nobody has its process id any more."""
    run = Run("", str(folder), str(folder / "disk"), 2**22 + 1, 1)
    forge(folder, run, **changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"boot_id": "other", "host": "elsewhere"}, "it may live on another host that shares the disk"),
        ({"pid_namespace": 1}, "it may live in another container"),
        ({"temporary": "/nonexistent"}, "the folder has been copied or moved, and is somebody's data now"),
    ],
)
def test_folder_of_a_run_that_may_be_alive_elsewhere_stays(disk: pathlib.Path, changes: Any, why: str) -> None:
    killed_run(disk / "b1", **changes)
    with Leftovers(disk):
        pass
    assert (disk / "b1/file").exists(), why


def test_folder_of_a_run_of_an_earlier_boot_goes_and_takes_no_process_with_it(disk: pathlib.Path) -> None:
    killed_run(disk / "b1", boot_id="other")
    environment = {**os.environ, processes.VARIABLE: "forged"}
    with subprocess.Popen(["sleep", "60"], env=environment) as other:
        with Leftovers(disk):
            assert not (disk / "b1").exists()
            assert other.poll() is None
        other.kill()


def test_mark_of_another_user_is_not_believed(disk: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    killed_run(disk / "b1")
    os.chown(disk / "b1" / MARK, 12345, 12345)
    with Leftovers(disk):
        pass
    assert (disk / "b1/file").exists()


def test_unmarked_folders_stay(temporary: pathlib.Path, disk: pathlib.Path) -> None:
    for folder in (disk / "b12345678", temporary / "ckptd-bench-12345678"):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    with Leftovers(disk):
        pass
    assert (disk / "b12345678/file").exists() and (temporary / "ckptd-bench-12345678/file").exists()


def test_hung_round_is_killed_with_its_children_and_its_shared_memory(disk: pathlib.Path) -> None:
    segment = processes.SHARED_MEMORY / f"ckptd-bench-test-{os.getpid()}"
    program = f"open('{segment}', 'w').write('x'); f = open('{segment}'); print(1, flush=True); import time; time.sleep(600)"

    def hang(folder: pathlib.Path) -> None:
        (folder / "file").touch()
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout and child.stdout.readline()
        (folder / "begun").touch()
        time.sleep(600)

    with Leftovers(disk) as run:

        def end_when_begun() -> None:
            if (run.disk / "round/begun").exists():
                raise RoundTooLong("the time is over")

        with pytest.raises(RoundTooLong):
            round_process.run(hang, run, limit=SECONDS, tick=end_when_begun)
        assert not processes.of_run(run.run.token)
        assert not segment.exists() and not (run.disk / "round").exists()


def test_round_ends_at_its_limit(disk: pathlib.Path) -> None:
    with Leftovers(disk) as run:
        with pytest.raises(RoundTooLong, match="not ended after 0 s"):
            round_process.run(lambda folder: time.sleep(600), run, limit=0.1)


def test_round_returns_its_value_and_a_failed_one_says_why(disk: pathlib.Path) -> None:
    def fail(folder: pathlib.Path) -> None:
        raise SystemExit("needs a GPU")

    def die(folder: pathlib.Path) -> None:
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with Leftovers(disk) as run:
        assert round_process.run(lambda folder: {"folder": folder.name}, run, limit=SECONDS) == {"folder": "round"}
        with pytest.raises(RoundFailed, match="^needs a GPU$"):
            round_process.run(fail, run, limit=SECONDS)
        with pytest.raises(RoundFailed, match="its process has died; the end of its output:\nabout to die"):
            round_process.run(die, run, limit=SECONDS)


def test_shared_memory_that_another_process_uses_stays(tmp_path: pathlib.Path) -> None:
    segment = processes.SHARED_MEMORY / f"ckptd-bench-shared-{os.getpid()}"
    segment.write_text("x")
    program = f"f = open('{segment}'); print(1, flush=True); import time; time.sleep(600)"
    environment = {**os.environ, processes.VARIABLE: "ending"}
    try:
        with open(segment):
            with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as child:
                assert child.stdout and child.stdout.readline()
                processes.kill("ending")
            assert segment.exists()
    finally:
        segment.unlink()


def test_entry_of_a_change_goes_when_it_is_undone(disk: pathlib.Path, tmp_path: pathlib.Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("before")
    with Leftovers(disk) as run:
        with run.undone({"setting": str(setting), "ours": "ours", "before": "before"}):
            setting.write_text("ours")
            assert list((run.temporary / leftovers.UNDO).glob("*.json"))
        assert not list((run.temporary / leftovers.UNDO).iterdir())
    assert setting.read_text() == "before"
