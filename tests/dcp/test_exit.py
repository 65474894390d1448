"""What happens to saves that are in flight when a process ends by itself."""

import os
import shutil
import signal
import subprocess

import pytest

from harness import Daemon, until

STATE = "{'a': torch.ones(24 << 20)}"


@pytest.fixture
def stopped(session_folder, start_processes, root):
    """A process whose async save to root/s-1 is in flight, because its daemon is stopped."""
    daemon = Daemon(os.path.join(session_folder, f"d-{os.path.basename(root)}"), pool_bytes=256 << 20)
    process = start_processes(daemon.endpoint, 1)[0]
    process.do(
        f"import atexit, logging, signal; logging.basicConfig(filename={root + '.log'!r})\n"
        f"dcp.save({{'a': torch.ones(3)}}, storage_writer=Writer({root + '/first'!r}))\n"
        f"atexit.register(lambda: open({root + '.exits'!r}, 'w').close())\n"
        f"state = {STATE}\n"
        f"saved = ckptd.dcp.async_save(state, storage_writer=Writer({root + '/s-1'!r}))\n"
        f"os.kill({daemon.pid}, signal.SIGSTOP)",
        60,
    )
    assert process.do("saved.done()") is False
    yield daemon, process
    os.kill(daemon.pid, signal.SIGCONT)
    daemon.close()


def end(process, root):
    """Lets a process end by itself; returns when it has begun to."""
    process.process.stdin.close()
    until(lambda: os.path.exists(root + ".exits"), "the end of the process")


def logged(root):
    with open(root + ".log", encoding="utf-8") as file:
        return file.read()


def test_process_that_ends_waits_until_its_saves_are_committed(stopped, root):
    daemon, process = stopped
    end(process, root)
    with pytest.raises(subprocess.TimeoutExpired):
        process.process.wait(1)
    os.kill(daemon.pid, signal.SIGCONT)
    assert process.process.wait(60) == 0
    assert os.path.exists(root + "/s-1/.ckptd/manifest")
    assert logged(root) == ""


def test_process_that_ends_waits_no_longer_than_its_deadline_and_says_for_what(stopped, root):
    daemon, process = stopped
    process.do("from ckptd.dcp._process import process; process.settings = process.settings._replace(timeout=1.0)")
    end(process, root)
    assert process.process.wait(60) == 0
    assert "s-1" in logged(root) and "sealed and not committed" in logged(root)


def test_process_that_ends_reports_a_save_that_fails_meanwhile(stopped, root):
    daemon, process = stopped
    end(process, root)
    shutil.rmtree(root)
    os.kill(daemon.pid, signal.SIGCONT)
    assert process.process.wait(60) == 0
    assert "s-1" in logged(root) and "is not a checkpoint" in logged(root)
