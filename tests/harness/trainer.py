"""Trainers that are processes of their own, driven line by line (trainer_program.py)."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import pytest

from harness.fork_server import ForkedProcess
from harness.waiting import TIMEOUT, readable
from harness.workplace import module_path

TRAINER_PROGRAM = pathlib.Path(__file__).with_name("trainer_program.py")


class TrainerError(Exception):
    """The exception that a trainer's code ended with, as the trainer described it."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(f"{answer['error']} {answer['reason']}: {answer['message']}")
        self.kind = answer["error"]
        self.bases = answer["bases"]
        self.reason = answer["reason"]
        self.message = answer["message"]
        self.ranks = answer["ranks"]
        self.tag = answer["tag"]


class Trainer:
    """A process that runs the Python code that it is sent."""

    def __init__(
        self, endpoint: str, env: Optional[Mapping[str, str]] = None, wrapper: Sequence[str] = ()
    ) -> None:
        """`wrapper` is a command that runs the process in its own place, as nsenter does."""
        environment = {**os.environ, "CKPTD_ENDPOINT": endpoint, "PYTHONPATH": module_path(), **(env or {})}
        self.process: Union[ForkedProcess, subprocess.Popen[str]]
        if wrapper:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, str(TRAINER_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
            )
        else:
            self.process = ForkedProcess(environment)
        self.pid = self.process.pid

    def start(self, code: str) -> None:
        """Sends code to run; `result` waits for the outcome."""
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def result(self, timeout: float = TIMEOUT) -> Any:
        """The value of the code's last expression. Raises TrainerError with the exception that it raised."""
        assert readable(self.process.stdout, timeout), f"trainer {self.pid} did not answer within {timeout} s"
        line = self.process.stdout.readline()
        assert line, f"trainer {self.pid} ended"
        answer = json.loads(line)
        if "error" in answer:
            raise TrainerError(answer)
        return answer["value"]

    def do(self, code: str, timeout: float = TIMEOUT) -> Any:
        self.start(code)
        return self.result(timeout)

    def fails(self, code: str, timeout: float = TIMEOUT) -> TrainerError:
        """Runs code that must raise, and returns the error."""
        self.start(code)
        return self.result_failing(timeout)

    def result_failing(self, timeout: float = TIMEOUT) -> TrainerError:
        with pytest.raises(TrainerError) as caught:
            self.result(timeout)
        return caught.value

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        """Kills the process, also while it is stopped."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def together(ranks: Sequence[Trainer], code: str, timeout: float = TIMEOUT) -> list[Any]:
    """Runs the same code on all ranks at once; returns their results."""
    for trainer in ranks:
        trainer.start(code)
    return [trainer.result(timeout) for trainer in ranks]


def together_failing(ranks: Sequence[Trainer], code: str, timeout: float = TIMEOUT) -> list[TrainerError]:
    """Runs the same code, which must raise, on all ranks at once; returns the errors."""
    for trainer in ranks:
        trainer.start(code)
    return [trainer.result_failing(timeout) for trainer in ranks]
