"""Figures of ckptd on this machine, each beside the limit that the same run measured."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import machine
from demo_lib.launch import TOOLS, Job

from bench_lib import converting, ending, fio, restoring
from bench_lib.daemon import Daemon
from bench_lib.result import Result, as_json, as_table

SECTIONS = {
    "save": "stall, durable bytes, publishing, the daemon's CPU and memory",
    "small": "10,000 tensors of 1 KiB",
    "handoff": "Begin + Seal, and next to nothing between",
    "step": "what a save costs the steps beside it",
    "restore": "from memory, from the disk, slices, and what a restore costs the steps beside it",
    "ready": "start of a daemon that knows 1,000 checkpoints",
    "memory": "what the daemon keeps of 10,000 saves of 10,000 files",
    "convert": "an optimizer of 4 GiB into another number of shards",
}
COMPARE = "compare"
LONG = {COMPARE: "ckptd and what is used today, at the same work in turns: half an hour, so only when named"}
SUFFIX = {"python": "", "cpp": ".cpp"}  # Of the names of figures, by client.
MIB, GIB = 1 << 20, 1 << 30

Log = Dict[Tuple[str, str], Dict[str, Any]]  # The daemon's line of each save, by root and tag.


class Bench:
    def __init__(
        self,
        folder: pathlib.Path,
        quick: bool,
        huge: Optional[pathlib.Path],
        clients: Sequence[str],
        results: List[Result],
    ) -> None:
        self.folder = folder
        self.quick = quick
        self.huge = huge  # Where fio's buffers are, if huge pages could be reserved.
        self.clients = clients
        self.size = GIB // 4 if quick else 2 * GIB
        self.threads = min(4, os.cpu_count() or 1)  # As many as the clients copy with.
        self.results = results

    def report(self, result: Result) -> None:
        self.results.append(result)
        machine.say(f"  {result.name} = {result.value:.4g} {result.unit}")

    @contextlib.contextmanager
    def daemon(self, pool: int, resident: bool = False) -> Iterator[Daemon]:
        """With a folder of its own, in a place where sockets have short names."""
        with (
            tempfile.TemporaryDirectory(prefix="ckptd-bench-") as folder,
            Daemon(pathlib.Path(folder), pool, resident) as daemon,
        ):
            yield daemon

    def python_saver(self, daemon: Daemon, what: str, rounds: int, **options: Any) -> Dict[str, Any]:
        """Runs a process that saves through the Python client, to its end; what it measured."""
        root = self.root()
        command = [sys.executable, "-m", "bench_lib.saver", what, f"--endpoint={daemon.endpoint}"]
        command += [f"--root={root}", f"--rounds={rounds}"]
        command += [f"--{name}={value}" for name, value in options.items()]
        measured = dict(json.loads(run(command).splitlines()[-1]))
        measured["keys"] = [(str(root), tag) for tag in measured.get("tags", [])]
        return measured

    def cpp_saver(self, daemon: Daemon, size: int, rounds: int, pieces: int = 1) -> Dict[str, Any]:
        """The same through the C++ client: one file of so many bytes, cold and then `rounds` times."""
        root = self.root()
        arguments = [daemon.endpoint, str(root), size, rounds + 1, self.threads, pieces]
        saves = []
        command = [cpp_program(), *map(str, arguments)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin and program.stdout
            for _ in range(rounds + 1):
                if size >= MIB:
                    machine.settle(root)
                program.stdin.write("\n")
                program.stdin.flush()
                answer = program.stdout.readline()
                if not answer:
                    raise SystemExit(f"'{' '.join(command)}' ended with {program.wait()}")
                saves.append(json.loads(answer))
        return {
            "bytes": size,
            "copies": [save["memcpy_s"] for save in saves],
            "cold": saves[0]["stall_s"],
            "warm": [save["stall_s"] for save in saves[1:]],
            "keys": [(str(root), f"bench_{save['save']}") for save in saves],
        }

    def root(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(prefix="root", dir=self.folder))

    # ---- sections ----

    def section_save(self) -> None:
        processes, rounds = (1, 2) if self.quick else (3, 3)
        runs: Dict[str, List[Dict[str, Any]]] = {client: [] for client in self.clients}
        with self.daemon(self.size * 3 // 2) as daemon:
            for _ in range(processes):
                for client in self.clients:
                    pages = daemon.wait_for_pool()
                    runs[client].append(self.save_big(client, daemon, rounds))
                    daemon.wait_until_idle()
            log = daemon.saves()
        chain = [machine.fsync_chain(self.folder) * 1e3 for _ in range(20)]
        for client, measured in runs.items():
            self.report_save(SUFFIX[client], measured, log)
            self.report_publish(SUFFIX[client], measured, log, chain)
        if "python" in runs:
            self.report_daemon(runs["python"], pages)

    def save_big(self, client: str, daemon: Daemon, rounds: int) -> Dict[str, Any]:
        if client == "python":
            options: Dict[str, Any] = {
                "size": self.size,
                "threads": self.threads,
                "folder": self.folder,
                "pid": daemon.pid,
            }
            if self.huge:
                options["huge"] = self.huge
            return self.python_saver(daemon, "big", rounds, **options)
        limit = fio.Fio(self.folder, self.size, self.huge)
        for _ in fio.COMBINATIONS:
            limit()
        measured = self.cpp_saver(daemon, self.size, rounds)
        for _ in fio.COMBINATIONS:
            limit()
        return {**measured, "fio": limit.rates}

    def report_save(self, suffix: str, runs: List[Dict[str, Any]], log: Log) -> None:
        size = runs[0]["bytes"]
        copy = min(seconds for run in runs for seconds in run["copies"])
        words = f"one memcpy of {size / 1e9:.2f} GB, {self.threads} threads: {copy * 1e3:.0f} ms at best"
        warm = [seconds for run in runs for seconds in run["warm"]]
        cold = [run["cold"] for run in runs]
        self.report(
            Result(f"save.stall.warm{suffix}", machine.median(warm) / copy, "x", spread(words, warm), 1.1)
        )
        self.report(Result(f"save.stall.cold{suffix}", machine.median(cold) / copy, "x", spread(words, cold)))

        durable = [
            size / (log[t]["written_ms"] - log[t]["staged_ms"]) * 1e3 for r in runs for t in r["keys"][1:]
        ]
        for name, only in (("vs_fio", ""), ("vs_fio_from_memory", fio.FROM_MEMORY)):
            disk = fio.Rates(self.huge is not None, [run["fio"] for run in runs], only)
            words = f"{disk.words()}; ours {gigabytes(durable)}"
            value = machine.median(durable) / disk.best()
            self.report(Result(f"save.durable.{name}{suffix}", value, "x", words, 0.95, at_least=True))

    def report_publish(self, suffix: str, runs: List[Dict[str, Any]], log: Log, chain: List[float]) -> None:
        lines = [log[key] for run in runs for key in run["keys"][1:]]
        visible = [line["committed_ms"] - line["written_ms"] for line in lines]
        words = f"write, fsync, rename, fsync of 4 KiB: {machine.median(chain):.1f} ms"
        words = f"{words}; ours {spread('', visible, 1)}"
        self.report(Result(f"save.visible_ms{suffix}", machine.median(visible), "ms", words, 50))

    def report_daemon(self, runs: List[Dict[str, Any]], pages: str) -> None:
        cpu = [run["cpu"] for run in runs]
        goal = 0.15 if pages == "plain" else 0.06
        words = f"CRC32C included, {pages} pages in the pool; {min(cpu):.3f}-{max(cpu):.3f}"
        self.report(Result("daemon.cpu_s_per_gb", machine.median(cpu), "s/GB", words, goal))
        memory = max(run["memory"] for run in runs) / MIB
        self.report(
            Result("daemon.rss_outside_pool_mib", memory, "MiB", "VmRSS without RssShmem, the most seen", 64)
        )

    def section_small(self) -> None:
        rounds = 5 if self.quick else 15
        with self.daemon(256 * MIB) as daemon:
            daemon.wait_for_pool()
            python = self.python_saver(daemon, "many", rounds)
            saved = min(python["torch"])
            words = f"torch.save of the same into memory: {saved * 1e3:.1f} ms at best"
            warm = {"python": python["warm"]}
            if "cpp" in self.clients:
                daemon.wait_for_pool()
                warm["cpp"] = self.cpp_saver(daemon, 10_000 * 1024, rounds, pieces=10_000)["warm"]
        for client in self.clients:
            value = machine.median(warm[client]) / saved
            name = f"save.stall.many_small{SUFFIX[client]}"
            self.report(Result(name, value, "x", spread(words, warm[client]), 0.6))

    def section_handoff(self) -> None:
        rounds = 50 if self.quick else 400
        with self.daemon(64 * MIB) as daemon:
            for client in self.clients:
                daemon.wait_for_pool()
                if client == "python":
                    seconds = self.python_saver(daemon, "tiny", rounds)["calls"]
                else:
                    seconds = self.cpp_saver(daemon, 100, rounds)["warm"]
                calls = [s * 1e3 for s in seconds]
                words = f"{len(calls)} saves of 100 bytes; {min(calls):.2f}-{max(calls):.2f} ms"
                p50, p99 = machine.percentile(calls, 50), machine.percentile(calls, 99)
                self.report(Result(f"save.handoff.p50_ms{SUFFIX[client]}", p50, "ms", words, 1))
                self.report(Result(f"save.handoff.p99_ms{SUFFIX[client]}", p99, "ms", words, 5))

    def section_step(self) -> None:
        """One rank with a core to spare, then a rank on every core."""
        cores = os.cpu_count() or 1
        if cores > 1:
            saves = [entries[0] for entries in self.steps(1)]
            quiet = [seconds for save in saves for seconds in save["quiet"]]
            # Of those during a save the last one ends after the checkpoint is committed.
            during = [seconds for save in saves for seconds in save["during"][:-1]]
            if not during:
                raise SystemExit("no step fitted into the time that a save takes to be committed")
            words = (
                f"{len(quiet)} steps with no save, {len(during)} during one, in turns; 1 rank, {cores} cores"
            )
            value = machine.median(during) / machine.median(quiet)
            self.report(Result("save.step_inflation", value, "x", spread(words, during), 1.01))
        ranks = min(cores, 8)
        measured = self.steps(ranks)
        copy = min(max(entry["copy"] for entry in entries) for entries in measured)
        lost = [max(entry["lost"] for entry in entries) for entries in measured]
        words = f"one memcpy of a rank's bytes, {ranks} ranks on {cores} cores: {copy * 1e3:.0f} ms at best"
        self.report(Result("save.lost.vs_memcpy", machine.median(lost) / copy, "x", spread(words, lost), 3))

    def steps(self, ranks: int) -> List[Sequence[Dict[str, Any]]]:
        """What each rank wrote of each warm save."""
        size = max(self.size, GIB)  # Enough for some steps to fit into the time that it takes to write.
        with self.daemon(size * 3 // 2) as daemon:
            daemon.wait_for_pool()
            arguments = [f"--endpoint={daemon.endpoint}", f"--root={self.root()}"]
            arguments += [f"--rounds={2 if self.quick else 7}", f"--size={size // ranks}"]
            with Job("bench_lib.stepper", daemon.folder, "steps", arguments, ranks) as job:
                job.wait(600)
            return list(zip(*(job.events(rank, "save") for rank in range(ranks))))

    def section_restore(self) -> None:
        restoring.section(self)

    def section_convert(self) -> None:
        converting.section(self)

    def section_memory(self) -> None:
        saves, committed = (300, 1) if self.quick else (10_000, 3)
        with self.daemon(64 * MIB) as daemon:
            first, last = ending.memory_of_saves(daemon, self.root(), saves, committed)
        words = (
            f"growth outside the pool from the first save of {ending.FILES} files to {saves} more that are aborted and "
            f"{committed} that are committed; {last / MIB:.0f} MiB at the end"
        )
        self.report(Result("daemon.rss_of_ended_saves_mib", (last - first) / MIB, "MiB", words, 32))

    def section_ready(self) -> None:
        count = 100 if self.quick else 1000
        with self.daemon(256 * MIB) as daemon:
            daemon.wait_for_pool()
            self.python_saver(daemon, "fill", count)
            seconds = []
            for _ in range(3):
                daemon.stop()
                start = time.perf_counter()
                daemon.start()
                machine.wait_until(
                    lambda: known(daemon) == count, f"the daemon to know {count} checkpoints", 60, 0.001
                )
                seconds.append(time.perf_counter() - start)
        words = f"from exec until it answers for a root of {count} committed checkpoints"
        self.report(Result("daemon.ready_s", machine.median(seconds), "s", spread(words, seconds), 1))


def known(daemon: Daemon) -> Optional[int]:
    runs = daemon.status().runs
    return runs[0].checkpoint_count if runs else None


def spread(words: str, values: Sequence[float], scale: float = 1e3) -> str:
    """`words`, and the median, least and most of the values in milliseconds."""
    figures = f"{machine.median(values) * scale:.0f} [{min(values) * scale:.0f}-{max(values) * scale:.0f}] ms"
    return f"{words}; ours {figures}" if words else figures


def gigabytes(rates: Sequence[float]) -> str:
    return f"{machine.median(rates) / 1e9:.2f} [{min(rates) / 1e9:.2f}-{max(rates) / 1e9:.2f}] GB/s"


def run(command: List[str]) -> str:
    """What a program prints. A SystemExit says what went wrong in it."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise SystemExit(f"'{' '.join(command)}' ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout.strip()


