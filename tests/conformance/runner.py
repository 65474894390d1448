"""Runs cases, each in a process of its own that is forked from one that has imported torch, with a deadline.

The processes of ckptd's side use one daemon, which an other process has started: gRPC does not survive a fork.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import pathlib
import pkgutil
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Iterator, List, Tuple

import torch

from conformance import cases as cases_package
from conformance.case import CASES, ERROR, HANG, LOST, RIGHT, WRONG, Case, Lost, Wrong
from conformance.libraries import PAIRS

# Stock, ckptd, and crosswise: who saves, and who loads, as indices of a pair.
VARIANTS = {"stock": (0, 0), "ckptd": (1, 1), "ckptd, then stock": (1, 0), "stock, then ckptd": (0, 1)}
DEADLINE_SECONDS = 120.0
_MAX_MESSAGE = 2000


@dataclasses.dataclass(frozen=True)
class Result:
    outcome: str
    detail: str = ""  # Of what is not right: the last line of the exception.


def load_cases() -> List[Case]:
    """Imports all modules of cases; returns the cases in the order of the modules."""
    for module in sorted(module.name for module in pkgutil.iter_modules(cases_package.__path__)):
        importlib.import_module(f"{cases_package.__name__}.{module}")
    return list(CASES.values())


def variants_of(each: Case) -> List[str]:
    names = ["stock", "ckptd"]
    if each.crosswise:
        names.append("ckptd, then stock")
        if each.framework != "torch":  # ckptd opens no file of torch.save.
            names.append("stock, then ckptd")
    return names


_DAEMON = """
import sys, ckptd
daemon = ckptd.LocalDaemon(sys.argv[1], pool_bytes=512 << 20, populate_bytes=0).start()
print(daemon.endpoint, flush=True)
sys.stdin.read()
daemon.stop()
"""


@contextlib.contextmanager
def daemon(folder: str) -> Iterator[str]:
    """Starts a private daemon; yields its endpoint."""
    process = subprocess.Popen([sys.executable, "-c", _DAEMON, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        endpoint = process.stdout.readline().strip()
        assert endpoint, "the daemon did not start"
        yield endpoint
    finally:
        process.stdin.close()
        process.wait(60)


def run(each: Case, variant: str, deadline: float = DEADLINE_SECONDS) -> Result:
    """Runs one case in a process of its own. $CKPTD_ENDPOINT names the daemon."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="conformance-"))
    memory = pathlib.Path("/dev/shm", folder.name)  # What a case puts into memory, and leaves there if it kills itself.
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _run_in_child(each, variant, folder, write)  # Does not return.
    os.close(write)
    try:
        return _await(child, read, deadline)
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # Also what the case has started.
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def _run_in_child(each: Case, variant: str, folder: pathlib.Path, write: int) -> None:
    os.setpgid(0, 0)
    os.environ["CONFORMANCE_MEMORY"] = f"/dev/shm/{folder.name}"
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    # A fork takes no threads along: OpenMP would wait for them for ever, and torch makes its pool anew in the first thread
    # that computes, where a second one that computes at that moment fails ("Invalid thread pool!").
    torch.set_num_threads(1)
    try:
        pair = PAIRS[each.framework]
        saves, loads = VARIANTS[variant]
        os.chdir(folder)
        writer = pair[saves]()
        reader = writer if loads == saves else pair[loads]()
        each.run(writer, reader, folder)
        answer = RIGHT
    except BaseException as error:
        outcome = WRONG if isinstance(error, Wrong) else LOST if isinstance(error, Lost) else ERROR
        last_line = (str(error).strip().splitlines() or [""])[-1].strip()  # DCP's messages begin with a traceback.
        detail = f"{type(error).__name__}: {last_line}"
        answer = f"{outcome} {detail}"
    os.write(write, answer.encode(errors="replace")[:_MAX_MESSAGE])
    os._exit(0)  # A thread of the library that hangs must not hold the answer up.


def _await(child: int, read: int, seconds: float) -> Result:
    end = time.monotonic() + seconds
    answer = b""
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Result(HANG, f"it did not end within {seconds:g} s")
        more = os.read(read, _MAX_MESSAGE)
        answer += more
        if not more:
            break
    _, status = os.waitpid(child, 0)
    if not answer:
        return Result(ERROR, f"the process ended with status {os.waitstatus_to_exitcode(status)}")
    outcome, _, detail = answer.decode(errors="replace").partition(" ")
    return Result(outcome, detail)


def preload() -> None:
    """Imports what most cases need, once for all of their processes."""
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")  # Without them DeepSpeed asks for a GPU and a compiler.
    names = "torch torch.distributed.checkpoint numpy pytorch_lightning transformers accelerate deepspeed torchtnt.framework.train"
    for name in names.split():
        importlib.import_module(name)


def run_all(chosen: List[Case], endpoint: str, say: bool = False) -> Iterator[Tuple[Case, str, Result]]:
    """Yields (case, variant, result), one after the other."""
    os.environ["CKPTD_ENDPOINT"] = endpoint
    for number, each in enumerate(chosen, 1):
        for variant in variants_of(each):
            result = run(each, variant)
            if say:
                print(f"[{number}/{len(chosen)}] {each.name}, {variant}: {result.outcome} {result.detail[:150]}", file=sys.stderr)
            yield each, variant, result
