"""DCP loads from a bucket through ckptd's Reader, without a daemon."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
from typing import Any, Dict

import ckptd
import ckptd.dcp
import pytest
import torch
import torch.distributed.checkpoint as dcp
from bucket_copies import MANIFEST, Copies
from bucket_servers import BucketServer, with_moto
from ckptd._roots.bucket import store
from ckptd.local_daemon import LocalDaemon, find_program
from torch.distributed.checkpoint.api import CheckpointException

SAVE = """
import sys, torch, torch.distributed.checkpoint as dcp, ckptd.dcp
path, endpoint = sys.argv[1:]
ckptd.dcp.configure(endpoint=endpoint)
torch.manual_seed(3)
dcp.save({"w": torch.randn(1000, 700), "b": torch.arange(9.0), "step": 4}, storage_writer=ckptd.dcp.Writer(path))
"""


def expected() -> Dict[str, Any]:
    torch.manual_seed(3)
    return {"w": torch.randn(1000, 700), "b": torch.arange(9.0), "step": 4}


def zeros() -> Dict[str, Any]:
    return {"w": torch.zeros(1000, 700), "b": torch.zeros(9), "step": 0}


@pytest.fixture
def copies(server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Copies:
    made = Copies(server, tmp_path, monkeypatch)
    with LocalDaemon(tmp_path / "daemon") as daemon:
        path = tmp_path / "root" / "step_4"
        command = [sys.executable, "-c", SAVE, str(path), daemon.endpoint]
        subprocess.run(command, check=True, timeout=200)
    subprocess.run([find_program("ckptctl"), "upload", str(path), made.url], env=server.environment(), check=True, timeout=120)
    return made


def error_of_load(url: str) -> BaseException:
    with pytest.raises(CheckpointException) as caught:
        dcp.load(zeros(), storage_reader=ckptd.dcp.Reader(url))
    error: BaseException = caught.value.failures[0][0]
    return error


def test_dcp_loads_what_was_saved_and_names_what_is_wrong(copies: Copies) -> None:
    url, state = f"{copies.url}/step_4", zeros()
    dcp.load(state, storage_reader=ckptd.dcp.Reader(url))
    assert torch.equal(state["w"], expected()["w"]) and torch.equal(state["b"], expected()["b"]) and state["step"] == 4
    state = zeros()
    dcp.load(state, checkpoint_id=f"{url}/", storage_reader=ckptd.dcp.Reader(copies.folder / "other"))
    assert torch.equal(state["w"], expected()["w"])

    with pytest.raises(ckptd.Refused, match="names no checkpoint"):
        ckptd.dcp.Reader("s3://bucket")
    missing = error_of_load(f"{copies.url}/step_5")
    assert isinstance(missing, ckptd.NotFound) and missing.reason == "NO_CHECKPOINT"
    with copies.root().open() as checkpoint:
        largest = max(checkpoint.files, key=lambda name: len(copies.get(f"step_4/{name}")))
    copies.flip(f"step_4/{largest}", 1_000_000)
    damage = error_of_load(url)
    assert isinstance(damage, ckptd.Corrupt) and damage.details["path"] == largest
    copies.delete(f"step_4/{MANIFEST}")
    assert isinstance(error_of_load(url), ckptd.NotFound)


@with_moto
def test_dcp_says_in_time_that_the_server_does_not_answer(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LIMIT_SECONDS", 1.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    begun = time.monotonic()
    error = error_of_load(f"{copies.url}/step_4")
    assert isinstance(error, ckptd.Unavailable) and error.reason == "STORE_TIMEOUT" and time.monotonic() - begun < 30
