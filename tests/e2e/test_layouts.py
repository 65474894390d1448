"""Saves of the same files as the last one, which are named and not listed again, with a real daemon."""

from __future__ import annotations

import concurrent.futures
from typing import Any, Dict, List, Tuple

import ckptd
import pytest
from ckptd._session.session import Session
from harness import Daemon

FILES = {"model/b": b"first" * 3000, "model/a": b"", "c": bytes(range(256)) * 900}
Call = Tuple[str, int]  # A request of a save, and how many files it lists.


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> List[Call]:
    """The Begins and Seals of this process."""
    made: List[Call] = []
    before = Session.call

    def call(session: Session, method: Any, request: Any, timeout: float) -> Any:
        kind = type(request).__name__
        if kind in ("BeginRequest", "SealRequest"):
            made.append((kind[: -len("Request")], len(request.files)))
        return before(session, method, request, timeout)

    monkeypatch.setattr(Session, "call", call)
    return made


def join(daemon: Daemon, root: str, **options: Any) -> ckptd.Run:
    """A run in a session of its own."""
    return ckptd.connect(daemon.endpoint).run(root, **{"rank": 0, "world_size": 1, **options})


def changed(number: int, files: Dict[str, bytes] = FILES) -> Dict[str, bytes]:
    """The same files with other bytes."""
    return {name: bytes((byte + number) % 256 for byte in data) for name, data in files.items()}


def check(run: ckptd.Run, saved: Dict[str, Dict[str, bytes]]) -> None:
    for tag, files in saved.items():
        with run.open(tag) as checkpoint:
            assert {name: checkpoint.read(name) for name in checkpoint.files} == files, tag


def save_all(run: ckptd.Run, saved: Dict[str, Dict[str, bytes]]) -> None:
    for tag, files in saved.items():
        run.save(tag, files=files).wait(timeout=60)


def test_files_as_in_the_last_save_are_not_listed_again(
    daemon: Daemon, root: str, calls: List[Call]
) -> None:
    run = join(daemon, root)
    saved = {f"step-{number}": changed(number) for number in range(3)}
    save_all(run, saved)
    assert calls == [("Begin", 3)] + [("Seal", 0), ("Begin", 0)] * 2 + [("Seal", 0)]
    check(run, saved)


def test_other_files_are_listed(daemon: Daemon, root: str, calls: List[Call]) -> None:
    run = join(daemon, root)
    saved = {
        "same": FILES,
        "another-size": {**FILES, "model/b": b"longer" * 3000},
        "another-order": dict(reversed(list(FILES.items()))),
        "another-name": {**changed(1), "d": b""},
        "fewer": {"c": b"x"},
        "as-at-first": changed(2),
    }
    save_all(run, saved)
    assert [count for kind, count in calls if kind == "Begin"] == [3, 3, 3, 4, 1, 3]
    check(run, saved)


def test_save_after_a_restart_of_the_daemon_lists_its_files(
    daemon: Daemon, root: str, calls: List[Call]
) -> None:
    run = join(daemon, root)
    save_all(run, {"before": FILES})
    daemon.kill()
    daemon.restart()
    calls.clear()
    saved = {"after": changed(1), "again": changed(2)}
    save_all(run, saved)
    assert [count for kind, count in calls if kind == "Begin"] == [3, 0]
    check(run, {"before": FILES, **saved})


def test_layout_that_the_daemon_does_not_keep_is_listed_once_more(
    daemon: Daemon, root: str, calls: List[Call]
) -> None:
    run = join(daemon, root)
    save_all(run, {"first": FILES})
    membership = run._membership
    kept = membership.last_layout
    save_all(run, {"other": {"c": b"x"}})
    membership.last_layout = kept  # As if another thread's save had come between.
    calls.clear()
    saved = {"again": changed(1), "and-again": changed(2)}
    save_all(run, saved)
    assert [count for kind, count in calls if kind == "Begin"] == [0, 3, 0]
    check(run, {"first": FILES, "other": {"c": b"x"}, **saved})


def test_sessions_do_not_share_layouts(daemon: Daemon, root: str) -> None:
    runs = [join(daemon, root, rank=rank, world_size=2) for rank in (0, 1)]
    saved: Dict[str, Dict[str, bytes]] = {}
    for number in range(3):
        parts = [{f"{rank}/{name}": data for name, data in changed(10 * number + rank).items()} for rank in (0, 1)]
        tag = f"step-{number}"
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            futures = [threads.submit(run.save, tag, files=part) for run, part in zip(runs, parts)]
        for future in futures:
            future.result().wait(timeout=60)
        saved[tag] = {**parts[0], **parts[1]}
    check(runs[0], saved)


def test_daemon_that_keeps_no_layouts_gets_the_list_each_time(
    daemon: Daemon, root: str, calls: List[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Session.call

    def call(session: Session, method: Any, request: Any, timeout: float) -> Any:
        answer = before(session, method, request, timeout)
        if type(request).__name__ == "BeginRequest":
            answer.ClearField("layout")
        return answer

    monkeypatch.setattr(Session, "call", call)
    run = join(daemon, root)
    saved = {"one": FILES, "two": changed(1)}
    save_all(run, saved)
    assert calls == [("Begin", 3), ("Seal", 3)] * 2
    check(run, saved)


def test_part_filled_file_by_file_lists_its_files(
    daemon: Daemon, root: str, calls: List[Call]
) -> None:
    run = join(daemon, root)
    save_all(run, {"whole": FILES})
    calls.clear()
    with run.begin("growing") as part:
        for name, data in FILES.items():
            part.add(name, data)
    part.wait(timeout=60)
    save_all(run, {"whole-again": changed(1)})
    assert calls == [("Begin", 0), ("Seal", 3), ("Begin", 0), ("Seal", 0)]
    check(run, {"whole": FILES, "growing": FILES, "whole-again": changed(1)})
