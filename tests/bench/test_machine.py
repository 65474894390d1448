"""Where the benchmarks find the programs that they measure."""

from __future__ import annotations

import pathlib

import pytest

from bench.base import machine


def test_programs_are_beside_the_one_that_is_named_and_a_folder_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path / "build"):
        folder.mkdir(exist_ok=True)
        for name in ("ckptd", "ckptctl"):
            (folder / name).touch(mode=0o755)
    monkeypatch.setenv("CKPTD_BIN", str(tmp_path / "build/ckptd"))
    assert machine.program("ckptctl") == str(tmp_path / "build/ckptctl")
    monkeypatch.setenv("CKPTD_BIN", str(tmp_path / "build"))
    with pytest.raises(SystemExit, match=f"CKPTD_BIN is a folder, {tmp_path}/build: set it to the path of the program"):
        machine.program("ckptctl")
