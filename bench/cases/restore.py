"""How long a restore takes, from memory and from the disk, and what it costs training steps that run at the same time."""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from bench.base import fio, limits, pages
from bench.base.context import MIB, BenchContext, describe_milliseconds, describe_rates
from bench.base.daemon import Daemon
from bench.base.gpt_steps import small_gpt_steps
from bench.base.result import Result

QUIET_STEPS = 16  # Around each restore.
SMALL = 16 * MIB  # As many tensors as the large state has, and almost no bytes.


def run(context: BenchContext) -> None:
    with context.daemon(context.size * 5 // 2, resident=True) as daemon:
        pool = f"--pages={daemon.wait_for_pool()}"
        root = context.new_root()
        saved = _run_process(context, daemon, root, "save")
        small_root = context.new_root()
        small_saved = _run_process(context, daemon, small_root, "save", f"--size={SMALL}")
        small: List[Dict[str, Any]] = []
        memory: Dict[str, List[Dict[str, Any]]] = {"into": [], "fresh": [], "torch": [], "mapped": []}
        for _ in range(_turns(context)):
            small.append(_resume(context, daemon, small_root, small_saved, "into", f"--size={SMALL}", pool))
            for how, runs in memory.items():
                runs.append(_resume(context, daemon, root, saved, how, pool))
                # A few bytes may be of a library that was not in the page cache.
                if runs[-1]["disk"] > runs[-1]["bytes"] // 20:
                    raise SystemExit(
                        f"{runs[-1]['disk']} of {runs[-1]['bytes']} bytes were read from the disk, and not from memory"
                    )
        daemon.restart()  # Its successor has no checkpoint in memory.
        besides = _report_besides_bytes(context, small)
        _report_memory(context, memory, besides)
        with context.fio_buffers(pages.private_kind()) as buffers:
            disk, limit = _measure_disk(context, daemon, root, saved, buffers)
            plain = statistics.median(run["bytes"] / seconds for run in disk["fresh"] for seconds in run["plain"])
            _report_disk(context, disk, besides, limit, plain)
            ranges = _run_process(context, daemon, root, "ranges")
            words = f"the chunks that 1 % of {ranges['size'] / 1e9:.2f} GB in {ranges['ranges']} slices touches"
            context.report(Result("restore.ranges.1pct", ranges["read"] / ranges["touched"], "x", words, 1.05))
            _report_steps(context, daemon, root, buffers)


def _turns(context: BenchContext) -> int:
    return 1 if context.quick else 2


def _measure_disk(
    context: BenchContext, daemon: Daemon, root: pathlib.Path, saved: Dict[str, Any], buffers: fio.Buffers
) -> Tuple[Dict[str, List[Dict[str, Any]]], fio.Rates]:
    """Restores from the disk, in turns with fio's reading. What is copied into new tensors comes out of the reader's private buffers."""
    disk: Dict[str, List[Dict[str, Any]]] = {"into": [], "fresh": [], "torch": []}
    limit = fio.Fio(context.folder, context.size, buffers.huge, "read")
    with limit:
        for _ in range(_turns(context)):
            for how, measured in disk.items():
                limit()
                measured.append(_resume(context, daemon, root, saved, how, "--private"))
                limit()
    return disk, fio.Rates(buffers.words, [limit.rates])


def _run_process(
    context: BenchContext, daemon: Daemon, root: pathlib.Path, what: str, *more: str
) -> Dict[str, Any]:
    done = subprocess.run(
        _command(context, daemon, root, what, *more), capture_output=True, text=True, timeout=900
    )
    if done.returncode != 0:
        raise SystemExit(
            f"restoring_process '{what}' ended with status {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _command(context: BenchContext, daemon: Daemon, root: pathlib.Path, what: str, *more: str) -> List[str]:
    command = [sys.executable, "-m", "bench.cases.programs.restoring_process", what, f"--endpoint={daemon.endpoint}"]
    return [*command, f"--root={root}", f"--size={context.size}", f"--threads={context.threads}", *more]


def _resume(
    context: BenchContext, daemon: Daemon, root: pathlib.Path, saved: Dict[str, Any], how: str, *more: str
) -> Dict[str, Any]:
    limits.wait_for_idle_disk(root)
    limits.drop_from_page_cache(sorted(root.glob("state/*.pt")))
    started = time.time()
    measured = _run_process(context, daemon, root, "resume", f"--how={how}", *more)
    measured["process"] = measured["ready"] - started
    if measured["sums"] != saved["sums"]:
        raise SystemExit("the restored bytes differ from the saved ones")
    return measured


_WORDS = {
    "into": "into=, by a new process",
    "fresh": "into fresh tensors",
    "torch": "into fresh tensors, read by torch.load as in 0.1.0",
    "mapped": "mapped, without touching a byte",
}


def _report_besides_bytes(context: BenchContext, small: List[Dict[str, Any]]) -> float:
    """What a resume costs beside its bytes. Returns the seconds without those of the process."""
    seconds = [run["seconds"] for run in small]
    words = f"resume, agreement and unpickling of a state of {SMALL // MIB} MiB in as many tensors"
    words = f"{words}; {describe_milliseconds(seconds)}"
    context.report(Result("restore.besides_bytes_ms", statistics.median(seconds) * 1e3, "ms", words))
    started = [run["process"] for run in small]
    words = f"a new Python process until it has imported torch and ckptd, and joined; {describe_milliseconds(started)}"
    context.report(Result("restore.process_ms", statistics.median(started) * 1e3, "ms", words))
    return statistics.median(seconds)


def _report_memory(context: BenchContext, memory: Dict[str, List[Dict[str, Any]]], besides: float) -> None:
    for how, name in (("into", "restore.resident.vs_copy"), ("mapped", "restore.resident.mapped")):
        runs = memory[how]
        copy = limits.best_copy([turn for run in runs for turn in run["copies"]])
        seconds = [run["seconds"] - (besides if how == "into" else 0) for run in runs]
        words = f"a copy of {runs[0]['bytes'] / 1e9:.2f} GB by {copy.loop}, {context.threads} threads, {runs[0]['pages']}: {copy.seconds * 1e3:.0f} ms"
        words = f"{words}; ours {describe_milliseconds(seconds)}, {_WORDS[how]}"
        words += ", without restore.besides_bytes_ms" if how == "into" else ""
        value = copy.seconds / statistics.median(seconds)
        context.report(Result(name, value, "x", words))
    plain = [seconds for run in memory["fresh"] for seconds in run["plain"]]
    seconds = [run["seconds"] - besides for run in memory["fresh"]]
    words = f"a plain loop that copies from {memory['fresh'][0]['plain_pages']}: {describe_milliseconds(plain)}"
    words = f"{words}; ours {describe_milliseconds(seconds)}, without restore.besides_bytes_ms"
    value = statistics.median(plain) / statistics.median(seconds)
    context.report(Result("restore.resident.fresh", value, "x", words))
    _report_against_torch(context, "restore.resident.fresh_vs_torch", memory)


def _report_disk(
    context: BenchContext, disk: Dict[str, List[Dict[str, Any]]], besides: float, limit: fio.Rates, plain: float
) -> None:
    """plain: the rate of a loop that copies into fresh pages, which new tensors need, too."""
    both = f"{limit.description('read')}; a plain loop from {disk['fresh'][0]['plain_pages']}: {plain / 1e9:.2f} GB/s"
    for how, name, best, described in (
        ("into", "restore.disk.vs_fio", limit.best(), limit.description("read")),
        ("fresh", "restore.disk.fresh", min(limit.best(), plain), f"the slower of {both}"),
    ):
        rates = [run["bytes"] / (run["seconds"] - besides) for run in disk[how]]
        words = f"{described}; ours {describe_rates(rates)}, {_WORDS[how]}, verified, without restore.besides_bytes_ms"
        context.report(Result(name, statistics.median(rates) / best, "x", words))
    _report_against_torch(context, "restore.disk.fresh_vs_torch", disk)


def _report_against_torch(context: BenchContext, name: str, runs: Dict[str, List[Dict[str, Any]]]) -> None:
    """The whole restore into fresh tensors, as many times as fast as 0.1.0 made it."""
    before, now = ([run["seconds"] for run in runs[how]] for how in ("torch", "fresh"))
    words = f"{_WORDS['torch']}: {describe_milliseconds(before)}; ours {describe_milliseconds(now)}"
    value = statistics.median(before) / statistics.median(now)
    context.report(Result(name, value, "x", words, 3, at_least=True))


def _report_steps(context: BenchContext, daemon: Daemon, root: pathlib.Path, buffers: fio.Buffers) -> None:
    """Trains on one core while another job restores from the disk, in turns: normally, in the background, and, as the limit,
    while fio reads the same file. Each is between quiet steps of its own.
    """
    step = small_gpt_steps()
    files = sorted(root.glob("state/*.pt"), key=lambda file: file.stat().st_size)
    job = fio.job("steps", "read", files[-1], files[-1].stat().st_size, *fio.COMBINATIONS[0], buffers.huge)
    command = _command(context, daemon, root, "again")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:

        def restore(how: str) -> None:
            assert other.stdin and other.stdout
            other.stdin.write(f"{how}\n")
            other.stdin.flush()
            if not other.stdout.readline():
                raise SystemExit(f"the restoring process ended with status {other.wait()}")

        work: Dict[str, Callable[[], object]] = {
            "normal": lambda: restore("normal"),
            "background": lambda: restore("background"),
            "fio": lambda: fio.run([job]),
        }
        beside: Dict[str, List[_StepCost]] = {how: [] for how in work}
        restore("normal")  # The first one is cold.
        for turn in range(1 if context.quick else 5):
            for how in [*work][turn % 3 :] + [*work][: turn % 3]:
                limits.wait_for_idle_disk(root)
                limits.drop_from_page_cache(files)
                beside[how].append(_measure_steps(step, work[how]))
        assert other.stdin
        other.stdin.close()
        other.wait(60)
    limit = statistics.median([one.inflation for one in beside["fio"]])
    for how, name in (
        ("normal", "restore.step_inflation"),
        ("background", "restore.step_inflation.background"),
    ):
        ratios = sorted(one.inflation for one in beside[how])
        words = (
            f"{len(ratios)} restores from the disk, each against {QUIET_STEPS} quiet steps: {ratios[0]:.2f} to {ratios[-1]:.2f}, in "
            f"{describe_milliseconds([one.seconds for one in beside[how]])}; the same during a read by fio, {buffers.words}: {limit:.3f}"
        )
        context.report(Result(name, statistics.median(ratios), "x", words, 1.02))


class _StepCost(NamedTuple):
    inflation: float  # Of a step, by work at the same time.
    seconds: float  # That the work took.


def _measure_steps(step: Callable[[], float], work: Callable[[], object]) -> _StepCost:
    """Steps before, during and after `work`, which runs in a thread."""
    quiet = [step() for _ in range(QUIET_STEPS // 2)]
    failed: List[BaseException] = []
    begin = time.perf_counter()
    seconds: List[float] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # Raised again below, in the caller's thread.
            failed.append(error)
        seconds.append(time.perf_counter() - begin)

    thread = threading.Thread(target=run)
    thread.start()
    during: List[float] = []
    while thread.is_alive():
        during.append(step())
    if failed:
        raise failed[0]
    during = during[:-1] or during  # The last one ends after the work. If it is the only one, it has had all of that.
    if not during:
        raise SystemExit("no step began during the restore, so there is nothing to measure")
    quiet += [step() for _ in range(QUIET_STEPS // 2)]
    return _StepCost(statistics.median(during) / statistics.median(quiet), seconds[0])
