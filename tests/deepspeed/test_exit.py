"""The end of a process with a save in flight."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from harness import until

PROGRAM = """
import sys
import ds_states as states
import ckptd.deepspeed
states.join(sys.argv[1], 0, 1)
ckptd.deepspeed.configure(timeout=float(sys.argv[3]))
made = states.engine(1, checkpoint_engine=ckptd.deepspeed.CheckpointEngine())
made.save_checkpoint(sys.argv[2], "before")
ckptd.deepspeed.run(sys.argv[2])._wait_for_end("before", 60)
print("ready", flush=True)
sys.stdin.readline()
made.save_checkpoint(sys.argv[2], "last")
print("saved", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def job(daemon, root):
    """Starts a job of one rank that exits after its last save. The argument is the time limit of the wait there."""
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    started = []

    def start(timeout):
        made = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"{root}.store", root, str(timeout)],
            env={**os.environ, "PYTHONPATH": path, "CKPTD_ENDPOINT": daemon.endpoint},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(made)
        assert made.stdout.readline() == "ready\n", made.communicate()
        return made

    yield start
    for made in started:
        made.kill()
        made.communicate()


def say(job):
    job.stdin.write("\n")
    job.stdin.flush()


def test_process_that_exits_right_after_a_save_leaves_the_checkpoint(job, root):
    process = job(60)
    say(process)
    say(process)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and "ckptd:" not in errors
    with open(f"{root}/latest") as file:
        assert file.read() == "last"


def test_save_that_is_not_done_in_time_is_reported_at_the_exit(job, daemon, root):
    process = job(2)
    say(process)
    until(lambda: process.stdout.readline() == "saved\n", "the save")
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        say(process)
        _, errors = process.communicate(timeout=60)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert process.returncode == 0
    assert "last" in errors or os.path.exists(f"{root}/last/.ckptd/manifest")
