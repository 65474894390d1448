"""Read progress reports, to a daemon that is a list of requests here and answers when the test tells it to."""

from __future__ import annotations

import concurrent.futures
from typing import Any, List, Tuple, cast

import pytest
from ckptd import errors
from ckptd._reading import read_progress
from ckptd._reading.read_progress import ReadProgressReporter
from ckptd._session.session import Session


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
    monkeypatch.setattr(read_progress, "REPORT_SECONDS", 0.0)


def reporter_to(daemon: Daemon) -> ReadProgressReporter:
    return ReadProgressReporter(cast(Session, daemon), "leases/1")


def test_last_report_has_all_bytes() -> None:
    daemon = Daemon(answers=True)
    reporter = reporter_to(daemon)
    first = reporter.begin_file(100)
    first(40)
    first(100)
    second = reporter.begin_file(60)
    read_progress.REPORT_SECONDS = 1000.0
    second(10)  # Reported, as it was due. From now on no report is due for long.
    second(60)
    reporter.finish()
    reporter.finish()
    assert daemon.heard == [(40, 100), (100, 100), (110, 160), (160, 160)]


def test_one_report_at_a_time_so_that_none_overtakes_another() -> None:
    daemon = Daemon(answers=False)
    reporter = reporter_to(daemon)
    advance = reporter.begin_file(100)
    for done in (10, 20, 30):
        advance(done)
    assert daemon.heard == [(10, 100)]
    daemon.calls[0].set_exception(RuntimeError("too slow"))
    daemon.answers = True
    reporter.finish()
    assert daemon.heard == [(10, 100), (30, 100)]


def test_short_read_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_progress, "REPORT_SECONDS", 1000.0)
    daemon = Daemon(answers=True)
    reporter = reporter_to(daemon)
    reporter.begin_file(100)(100)
    reporter.finish()
    assert daemon.heard == []


def test_short_read_is_reported_at_its_end_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_progress, "REPORT_SECONDS", 1000.0)
    daemon = Daemon(answers=True)
    reporter = reporter_to(daemon)
    reporter.always = True
    reporter.finish()
    assert daemon.heard == []  # Nothing was read.
    reporter.begin_file(100)(100)
    reporter.finish()
    reporter.finish()
    assert daemon.heard == [(100, 100)]


def test_what_was_not_read_of_a_file_that_has_ended_is_not_missing() -> None:
    daemon = Daemon(answers=True)
    reporter = reporter_to(daemon)
    reporter.begin_file(100)(40)
    reporter.end_file()
    reporter.begin_file(60)
    reporter.end_file()  # It was mapped.
    reporter.finish()
    assert daemon.heard == [(40, 100), (40, 40)]


def test_nothing_more_is_reported_when_the_session_has_ended() -> None:
    daemon = Daemon(answers=True)
    reporter = reporter_to(daemon)
    advance = reporter.begin_file(100)
    advance(10)
    daemon.gone = True
    advance(20)
    daemon.gone = False
    advance(30)
    assert daemon.heard == [(10, 100)]
