"""A setting that a run changes is restored when the run ends, also when it is killed."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from bench.base import machine, settings

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_setting_is_restored_after_the_block(tmp_path: pathlib.Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("ours")
    with settings.restored(setting, "ours", "before"):
        assert setting.read_text() == "ours"
    assert setting.read_text() == "before"


def test_setting_is_changed_within_the_block_and_not_touched_if_it_has_the_value(tmp_path: pathlib.Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("always [never] advise")
    with settings.changed(setting, "advise"):
        assert setting.read_text() == "advise"
    assert setting.read_text() == "never"
    setting.chmod(0o400)
    with settings.changed(setting, "never"):
        assert setting.read_text() == "never"


def test_setting_that_the_kernel_does_not_take_ends_the_run(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SystemExit, match="cannot be set to 'advise': "):
        with settings.changed(tmp_path / "no folder" / "setting", "advise"):
            pass


def test_setting_that_another_program_has_changed_is_left_alone(tmp_path: pathlib.Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("ours")
    with settings.restored(setting, "ours", "before"):
        setting.write_text("theirs")
    assert setting.read_text() == "theirs"


def test_setting_is_restored_when_the_run_is_killed_with_its_process_group(tmp_path: pathlib.Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("ours")
    program = (
        "import pathlib, sys, time; from bench.base import settings\n"
        "with settings.restored(pathlib.Path(sys.argv[1]), 'ours', 'before'): print('changed', flush=True); time.sleep(60)"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program, str(setting)], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )
    assert run.stdout and run.stdout.readline() == b"changed\n"
    assert setting.read_text() == "ours"
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    machine.wait_until(lambda: setting.read_text() == "before", "the setting to be restored", 30)
