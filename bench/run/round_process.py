"""One round of a case, in a process of its own: it can be ended when it hangs, and takes its memory with it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pathlib
import shutil
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any, Callable

from bench.base import processes
from bench.base.leftovers import Leftovers

_fork = multiprocessing.get_context("fork")  # A new interpreter would import torch for seconds, in each round.
_PR_SET_PDEATHSIG = 1
_TAIL = 3000  # Characters of a failed round's output that its message has.


class RoundFailed(Exception):
    """The message says why."""


class RoundTooLong(Exception):
    """It has been killed."""


def run(
    work: Callable[[pathlib.Path], Any],
    leftovers: Leftovers,
    limit: float,
    tick: Callable[[], None] = lambda: None,
) -> Any:
    """Returns what `work` returns in a process of its own. Nothing that it has made or started is left afterwards.

    Args:
        work: gets a folder on the disk. Its output goes to a file, whose end RoundFailed has.
        limit: seconds, after which the round is killed: RoundTooLong.
        tick: called about once a second.
    """
    folder, output = leftovers.disk / "round", leftovers.temporary / "round.log"
    folder.mkdir()
    folder.chmod(0o755)
    receiving, sending = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_work, args=(work, folder, output, leftovers, os.getpid(), sending))
    process.start()
    sending.close()  # So that the pipe ends with the process.
    try:
        return _result(receiving, output, limit, tick)
    finally:
        process.kill()
        process.join()
        processes.kill(leftovers.run.token)
        leftovers.undo_all()
        shutil.rmtree(folder, ignore_errors=True)
        receiving.close()


def _result(answer: Connection, output: pathlib.Path, limit: float, tick: Callable[[], None]) -> Any:
    deadline = time.monotonic() + limit
    while not wait([answer], max(0.0, min(1.0, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            raise RoundTooLong(f"not ended after {limit:.0f} s{_tail(output)}")
        tick()
    try:
        failed, result = answer.recv()
    except EOFError:
        raise RoundFailed(f"its process has died{_tail(output)}") from None
    if failed:
        raise RoundFailed(result + _tail(output))
    return result


def _tail(output: pathlib.Path) -> str:
    text = output.read_text(errors="replace").strip()[-_TAIL:] if output.exists() else ""
    return f"; the end of its output:\n{text}" if text else ""


def _work(
    work: Callable[[pathlib.Path], Any],
    folder: pathlib.Path,
    output: pathlib.Path,
    leftovers: Leftovers,
    parent: int,
    answer: Connection,
) -> None:
    """Runs in the forked process."""
    os.setsid()  # A signal from the terminal is for the bench, which ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # It died before the call.
    leftovers.let_go()
    with open(output, "wb") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        answer.send((False, work(folder)))
    except SystemExit as error:
        answer.send((True, str(error)))
    except BaseException as error:
        traceback.print_exc()
        answer.send((True, f"{type(error).__name__}: {error}"))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Threads of a library may be stuck.
