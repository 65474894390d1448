"""Fixtures: a folder on a disk, whose path is short enough for sockets."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    path = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-fire-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks that are threads of this process are of one launch."""
    monkeypatch.setenv("CKPTD_LAUNCH_ID", "fire")
