"""A training process that gets SIGTERM, and one last save that the next launch resumes from."""

import os
import signal
import subprocess
import sys

import ckptd
from harness import tags

TRAINING = """
import logging, sys
import ckptd
logging.basicConfig(level=logging.INFO, format="%(message)s")
run = ckptd.connect().run(sys.argv[1], rank=0, world_size=1)
step = run.restore(lambda c: int(c.read("step")) if c else 0)
print("from", step, flush=True)
def save():
    return run.save(f"step_{step}", step=step, files={"step": str(step).encode()})
with ckptd.on_preemption(run, save, grace=60) as preemption:
    while not preemption.check():
        step += 1
        if step % 100 == 0:
            save().wait()
            print("saved", step, flush=True)
print("ends at", step, flush=True)
"""


def start(daemon, root):
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, root],
        env={**os.environ, "CKPTD_ENDPOINT": daemon.endpoint},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(job):
    for line in job.stdout:
        if line.startswith("saved 300") or line.startswith("saved 600"):
            break
    job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    return int(out.split()[-1]), err


def test_job_that_is_told_to_end_saves_its_step_and_the_next_one_resumes_there(daemon, root):
    job = start(daemon, root)
    try:
        last, log = finish(job)
    finally:
        job.kill()
    assert tags(root)[0] == f"step_{last}"
    assert "SIGTERM asks the job to end: the last save begins; a save of " in log
    assert "60 s are left: it fits" in log
    again = start(daemon, root)
    try:
        assert again.stdout.readline() == f"from {last}\n"
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=60)
    finally:
        again.kill()
    assert again.returncode in (0, -signal.SIGTERM)  # It may have ended before it had prepared for the signal.


def test_outlook_is_measured_from_the_saves_of_the_run(daemon, root):
    run = ckptd.connect(daemon.endpoint).run(root, rank=0, world_size=1)
    assert run.save_outlook() is None
    for step in (1, 2):
        run.save(f"s{step}", step=step, files={"a": b"x" * 100_000}).wait()
    outlook = run.save_outlook(seconds_between_failures=86400)
    assert outlook.saves == 2 and outlook.size_bytes == 100_000
    assert 0 < outlook.durable_seconds < 60
    assert outlook.advised_interval_seconds > outlook.stall_seconds
    assert outlook.advice.startswith("a save every ")