def cpp_program() -> str:
    path = os.environ.get("CKPTD_BENCH_CPP", "")
    if not os.access(path, os.X_OK):
        raise SystemExit("CKPTD_BENCH_CPP is not set to //client/cpp:bench_save: start this as tools/bench")
    return path


@contextlib.contextmanager
def workplace(parent: pathlib.Path, free: int) -> Iterator[pathlib.Path]:
    parent.mkdir(parents=True, exist_ok=True)
    machine.require_disk(parent, free)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="b", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            parent.rmdir()


def main() -> int:
    described = "\n".join(f"  {name:<9}{words}" for name, words in {**SECTIONS, **LONG}.items())
    parser = argparse.ArgumentParser(
        prog="tools/bench",
        description=__doc__,
        epilog=f"sections:\n{described}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sections", nargs="*", metavar="section", help="some of those below; default all but compare")
    parser.add_argument(
        "--json", action="store_true", help="a list of objects on stdout instead of the table"
    )
    parser.add_argument(
        "--quick", action="store_true", help="an eighth of the bytes, fewer rounds: to see that it works"
    )
    parser.add_argument("--client", choices=SUFFIX, help="one of the clients only")
    parser.add_argument(
        "--dir", type=pathlib.Path, default=TOOLS.parent / ".bench", help="where, on the disk to measure"
    )
    comparing = parser.add_argument_group("for 'compare'")
    comparing.add_argument("--workload", choices=["gpt", "llama"], help="one of the states only")
    comparing.add_argument("--plot", type=pathlib.Path, metavar="FILE.svg", help="the figures as a picture")
    comparing.add_argument("--docs", action="store_true", help="the figures into README.md and docs/")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS) - set(LONG)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join([*SECTIONS, *LONG])}")

    clients = [options.client] if options.client else list(SUFFIX)
    chosen = [name for name in SECTIONS if name in options.sections or not options.sections]
    results: List[Result] = []
    tables: List[str] = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(workplace(options.dir.resolve(), (2 if options.quick else 12) * GIB))
        stack.enter_context(machine.transparent_huge_pages())
        for section in chosen:
            machine.say(f"{section}: {SECTIONS[section]}")
            needs_fio = section in ("save", "restore", "convert")
            with machine.reserved_huge_pages(fio.RESERVE) if needs_fio else contextlib.nullcontext() as huge:
                bench = Bench(folder, options.quick, huge, clients, results)
                getattr(bench, f"section_{section}")()
        if results:
            tables.append(as_table(results))
        if COMPARE in options.sections:
            from bench_lib.compare import section as compare  # Nobody else waits for what it imports.

            machine.say(f"{COMPARE}: {LONG[COMPARE]}")
            huge = stack.enter_context(machine.reserved_huge_pages(fio.RESERVE))
            compared, words = compare.run(
                folder, options.quick, huge, options.workload, options.plot, options.docs
            )
            results += compared
            tables.append(words)
    print(as_json(results) if options.json else "\n\n".join(tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
