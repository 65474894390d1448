"""Tests that need a GPU: each skips itself where torch finds none. They run with `pytest tests/cuda`."""

from __future__ import annotations

import os
import pathlib
from typing import Iterator

import ckptd
import pytest
import torch
from harness.local_daemon import Daemon


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    torch.manual_seed(1)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    made = Daemon(str(tmp_path_factory.mktemp("d")), pool_bytes=2 << 30)
    yield made
    made.close()


@pytest.fixture()
def run(daemon: Daemon, tmp_path: pathlib.Path) -> Iterator[ckptd.Run]:
    os.mkdir(tmp_path / "root")
    with ckptd.connect(daemon.endpoint) as client:
        yield client.run(tmp_path / "root", rank=0, world_size=1)
