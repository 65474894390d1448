"""Jobs of two ranks whose root is a prefix of a bucket, by each library: they go on after the node was lost."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Iterator

import ckptd
import pytest
from adapter_jobs import SAVED
from bucket_root_job import BucketRootJob
from bucket_servers import BUCKET, BucketServer, start_moto
from test_adapters_resume_from_bucket import LAST_SAVE, STEPS, WORLD_SIZE, launch as run_job

# What lies beneath the newest tag, beside what is ckptd's own.
NAME = "tp_rank_00_pp_rank_00.pt"
OF_DCP = [".metadata", "__0_0.distcp", "__1_0.distcp"]
FILES = {
    "nxd": ["checkpoint", "done", f"model/dp_rank_00_{NAME}", f"optim/dp_rank_00_{NAME}", "user_content.pt"],
    "dcp": OF_DCP,
    "torchtnt": OF_DCP,
    "deepspeed": ["mp_rank_00_model_states.pt", *(f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(WORLD_SIZE))],
}


@pytest.fixture(scope="module")
def moto() -> Iterator[BucketServer]:
    yield from start_moto()


@pytest.fixture
def root(moto: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketRootJob]:
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # Of the ranks.
    made = BucketRootJob(tmp_path, moto)
    made.start()
    yield made
    made.close()
    left = [name for name in os.listdir(tmp_path / "tmp") if "ckptd" in name]
    assert not left, "nothing is left on the disk"


@pytest.mark.parametrize("library", FILES)
def test_job_whose_node_was_lost_goes_on_with_the_same_values(root: BucketRootJob, library: str) -> None:
    def launch(job: str, begins: bool = False) -> Any:
        return run_job(root.daemon.endpoint, job, root.url, "", begins)

    first = launch(library, begins=True)
    assert [rank.get("begin", rank) for rank in first] == [0] * WORLD_SIZE
    newest = ckptd.open_root(root.url).latest()  # Some libraries save after the last step, too.
    assert newest is not None and newest.step in (LAST_SAVE, STEPS)
    beneath = [key.partition("/")[2] for key in root.keys() if key.startswith(f"{newest.tag}/")]
    assert [name for name in beneath if not name.startswith(".ckptd/")] == FILES[library]
    assert {key.partition("/")[0] for key in root.keys()} == {".ckptd", *(info.tag for info in ckptd.open_root(root.url).list())}
    root.next_node()
    root.start()
    second = launch(library)
    assert [rank.get("begin", rank) for rank in second] == [newest.step] * WORLD_SIZE
    assert [rank["values"] for rank in second] == [rank["values"] for rank in first]
    assert "OK" in root.tool("verify", root.url)
    again = launch(f"{library}_again")
    assert [rank.get("reason", rank) for rank in again] == ["TAG_TAKEN"] * WORLD_SIZE


def test_deepspeed_loads_the_next_older_checkpoint_if_the_newest_is_damaged(root: BucketRootJob) -> None:
    first = run_job(root.daemon.endpoint, "deepspeed", root.url, "", begins=True)
    key = f"{root.prefix}/global_step{LAST_SAVE}/{FILES['deepspeed'][-1]}"
    client = root.server.client()
    size = client.head_object(Bucket=BUCKET, Key=key)["ContentLength"]
    client.put_object(Bucket=BUCKET, Key=key, Body=bytes(size))
    root.next_node()
    root.start()
    second = run_job(root.daemon.endpoint, "deepspeed", root.url, "")
    assert [rank.get("begin", rank) for rank in second] == [SAVED[0]] * WORLD_SIZE
    assert [rank["values"] for rank in second] == [rank["values"] for rank in first]
