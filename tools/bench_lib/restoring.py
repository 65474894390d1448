"""What a restore takes, from memory and from the disk, and what it costs the training beside it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Dict, List

import machine

from bench_lib import fio
from bench_lib.daemon import Daemon
from bench_lib.result import Result

if TYPE_CHECKING:
    from bench_lib.main import Bench

QUIET = 20  # Steps before each restore.


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
    """Steps on one core, while another job's restore reads the disk."""
    from bench_lib.stepper import small_steps

    step = small_steps()
    quiet: List[float] = []
    during: List[float] = []
    command = _command(bench, daemon, root, "again")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin and other.stdout
        for _ in range(2 if bench.quick else 7):
            machine.forget(sorted(root.glob("state/*.pt")))
            quiet += [step() for _ in range(QUIET)]
            other.stdin.write("\n")
            other.stdin.flush()
            answer: List[str] = []
            waiting = threading.Thread(target=lambda: answer.append(other.stdout.readline()))  # type: ignore[union-attr]
            waiting.start()
            steps = []
            while waiting.is_alive():
                steps.append(step())
            if not answer[0]:
                raise SystemExit(f"the restore beside the steps ended with {other.wait()}")
            during += steps[:-1]  # The last one ends after it.
        other.stdin.close()
        other.wait(60)
    if not during:
        raise SystemExit("no step fitted into the time that a restore takes")
    words = f"{len(quiet)} steps with no restore, {len(during)} during one from the disk; ours {_spread(during)}"
    value = machine.median(during) / machine.median(quiet)
    bench.report(Result("restore.step_inflation", value, "x", words, 1.02))


def _spread(seconds: List[float]) -> str:
    return f"{machine.median(seconds) * 1e3:.0f} [{min(seconds) * 1e3:.0f}-{max(seconds) * 1e3:.0f}] ms"
