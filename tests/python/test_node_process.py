"""The state that an adapter keeps in a process, with a fake daemon."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from ckptd import _node_process
from ckptd._node_process import Place, Process


def test_end_waits_for_saves_no_longer_when_no_daemon_answers(
    daemon: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_node_process, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(_node_process, "_NO_DAEMON_SECONDS", 0.5)
    process = Process("dcp")
    process.configure(daemon.endpoint, timeout=3600)
    daemon.hold = True
    save = process.run(str(tmp_path / "root"), 0, 1).save("a", files={"f": b"x"})
    process.add(Place(str(tmp_path / "root"), "a"), save)
    daemon.stop()
    begin = time.monotonic()
    with caplog.at_level(logging.ERROR, "ckptd"):
        process._end()
    assert time.monotonic() - begin < 60
    assert "the save of a is sealed" in caplog.text and "no daemon has answered" in caplog.text
    process._in_flight = []  # Otherwise the end of this process waits for it, too.
    daemon.start()


def test_end_waits_for_a_save_as_long_as_a_daemon_answers(
    daemon: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_node_process, "_LOOK_SECONDS", 0.05)
    process = Process("dcp")
    process.configure(daemon.endpoint)
    daemon.hold = True
    save = process.run(str(tmp_path / "root"), 0, 1).save("a", files={"f": b"x"})
    process.add(Place(str(tmp_path / "root"), "a"), save)
    with caplog.at_level(logging.ERROR, "ckptd"):
        process.await_all(time.monotonic() + 0.5)
    assert "the save of a is sealed and not committed after" in caplog.text and "daemon has answered" not in caplog.text
    daemon.commit("a")
    process.await_all(time.monotonic() + 60)
    assert save.level == "committed"
