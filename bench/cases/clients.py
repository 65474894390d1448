"""Runs processes that save through the Python or the C++ client, and collects what they measured."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional

from bench.base import limits
from bench.base.context import MIB, BenchContext
from bench.base.daemon import Daemon
from bench.base.pages import PLAIN


def run_python(
    context: BenchContext,
    daemon: Daemon,
    what: str,
    rounds: int,
    root: Optional[pathlib.Path] = None,
    **options: Any,
) -> Dict[str, Any]:
    """Runs saving_process.py to its end. Returns what it printed, and "keys": the (root, tag) of each save."""
    root = root or context.new_root()
    command = [sys.executable, "-m", "bench.cases.programs.saving_process", what, f"--endpoint={daemon.endpoint}"]
    command += [f"--root={root}", f"--rounds={rounds}"]
    command += [f"--{name}={value}" for name, value in options.items()]
    measured = dict(json.loads(output_of(command).splitlines()[-1]))
    measured["keys"] = [(str(root), tag) for tag in measured.get("tags", [])]
    return measured


def run_first(context: BenchContext, pool: int, pages: str) -> Dict[str, Any]:
    """Starts a daemon when a process has its state, which then saves at once. Returns what the process printed."""
    with tempfile.TemporaryDirectory(prefix="ckptd-bench-") as folder:
        daemon = Daemon(pathlib.Path(folder), pool)
        command = [sys.executable, "-m", "bench.cases.programs.saving_process", "first", f"--endpoint={daemon.endpoint}"]
        command += [f"--root={context.new_root()}", "--rounds=1", f"--size={context.size}"]
        command += [f"--threads={context.threads}", f"--pages={pages}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as saving:
            assert saving.stdin and saving.stdout
            saving.stdout.readline()
            with daemon:
                answer, _ = saving.communicate("\n", timeout=300)
    if saving.returncode != 0:
        raise SystemExit(f"'{' '.join(command)}' ended with status {saving.returncode}")
    return dict(json.loads(answer.strip().splitlines()[-1]))


def run_cpp(
    context: BenchContext, daemon: Daemon, size: int, rounds: int, pieces: int = 1, pages: str = PLAIN
) -> Dict[str, Any]:
    """Runs bench_save.cc: one file of `size` bytes from so many pieces, saved once cold and then `rounds` times.

    Args:
        pages: the kind of the pool's, to which the copies go that the saves are held against.
    """
    root = context.new_root()
    arguments = [daemon.endpoint, str(root), size, rounds + 1, context.threads, pieces, pages]
    command = [cpp_program(), *map(str, arguments)]
    saves = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin and program.stdout
        for _ in range(rounds + 1):
            if size >= MIB:
                limits.wait_for_idle_disk(root)
            program.stdin.write("\n")
            program.stdin.flush()
            answer = program.stdout.readline()
            if not answer:
                raise SystemExit(f"'{' '.join(command)}' ended with status {program.wait()}")
            saves.append(json.loads(answer))
    return {
        "bytes": size,
        "copies": [save["copies"] for save in saves],
        "pages": saves[0]["pages"],
        "cold": saves[0]["stall_s"],
        "warm": [save["stall_s"] for save in saves[1:]],
        "keys": [(str(root), f"bench_{save['save']}") for save in saves],
    }


def output_of(command: List[str]) -> str:
    """Runs a program and returns its output. SystemExit with the end of its errors if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise SystemExit(f"'{' '.join(command)}' ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout.strip()


def cpp_program() -> str:
    path = os.environ.get("CKPTD_BENCH_CPP", "")
    if not os.access(path, os.X_OK):
        raise SystemExit(
            "CKPTD_BENCH_CPP does not name a program: start this by tools/bench, which builds //bench/cases/programs:bench_save"
        )
    return path
