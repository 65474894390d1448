"""deploy/slurm: the scripts are correct shell, and do what they say beside a real daemon."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

import ckptd
from harness import TIMEOUT, DaemonProgram, closing, find_program, temporary_folder, until

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy/slurm"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
SHELLCHECK = pathlib.Path(sys.prefix, "debian/shellcheck/usr/bin/shellcheck")  # tools/setup unpacks it.


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_is_correct_shell(script: pathlib.Path) -> None:
    checked = subprocess.run([str(SHELLCHECK), str(script)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert os.access(script, os.X_OK)


@pytest.fixture
def daemon() -> Iterator[DaemonProgram]:
    with temporary_folder() as folder:
        program = DaemonProgram(folder, "pool { bytes: 64MiB populate_ahead_bytes: 0 }\nmetrics { port: -1 }\n")
        with closing(program) as made:
            assert made.launch(), made.log()
            yield made


def environment(daemon: DaemonProgram, **more: str) -> dict[str, str]:
    path = f"{pathlib.Path(find_program('ckptctl')).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "CKPTD_ENDPOINT": daemon.endpoint, **more}


def run(name: str, daemon: DaemonProgram, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(FOLDER / name)], capture_output=True, text=True, env=environment(daemon, **more), timeout=TIMEOUT
    )


def test_prolog_lets_a_job_onto_a_node_only_if_its_daemon_serves(daemon: DaemonProgram) -> None:
    done = run("prolog.sh", daemon)
    assert (done.returncode, done.stderr) == (0, "")
    daemon.end()
    done = run("prolog.sh", daemon)
    assert done.returncode == 1
    assert "does not answer" in done.stderr and "is it running" in done.stderr


@pytest.mark.parametrize("state, status", [("SERVING", 0), ("DEGRADED", 0), ("DRAINING", 1), ("DRAINED", 1)])
def test_prolog_refuses_a_node_whose_daemon_is_ending_but_not_for_another_jobs_disk(
    daemon: DaemonProgram, state: str, status: int
) -> None:
    stand_in = daemon.folder / "ckptctl"
    stand_in.write_text(f"#!/bin/bash\necho 'ckptd 0.1.0, {state} for 3 s, 0 sessions'\necho 'DRAINING is a tag'\n")
    stand_in.chmod(0o755)
    path = f"{daemon.folder}:{os.environ['PATH']}"
    done = subprocess.run([str(FOLDER / "prolog.sh")], env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == status
    assert (f"is ending or drained: ckptd 0.1.0, {state}" in done.stderr) == bool(status)


def test_epilog_waits_for_a_save_in_flight_and_no_longer_than_it_may(daemon: DaemonProgram) -> None:
    user = "root" if os.geteuid() == 0 else ""
    with ckptd.connect(daemon.endpoint) as client:
        client.run(str(daemon.folder / "ckpts")).save("s1", files={"a": b"1"}).wait("committed", timeout=60)
        begun = time.monotonic()
        assert run("epilog.sh", daemon, SLURM_JOB_USER=user).stderr == ""
        assert time.monotonic() - begun < 30, "nothing is in flight"
        part = client.run(str(daemon.folder / "ckpts")).begin("s2")
        done = run("epilog.sh", daemon, SLURM_JOB_USER=user, CKPTD_EPILOG_SECONDS="2")
        assert done.returncode == 0 and "did not end; see ckptctl history" in done.stderr
        waiting = subprocess.Popen([str(FOLDER / "epilog.sh")], env=environment(daemon, SLURM_JOB_USER=user))
        part.add("a", b"1")
        part.seal().wait("committed", timeout=60)
        assert waiting.wait(TIMEOUT) == 0
    daemon.end()
    assert run("epilog.sh", daemon, SLURM_JOB_USER=user).returncode == 0, "a failed epilog would drain the node"


TRAINER = """
import signal, sys, time, ckptd
run = ckptd.connect().run(sys.argv[1])
over = []
signal.signal(signal.SIGUSR1, lambda *_: over.append(1))
with run.resume() as last:
    step = last.step if last else 0
print("began at", step, flush=True)
while not over:
    time.sleep(0.01)
run.save(f"step_{step + 1}", step=step + 1, files={"a": b"1"}).wait("committed", timeout=60)
"""


def stand_ins(folder: pathlib.Path) -> str:
    """Slurm's programs, as far as the script uses them: srun runs the command, scontrol notes what it was told."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "srun").write_text('#!/bin/bash\nexec "$@"\n')
    (programs / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {folder}/told\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    return str(programs)


def test_job_that_runs_out_of_time_saves_is_queued_again_and_resumes(daemon: DaemonProgram) -> None:
    folder = daemon.folder
    (folder / "train.py").write_text(TRAINER)
    env: dict[str, Any] = environment(daemon, SLURM_JOB_ID="42")
    env["PATH"] = f"{stand_ins(folder)}:{env['PATH']}"
    command = [str(FOLDER / "job.sh"), sys.executable, str(folder / "train.py"), str(folder / "ckpts")]
    for start in (0, 1):
        out = folder / f"out{start}"
        with open(out, "wb") as file:
            job = subprocess.Popen(command, env=env, stdout=file, stderr=file)
        until(lambda: f"began at {start}" in out.read_text(), "the trainer's start")
        job.send_signal(signal.SIGUSR1)
        assert job.wait(TIMEOUT) == 0, out.read_text()
        assert "asking the trainer to save" in out.read_text()
    assert (folder / "told").read_text() == "requeue 42\n" * 2
    assert [each.tag for each in ckptd.open_root(str(folder / "ckpts")).list()] == ["step_2", "step_1"]


def test_job_that_fails_ends_with_the_status_of_its_trainer(daemon: DaemonProgram) -> None:
    env = environment(daemon, SLURM_JOB_ID="42")
    env["PATH"] = f"{stand_ins(daemon.folder)}:{env['PATH']}"
    done = subprocess.run([str(FOLDER / "job.sh"), "sh", "-c", "exit 7"], env=env, timeout=TIMEOUT)
    assert done.returncode == 7
    assert not (daemon.folder / "told").exists()
