"""A setting that a run changes is restored when the run ends, also when it is killed."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from typing import Iterator

import pytest

from bench.base import machine, settings
from bench.base.leftovers import Leftovers

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Iterator[Leftovers]:
    with Leftovers(tmp_path / "disk") as made:
        yield made


def test_setting_is_changed_within_the_block_and_not_touched_if_it_has_the_value(
    tmp_path: pathlib.Path, run: Leftovers
) -> None:
    setting = tmp_path / "setting"
    setting.write_text("always [never] advise")
    with settings.changed(setting, "advise", run):
        assert setting.read_text() == "advise"
    assert setting.read_text() == "never"
    setting.chmod(0o400)
    with settings.changed(setting, "never", run):
        assert setting.read_text() == "never"


def test_setting_that_the_kernel_does_not_take_ends_the_run(tmp_path: pathlib.Path, run: Leftovers) -> None:
    with pytest.raises(SystemExit, match="cannot be set to 'advise': "):
        with settings.changed(tmp_path / "no folder" / "setting", "advise", run):
            pass


def test_setting_that_another_program_has_changed_is_left_alone(tmp_path: pathlib.Path, run: Leftovers) -> None:
    setting = tmp_path / "setting"
    setting.write_text("before")
    with settings.changed(setting, "ours", run):
        setting.write_text("theirs")
    assert setting.read_text() == "theirs"


def test_setting_is_restored_when_the_run_is_killed_with_its_process_group(tmp_path: pathlib.Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("before")
    program = (
        "import pathlib, sys, time; from bench.base import leftovers, settings\n"
        "setting = pathlib.Path(sys.argv[1])\n"
        "with leftovers.Leftovers(setting.parent / 'disk') as run, settings.changed(setting, 'ours', run):\n"
        "    print('changed', flush=True); time.sleep(60)"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", program, str(setting)], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )
    assert killed.stdout and killed.stdout.readline() == b"changed\n"
    assert setting.read_text() == "ours"
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    machine.wait_until(lambda: setting.read_text() == "before", "the setting to be restored", 30)
