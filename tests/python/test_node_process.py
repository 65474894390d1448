"""The state that an adapter keeps in a process, with a fake daemon."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

import pytest
from ckptd._adapters import node_process
from ckptd._adapters.node_process import Place, Process
from ckptd.nxd import _process as nxd_process


def test_end_waits_for_saves_no_longer_when_no_daemon_answers(
    daemon: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_process, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(node_process, "_NO_DAEMON_SECONDS", 0.5)
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
    monkeypatch.setattr(node_process, "_LOOK_SECONDS", 0.05)
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


@pytest.mark.parametrize("make", [lambda: Process("dcp"), nxd_process.Process], ids=["dcp", "nxd"])
def test_forked_child_begins_with_nothing_of_its_parent(make: Any) -> None:
    process = make()
    joined = process._runs if hasattr(process, "_runs") else process._jobs
    joined["root"] = None
    client, held, release = process._client, threading.Event(), threading.Event()

    def hold() -> None:
        with process._lock:
            held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        new = process._runs if hasattr(process, "_runs") else process._jobs
        is_free = process._lock.acquire(timeout=5) and new == {} and process._client is not client
        os.write(writing, b"free" if is_free else b"held")
        os._exit(0)
    os.waitpid(child, 0)
    release.set()
    holder.join()
    assert os.read(reading, 4) == b"free"
    assert joined == {"root": None}, "the parent goes on as before"
    os.close(reading)
    os.close(writing)
