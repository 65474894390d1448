"""How far a reading has come, as the daemon hears of it. The daemon is a list of requests here, and answers when it is told to."""

from __future__ import annotations

import concurrent.futures
from typing import Any, List, Tuple, cast

import pytest
from ckptd import _reading, errors
from ckptd._reading import Telling
from ckptd._session import Session



class Daemon:
    checkpoints = type("Stub", (), {"ReportReading": None})

    def __init__(self, answers: bool) -> None:
        self.heard: List[Tuple[int, int]] = []
        self.calls: List[Any] = []
        self.answers = answers
        self.gone = False

    def start(self, _: Any, request: Any, timeout: float) -> Any:
        if self.gone:
            raise errors.Unavailable("gone", reason="UNAVAILABLE")
        assert timeout > 0
        self.heard.append((request.read_bytes, request.total_bytes))
        call: Any = concurrent.futures.Future()
        if self.answers:
            call.set_result(None)
        self.calls.append(call)
        return call


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reading, "_TELL_SECONDS", 0.0)


def telling_to(daemon: Daemon) -> Telling:
    return Telling(cast(Session, daemon), "leases/1")


def test_the_last_word_is_all_of_it() -> None:
    daemon = Daemon(answers=True)
    telling = telling_to(daemon)
    first = telling.begin(100)
    first(40)
    first(100)
    second = telling.begin(60)
    _reading._TELL_SECONDS = 1000.0
    second(10)  # Told, as it was due; from now on nothing is for long.
    second(60)
    telling.finish()
    telling.finish()
    assert daemon.heard == [(40, 100), (100, 100), (110, 160), (160, 160)]


def test_one_call_at_a_time_so_that_none_overtakes_another() -> None:
    daemon = Daemon(answers=False)
    telling = telling_to(daemon)
    tell = telling.begin(100)
    for done in (10, 20, 30):
        tell(done)
    assert daemon.heard == [(10, 100)]
    daemon.calls[0].set_exception(RuntimeError("too slow"))
    daemon.answers = True
    telling.finish()
    assert daemon.heard == [(10, 100), (30, 100)]


def test_a_short_reading_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reading, "_TELL_SECONDS", 1000.0)
    daemon = Daemon(answers=True)
    telling = telling_to(daemon)
    telling.begin(100)(100)
    telling.finish()
    assert daemon.heard == []


def test_a_daemon_that_has_gone_is_told_nothing_more() -> None:
    daemon = Daemon(answers=True)
    telling = telling_to(daemon)
    tell = telling.begin(100)
    tell(10)
    daemon.gone = True
    tell(20)
    daemon.gone = False
    tell(30)
    assert daemon.heard == [(10, 100)]
