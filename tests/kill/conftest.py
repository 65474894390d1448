"""Fixtures: a folder on a disk, and one launch for all ranks that are threads of the test."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from harness import temporary_folder


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with temporary_folder() as path:
        yield path


@pytest.fixture(autouse=True)
def one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are threads of this process belong to one launch."""
    monkeypatch.setenv("CKPTD_LAUNCH_ID", "kill")
