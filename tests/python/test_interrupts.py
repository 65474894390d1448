"""Ctrl-C in the middle of calls: it is heard, and leaves no lock behind that later calls need."""

from __future__ import annotations

import _thread
import concurrent.futures
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any, List

import ckptd
import grpc
import pytest
from ckptd._session.interrupts import call, uninterrupted
from ckptd._wire.status import to_error


@pytest.fixture(autouse=True)
def handler(interrupt_handler: Any) -> Any:
    return interrupt_handler


def test_interrupt_waits_for_the_end_of_what_is_uninterrupted(handler: Any) -> None:
    done: List[str] = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_error_of_what_is_uninterrupted_is_raised(handler: Any) -> None:
    with pytest.raises(ValueError), uninterrupted():
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is handler


def test_uninterrupted_may_be_nested(handler: Any) -> None:
    done: List[str] = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
            done.append("the rest")
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_interrupt_is_heard_where_another_signals_handler_has_prevented_the_end() -> None:
    inside = uninterrupted()
    inside.__enter__()
    inside._is_inside = False  # As in __exit__, right before it restores the handler.
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("action", [signal.SIG_DFL, signal.SIG_IGN])
def test_actions_that_python_does_not_run_stay(action: Any) -> None:
    signal.signal(signal.SIGINT, action)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is action


def test_other_threads_change_no_handler(handler: Any) -> None:
    def look() -> Any:
        with uninterrupted():
            return signal.getsignal(signal.SIGINT)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert threads.submit(look).result(60) is handler


def test_interrupted_call_is_cancelled() -> None:
    future: "concurrent.futures.Future[None]" = concurrent.futures.Future()
    threading.Timer(0.05, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        call(lambda: future)
    assert future.cancelled()


def test_call_that_is_interrupted_while_it_starts_is_cancelled(handler: Any) -> None:
    future: "concurrent.futures.Future[None]" = concurrent.futures.Future()

    def start() -> "concurrent.futures.Future[None]":
        signal.raise_signal(signal.SIGINT)
        return future

    with pytest.raises(KeyboardInterrupt):
        call(start)
    assert future.cancelled()


class LateBegin:
    """A Begin whose first call is interrupted on its way to the daemon, which gets it after what comes next."""

    def __init__(self, begin: Any) -> None:
        self._begin = begin
        self.held: Any = None

    def future(self, request: Any, **options: Any) -> Any:
        if self.held is not None:
            return self._begin.future(request, **options)
        self.held = lambda: self._begin(request, **options)
        raise KeyboardInterrupt


def test_begin_that_arrives_after_the_abort_of_an_interrupted_save_leaves_no_save_behind(tmp_path: pathlib.Path) -> None:
    with ckptd.LocalDaemon(tmp_path / "daemon", pool_bytes=64 << 20, populate_bytes=0) as daemon:
        run = ckptd.connect(daemon.endpoint).run(tmp_path / "root", rank=0, world_size=1)
        checkpoints = run._membership.joined(20).session.checkpoints
        late = checkpoints.Begin = LateBegin(checkpoints.Begin)
        with pytest.raises(KeyboardInterrupt):
            run.save("last", files={"a": b"1"})
        with pytest.raises(grpc.RpcError) as refused:
            late.held()
        assert to_error(refused.value).reason == "SAVE_ABORTED"
        run.save("last", files={"a": b"2"}).wait(timeout=20)


PROGRAM = """
import _thread, sys, threading, ckptd
with ckptd.LocalDaemon(sys.argv[1], pool_bytes=64 << 20, populate_bytes=0) as daemon:
    run = ckptd.connect(daemon.endpoint).run(sys.argv[2], rank=0, world_size=1)
    interrupted = 0
    for attempt in range(200):
        timer = threading.Timer(attempt % 20 * 0.0002, _thread.interrupt_main)
        try:
            timer.start()
            run.save("last", files={"a": b"1"}).wait(timeout=60)
            timer.join()
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        # The save watcher, another thread, makes calls on the same channel.
        run.save("last", files={"a": b"2"}).wait(timeout=60)
    print(interrupted)
"""


def test_saves_after_interrupted_ones_commit(tmp_path: pathlib.Path) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "daemon"), str(tmp_path / "root")]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=250, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == 200
