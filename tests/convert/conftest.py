"""Fixtures that run the converter."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any, Callable

import pytest
from converter import convert_command

Convert = Callable[..., Any]


@pytest.fixture
def run() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    def convert(tag: pathlib.Path, out: pathlib.Path, *options: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(convert_command(tag, out, *options), capture_output=True, text=True, timeout=120)

    return convert


@pytest.fixture
def convert(run: Convert) -> Convert:
    """Converts, and returns the parsed JSON answer."""

    def convert(tag: pathlib.Path, out: pathlib.Path, *options: str) -> Any:
        done = run(tag, out, *options, "--output=json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return convert


@pytest.fixture
def refused(run: Convert, tmp_path: pathlib.Path) -> Convert:
    """Expects a refusal and returns its one line on stderr. Checks that nothing was written or changed."""

    def refused(status: int, tag: pathlib.Path, out: pathlib.Path, *options: str) -> str:
        before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
        done = run(tag, out, *options)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
        assert done.stderr.count("\n") == 1, done.stderr
        return str(done.stderr)

    return refused
