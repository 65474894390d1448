"""What a client says while its daemon is away: lost, waiting, connected again; and what a wait says then."""

from __future__ import annotations

import logging
import threading
from typing import Any, List

import ckptd
import pytest
from harness import until


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ckptd")


def lines(caplog: pytest.LogCaptureFixture, level: int) -> List[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_lost_idle_daemon_is_logged_as_info_and_its_return_too(
    daemon: Any, run: ckptd.Run, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.stop()
    until(lambda: any("lost the daemon at" in line for line in lines(caplog, logging.INFO)), "the loss in the log")
    daemon.start()
    until(lambda: any("connected to a new daemon" in line for line in lines(caplog, logging.INFO)), "the return")
    assert lines(caplog, logging.WARNING) == []


def test_wait_without_daemon_says_so_and_log_warns_of_loss_and_return(
    daemon: Any, run: ckptd.Run, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.hold = True
    save = run.save("one", files={"a.bin": b"x"})
    daemon.stop()
    until(lambda: any("no daemon has answered" in line for line in lines(caplog, logging.WARNING)), "a warning")
    with pytest.raises(ckptd.WaitTimeout) as caught:
        save.wait(timeout=0.3)
    assert "no daemon has answered at unix:" in str(caught.value)
    assert "it goes on: wait again" not in str(caught.value)
    daemon.hold = False
    daemon.start()
    save.wait(timeout=20)
    until(lambda: any("connected to a new daemon" in line for line in lines(caplog, logging.WARNING)), "the return")


def test_save_that_waits_for_daemon_warns_at_once(
    daemon: Any, run: ckptd.Run, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.stop()
    saving = threading.Thread(target=lambda: run.save("one", files={"a.bin": b"x"}))
    saving.start()
    until(lambda: any("a call waits up to 30 s" in line for line in lines(caplog, logging.WARNING)), "a warning")
    daemon.start()
    saving.join(20)
    assert not saving.is_alive()


def test_wait_with_daemon_says_nothing_of_it(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    save = run.save("one", files={"a.bin": b"x"})
    with pytest.raises(ckptd.WaitTimeout, match="it goes on: wait again"):
        save.wait(timeout=0.1)
