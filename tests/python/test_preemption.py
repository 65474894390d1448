"""on_preemption against a fake daemon: when it saves, what it says of the outlook, and how ranks agree."""

from __future__ import annotations

import logging
import os
import pathlib
import signal
import threading
from typing import Any, Iterator, List

import ckptd
import grpc
import pytest
from ckptd import preemption as module


def refusal(code: grpc.StatusCode, reason: str) -> Any:
    """A step of a call's script that refuses the call."""
    return lambda: (code, reason)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Saves:
    """Counts the saves that were asked for."""

    def __init__(self, run: ckptd.Run) -> None:
        self.run = run
        self.tags: List[str] = []

    def __call__(self) -> ckptd.Save:
        self.tags.append(f"last_{len(self.tags) + 1}")
        return self.run.save(self.tags[-1], files={"a": b"x"})


def test_saves_once_at_the_next_check_and_not_in_the_signal(daemon: Any, run: ckptd.Run) -> None:
    saves = Saves(run)
    with ckptd.on_preemption(run, saves) as preemption:
        assert not preemption.check() and not preemption.requested
        os.kill(os.getpid(), signal.SIGUSR1)
        assert preemption.requested and preemption.cause == "SIGUSR1"
        assert saves.tags == [], "a signal comes in the middle of a step"
        assert preemption.check()
        assert saves.tags == ["last_1"] and preemption.result.level == "committed"
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.check() and saves.tags == ["last_1"]
    assert list(daemon.committed) == ["last_1"]


def test_signals_go_back_to_their_earlier_handlers(run: ckptd.Run) -> None:
    got: List[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    with ckptd.on_preemption(run, Saves(run)) as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert got == [] and preemption.requested
    os.kill(os.getpid(), signal.SIGTERM)
    assert got == [signal.SIGTERM]


def test_file_asks_for_the_end(run: ckptd.Run, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_FILE_SECONDS", 0.0)
    notice = tmp_path / "ends"
    saves = Saves(run)
    with ckptd.on_preemption(run, saves, signals=(), file=notice) as preemption:
        assert not preemption.check()
        notice.touch()
        assert preemption.check() and saves.tags == ["last_1"]
        assert preemption.cause == f"the file {notice}"


def test_outlook_says_that_the_save_fits(daemon: Any, run: ckptd.Run, caplog: Any) -> None:
    daemon.history.outlook.durable_seconds = 3.0
    daemon.history.outlook.size_bytes = 6_000_000_000
    caplog.set_level(logging.INFO, "ckptd")
    with ckptd.on_preemption(run, Saves(run), grace=60) as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.check()
        assert preemption.outlook is not None and preemption.outlook.fits is True
    assert "a save of 6 GB needs about 3 s, and 60 s are left: it fits" in caplog.text
    assert "lost" not in caplog.text


def test_outlook_says_what_is_lost_if_the_save_does_not_fit_and_saves_anyway(
    daemon: Any, run: ckptd.Run, caplog: Any
) -> None:
    run.save("step_7", step=7, files={"a": b"x"}).wait()
    daemon.latest = 7
    daemon.history.outlook.durable_seconds = 90.0
    saves = Saves(run)
    with ckptd.on_preemption(run, saves, grace=30) as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.check()
        assert preemption.outlook is not None and preemption.outlook.fits is False
    assert saves.tags == ["last_1"], "the daemon commits what is sealed even if the job is killed"
    assert "30 s are left: it does NOT fit; if the node ends before, the steps after" in caplog.text


def test_outlook_without_a_committed_save_or_an_answer_is_unknown(daemon: Any, run: ckptd.Run) -> None:
    unknown = module.outlook(run, 10)
    assert unknown.fits is None and "none of this run was committed yet" in unknown.text
    assert "all steps are lost" in unknown.text
    daemon.script["GetHistory"].append(refusal(grpc.StatusCode.PERMISSION_DENIED, "WRONG_UID"))
    refused = module.outlook(run, 10)
    assert refused.fits is None and refused.text.startswith("whether a save fits is not known: ")


def test_save_that_is_not_durable_within_the_grace_period_ends_the_wait(
    daemon: Any, run: ckptd.Run, caplog: Any
) -> None:
    daemon.hold = True
    with ckptd.on_preemption(run, Saves(run), grace=0.2) as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.check()
    assert "the last save is not durable within the 0.2 s of grace" in caplog.text
    with daemon.changed:
        daemon.hold = False
        daemon.changed.notify_all()


def test_failed_save_is_raised_once(daemon: Any, run: ckptd.Run) -> None:
    daemon.script["Begin"].append(refusal(grpc.StatusCode.FAILED_PRECONDITION, "NODE_DRAINED"))
    with ckptd.on_preemption(run, Saves(run)) as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(ckptd.Busy) as refused:
            preemption.check()
        assert refused.value.reason == "NODE_DRAINED"
        assert preemption.check()


def test_all_ranks_save_the_same_step_though_one_alone_has_the_signal(run: ckptd.Run) -> None:
    """Two threads are the ranks; the barrier is the collective."""
    votes = [False, False]
    barrier = threading.Barrier(2, timeout=20)
    saved: List[str] = []

    def agreeing(rank: int) -> Any:
        def agree(value: bool) -> bool:
            votes[rank] = value
            barrier.wait()
            found = any(votes)
            barrier.wait()
            return found

        return agree

    def train(rank: int) -> None:
        preemption = ckptd.on_preemption(run, lambda: saved.append(f"{rank}: {step}"), signals=(), agree=agreeing(rank))
        for step in range(10):
            if rank == 1 and step == 3:
                preemption._request("SIGTERM")
            if preemption.check():
                return

    ranks = [threading.Thread(target=train, args=(rank,)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(20)
    assert sorted(saved) == ["0: 3", "1: 3"]


def test_ranks_without_a_way_to_agree_are_refused(client: ckptd.Client, daemon: Any, tmp_path: pathlib.Path) -> None:
    daemon.world_size = 2
    run = client.run(tmp_path / "root", rank=0, world_size=2)
    with pytest.raises(ckptd.Refused, match="needs a way for the 2 ranks to agree"):
        ckptd.on_preemption(run, lambda: None)


def test_signals_outside_of_the_main_thread_and_a_wrong_grace_are_refused(run: ckptd.Run) -> None:
    refused: List[BaseException] = []

    def other_thread() -> None:
        try:
            ckptd.on_preemption(run, lambda: None)
        except ckptd.Refused as error:
            refused.append(error)

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert "call it on the main thread, or pass signals=()" in str(refused[0])
    with pytest.raises(ValueError, match="grace is 0"):
        ckptd.on_preemption(run, lambda: None, grace=0)
