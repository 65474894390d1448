"""Which processes are launches of a job: those that train, not those that read beside them, nor a shell that starts
both; and what a process that has used ckptd can do in its children.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any, List

import pytest

_PROGRAM = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp, torch.distributed.checkpoint as dcp
import ckptd.dcp
ckptd.dcp.install()
ckptd.dcp.configure(timeout=60, commit_timeout=60)
root = sys.argv[1]

def save(step):
    dcp.save({"w": torch.full((10,), float(step))}, checkpoint_id=f"{root}/step-{step}")

def load(step):
    state = {"w": torch.zeros(10)}
    dcp.load(state, checkpoint_id=f"{root}/step-{step}")
    return int(state["w"][0])

def rank(number, store, step):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    save(step)
    dist.barrier()

def ranks(how, step):
    workers = mp.start_processes(rank, (f"{root}.store-{step}", step), nprocs=2, join=False, start_method=how)
    while not workers.join():
        pass

if __name__ == "__main__":
    for line in sys.stdin:
        print("ANSWER", eval(line), flush=True)
"""


class Program:
    """A process without a launcher whose parent is this one, as one that is started from a shell."""

    def __init__(self, endpoint: str, folder: pathlib.Path) -> None:
        script = folder / "program.py"
        script.write_text(_PROGRAM)
        launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "SLURM_", "OMPI_", "TORCHELASTIC_", "MASTER_", "CKPTD_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
        environment["CKPTD_ENDPOINT"] = endpoint
        command = [sys.executable, str(script), str(folder / "root")]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, line: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            if answer.startswith("ANSWER"):
                return eval(answer.partition(" ")[2])
        raise AssertionError(f"{line} ended the program with {self._process.wait(60)}")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(120) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)


@pytest.fixture
def start(daemon: Any, tmp_path: pathlib.Path) -> Any:
    programs: List[Program] = []

    def make() -> Program:
        programs.append(Program(daemon.endpoint, tmp_path))
        return programs[-1]

    yield make
    for program in programs:
        program.kill()


def test_reader_in_between_fences_no_training_that_the_same_shell_starts(start: Any) -> None:
    train = start()
    train.do("save(1)")
    train.end()
    reader = start()
    assert reader.do("load(1)") == 1
    train = start()
    train.do("save(2)")
    assert reader.do("load(2)") == 2
    train.end()
    train = start()
    assert train.do("load(2)") == 2
    train.do("save(3)")
    assert reader.do("load(3)") == 3


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_parent_that_has_read_starts_the_ranks_of_the_job(how: str, start: Any) -> None:
    first = start()
    first.do("save(1)")
    first.end()
    parent = start()
    assert parent.do("load(1)") == 1
    parent.do(f"ranks({how!r}, 2)")
    assert parent.do("load(2)") == 2
