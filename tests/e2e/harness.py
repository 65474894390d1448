"""Drives the real programs: a daemon, trainers that are processes of their own, and ckptctl, judged from outside."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time

import pytest

import ckptd
from ckptd.local_daemon import find_program

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 60.0


class TrainerError(Exception):
    def __init__(self, answer):
        super().__init__(f"{answer['error']} {answer['reason']}: {answer['message']}")
        self.kind = answer["error"]
        self.bases = answer["bases"]
        self.reason = answer["reason"]
        self.message = answer["message"]
        self.ranks = answer["ranks"]
        self.tag = answer["tag"]


class Trainer:
    """See trainer.py."""

    def __init__(self, endpoint, env=None):
        environment = {**os.environ, "CKPTD_ENDPOINT": endpoint, **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "trainer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.pid = self.process.pid

    def start(self, code):
        """Begins; `result` brings the outcome."""
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def result(self, timeout=PATIENCE):
        readable, _, _ = select.select([self.process.stdout], [], [], timeout)
        assert readable, f"trainer {self.pid} did not answer within {timeout} s"
        line = self.process.stdout.readline()
        assert line, f"trainer {self.pid} ended"
        answer = json.loads(line)
        if "error" in answer:
            raise TrainerError(answer)
        return answer["value"]

    def do(self, code, timeout=PATIENCE):
        self.start(code)
        return self.result(timeout)

    def fails(self, code, timeout=PATIENCE):
        """The error that `code` ends with."""
        self.start(code)
        return self.result_failing(timeout)

    def result_failing(self, timeout=PATIENCE):
        with pytest.raises(TrainerError) as caught:
            self.result(timeout)
        return caught.value

    def kill(self):
        self.process.kill()
        self.process.wait()

    def send(self, number):
        os.kill(self.pid, number)

    def close(self):
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def until(condition, what, timeout=PATIENCE):
    """Waits for something that another process brings about."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {timeout} s")


class Daemon:
    """A private daemon that the test may kill and start again."""

    def __init__(self, folder, **options):
        self.folder = folder
        self.options = {"pool_bytes": 256 << 20, "idle_timeout": 60, **options}
        self.local = ckptd.LocalDaemon(folder, **self.options).start()
        self.endpoint = self.local.endpoint
        self.pid = self.local.pid

    def status(self):
        return self.local._keeper.status()

    def run_status(self, root):
        root = os.path.realpath(root)
        for run in self.status().runs:
            if os.path.realpath(run.path) == root:
                return run
        raise AssertionError(f"the daemon knows no run in {root}")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not alive(self.pid), "the daemon's end")

    def restart(self):
        """At once, as a job that starts again does it: what was killed may not be quite gone."""
        self.local.stop()
        self.local = ckptd.LocalDaemon(self.folder, **self.options).start()
        self.pid = self.local.pid

    def log(self):
        with open(os.path.join(self.folder, "ckptd.log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def close(self):
        pid = self.pid
        with contextlib.suppress(ckptd.CkptdError):
            self.local.stop()
        with contextlib.suppress(AssertionError):
            until(lambda: not alive(pid), "the daemon's end", 20)
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def ckptctl(*arguments, endpoint=None, check=True):
    command = [find_program("ckptctl")] + ([f"--endpoint={endpoint}"] if endpoint else []) + list(arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if check:
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def start_ckptctl(*arguments, endpoint):
    command = [find_program("ckptctl"), f"--endpoint={endpoint}", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def tags(root):
    return [info.tag for info in ckptd.open_root(root).list()]


def together(ranks, code, timeout=PATIENCE):
    """The same on all ranks at once; their results."""
    for trainer in ranks:
        trainer.start(code)
    return [trainer.result(timeout) for trainer in ranks]


def together_failing(ranks, code, timeout=PATIENCE):
    for trainer in ranks:
        trainer.start(code)
    return [trainer.result_failing(timeout) for trainer in ranks]
