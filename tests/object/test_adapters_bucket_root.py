"""Jobs of two ranks whose root is a prefix of a bucket, by each library: they go on after the node was lost."""

from __future__ import annotations

import pathlib
from typing import Any, Iterator

import ckptd
import pytest
from bucket_root_job import BucketRootJob
from bucket_servers import BucketServer, start_moto
from test_adapters_resume_from_bucket import LAST_SAVE, STEPS, WORLD_SIZE, launch as run_job

LIBRARIES = ["nxd", "dcp", "torchtnt"]


@pytest.fixture(scope="module")
def moto() -> Iterator[BucketServer]:
    yield from start_moto()


@pytest.fixture
def root(moto: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketRootJob]:
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    made = BucketRootJob(tmp_path, moto)
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_job_whose_node_was_lost_goes_on_with_the_same_values(root: BucketRootJob, library: str) -> None:
    def launch(job: str, begins: bool = False) -> Any:
        return run_job(root.daemon.endpoint, job, root.url, "", begins)

    first = launch(library, begins=True)
    assert [rank.get("begin", rank) for rank in first] == [0] * WORLD_SIZE
    newest = ckptd.open_root(root.url).latest()  # Some libraries save after the last step, too.
    assert newest is not None and newest.step in (LAST_SAVE, STEPS)
    root.next_node()
    root.start()
    second = launch(library)
    assert [rank.get("begin", rank) for rank in second] == [newest.step] * WORLD_SIZE
    assert [rank["values"] for rank in second] == [rank["values"] for rank in first]
    assert "OK" in root.tool("verify", root.url)
    again = launch(f"{library}_again")
    assert [rank.get("reason", rank) for rank in again] == ["TAG_TAKEN"] * WORLD_SIZE
