"""What a restore takes, from memory and from the disk, and what it costs the training beside it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple

import machine

from bench_lib import fio
from bench_lib.daemon import Daemon
from bench_lib.result import Result

if TYPE_CHECKING:
    from bench_lib.main import Bench

QUIET = 16  # Steps around each restore.


def section(bench: "Bench") -> None:
    rounds = 2 if bench.quick else 4
    with bench.daemon(bench.size * 5 // 2, resident=True) as daemon:
        daemon.wait_for_pool()
        root = bench.root()
        saved = _ask(bench, daemon, root, "save")
        memory: Dict[str, List[Dict[str, Any]]] = {"into": [], "fresh": [], "mapped": []}
        for _ in range(rounds):
            for how, runs in memory.items():
                runs.append(_resume(bench, daemon, root, saved, how))
                if runs[-1]["disk"] > runs[-1]["bytes"] // 20:  # Else a library that was not in the page cache.
                    raise SystemExit(f"of {runs[-1]['bytes']} bytes in memory {runs[-1]['disk']} were read from the disk")
        daemon.restart()  # Nothing is in memory any more.
        limit = fio.Fio(bench.folder, bench.size, bench.huge, "read")
        disk: Dict[str, List[Dict[str, Any]]] = {"into": [], "fresh": []}
        with limit:
            for _ in range(rounds):
                for how, measured in disk.items():
                    limit()
                    measured.append(_resume(bench, daemon, root, saved, how))
                    limit()
        ranges = _ask(bench, daemon, root, "ranges")
        _report_memory(bench, memory)
        _report_disk(bench, disk, fio.Rates(bench.huge is not None, [limit.rates]))
        words = f"the chunks that 1 % of {ranges['size'] / 1e9:.2f} GB in {ranges['ranges']} slices touches"
        bench.report(Result("restore.ranges.1pct", ranges["read"] / ranges["touched"], "x", words, 1.05))
        _report_steps(bench, daemon, root)


def _ask(bench: "Bench", daemon: Daemon, root: pathlib.Path, what: str, *more: str) -> Dict[str, Any]:
    done = subprocess.run(_command(bench, daemon, root, what, *more), capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise SystemExit(f"'{what}' ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _command(bench: "Bench", daemon: Daemon, root: pathlib.Path, what: str, *more: str) -> List[str]:
    command = [sys.executable, "-m", "bench_lib.restorer", what, f"--endpoint={daemon.endpoint}"]
    return [*command, f"--root={root}", f"--size={bench.size}", f"--threads={bench.threads}", *more]


def _resume(
    bench: "Bench", daemon: Daemon, root: pathlib.Path, saved: Dict[str, Any], how: str
) -> Dict[str, Any]:
    machine.settle(root)
    machine.forget(sorted(root.glob("state/*.pt")))
    measured = _ask(bench, daemon, root, "resume", f"--how={how}")
    if measured["sums"] != saved["sums"]:
        raise SystemExit("what was restored is not what was saved")
    return measured


_WORDS = {"into": "into=, by a new process", "fresh": "into fresh tensors", "mapped": "mapped, and no byte touched"}


def _report_memory(bench: "Bench", memory: Dict[str, List[Dict[str, Any]]]) -> None:
    for how, name, goal in (
        ("into", "restore.resident.vs_memcpy", 0.9),
        ("fresh", "restore.resident.fresh", None),
        ("mapped", "restore.resident.mapped", None),
    ):
        runs = memory[how]
        copy = min(seconds for run in runs for seconds in run["copies"])
        seconds = [run["seconds"] for run in runs]
        words = f"one memcpy of {runs[0]['bytes'] / 1e9:.2f} GB, {bench.threads} threads: {copy * 1e3:.0f} ms at best"
        words = f"{words}; ours {_spread(seconds)}, {_WORDS[how]}"
        bench.report(Result(name, copy / machine.median(seconds), "x", words, goal, at_least=True))


def _report_disk(bench: "Bench", disk: Dict[str, List[Dict[str, Any]]], limit: fio.Rates) -> None:
    for how, name, goal in (("into", "restore.disk.vs_fio", 0.9), ("fresh", "restore.disk.fresh", None)):
        rates = [run["bytes"] / run["seconds"] for run in disk[how]]
        ours = f"{machine.median(rates) / 1e9:.2f} [{min(rates) / 1e9:.2f}-{max(rates) / 1e9:.2f}] GB/s"
        words = f"{limit.words('read')}; ours {ours}, {_WORDS[how]}, verified"
        bench.report(Result(name, machine.median(rates) / limit.best(), "x", words, goal, at_least=True))


def _report_steps(bench: "Bench", daemon: Daemon, root: pathlib.Path) -> None:
    """Steps on one core, while another job's restore reads the disk: as ever, in the background, and, for what reading
    costs whoever does it, by fio. In turns, each between quiet steps of its own.
    """
    from bench_lib.stepper import small_steps

    step = small_steps()
    files = sorted(root.glob("state/*.pt"), key=lambda file: file.stat().st_size)
    job = fio.job("steps", "read", files[-1], files[-1].stat().st_size, *fio.COMBINATIONS[0], bench.huge)
    command = _command(bench, daemon, root, "again")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:

        def restore(how: str) -> None:
            assert other.stdin and other.stdout
            other.stdin.write(f"{how}\n")
            other.stdin.flush()
            if not other.stdout.readline():
                raise SystemExit(f"the restore beside the steps ended with {other.wait()}")

        work: Dict[str, Callable[[], object]] = {
            "as ever": lambda: restore("as ever"),
            "background": lambda: restore("background"),
            "fio": lambda: fio.run([job]),
        }
        beside: Dict[str, List[_Beside]] = {how: [] for how in work}
        restore("as ever")  # The first one is cold.
        for turn in range(2 if bench.quick else 15):
            for how in [*work][turn % 3 :] + [*work][: turn % 3]:
                machine.settle(root)
                machine.forget(files)
                beside[how].append(_steps_beside(step, work[how]))
        assert other.stdin
        other.stdin.close()
        other.wait(60)
    limit = machine.median([one.inflation for one in beside["fio"]])
    for how, name in (("as ever", "restore.step_inflation"), ("background", "restore.step_inflation.background")):
        ratios = sorted(one.inflation for one in beside[how])
        words = (
            f"{len(ratios)} restores from the disk, each against {QUIET} quiet steps: {ratios[0]:.2f} to {ratios[-1]:.2f}, in "
            f"{_spread([one.seconds for one in beside[how]])}; beside fio, which only reads: {limit:.3f}"
        )
        bench.report(Result(name, machine.median(ratios), "x", words, 1.02))


class _Beside(NamedTuple):
    inflation: float  # Of a step, by something beside it.
    seconds: float  # That it took.


def _steps_beside(step: Callable[[], float], work: Callable[[], object]) -> _Beside:
    quiet = [step() for _ in range(QUIET // 2)]
    failed: List[BaseException] = []
    begin = time.perf_counter()
    seconds: List[float] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # Of this thread; told by the other one.
            failed.append(error)
        seconds.append(time.perf_counter() - begin)

    thread = threading.Thread(target=run)
    thread.start()
    during: List[float] = []
    while thread.is_alive():
        during.append(step())
    if failed:
        raise failed[0]
    during = during[:-1]  # The last one ends after it.
    if not during:
        raise SystemExit("no step fitted into the time that a restore takes")
    quiet += [step() for _ in range(QUIET // 2)]
    return _Beside(machine.median(during) / machine.median(quiet), seconds[0])


def _spread(seconds: List[float]) -> str:
    return f"{machine.median(seconds) * 1e3:.0f} [{min(seconds) * 1e3:.0f}-{max(seconds) * 1e3:.0f}] ms"
