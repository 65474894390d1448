"""ckptd.nxd with a bucket as the root: NxD's names and values, beside what NxD itself has written there."""

from __future__ import annotations

import io
import logging
import os
import pathlib
import sys
import types
from typing import Any, Dict, Iterator, List, Tuple

import ckptd
import nxd_job
import pytest
import torch
from bucket_root_job import BucketRootJob
from bucket_servers import BUCKET, BucketServer, with_moto
from ckptd import nxd
from ckptd._roots.bucket import store
from ckptd.nxd import Topology, checkpointing
from harness.waiting import TIMEOUT, until
from nxd_trees import read_as_torch_xla, torch_save, xser_as_torch_xla

ALONE = Topology(rank=0, world_size=1)
NAME = "dp_rank_00_tp_rank_00_pp_rank_00.pt"
PLAIN = ["checkpoint", "done", f"model/{NAME}", f"optim/{NAME}", "scheduler.pt", "user_content.pt"]
OURS = [".ckptd/manifest", ".ckptd/part-00000"]


class NxdJob(BucketRootJob):
    """A job of one rank that saves by ckptd.nxd into the bucket."""

    def configure(self, **options: Any) -> None:
        self.start()
        nxd.configure(endpoint=self.daemon.endpoint, topology=ALONE, timeout=TIMEOUT, **options)

    def save(self, step: int, **options: Any) -> None:
        nxd_job.save(nxd, self.url, step, ALONE, True, **options)

    def wrong(self, step: int, tag: Any = None) -> List[str]:
        """How the checkpoint that load_checkpoint() finds differs from that of a step."""
        return list(nxd_job.loaded_wrong(nxd, self.url, step, ALONE, True, tag))

    def files(self, tag: str) -> List[str]:
        return sorted(key[len(tag) + 1 :] for key in self.keys() if key.startswith(f"{tag}/"))

    def put(self, name: str, data: bytes) -> None:
        self.server.client().put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=data)

    def put_tree(self, folder: pathlib.Path, tag: str, done: bool = True) -> None:
        """Puts a tag as NxD does: `checkpoint` first, and `done` last."""
        self.put(f"{tag}/checkpoint", b"1")
        for path in sorted((folder / tag).rglob("*.pt")):
            self.put(str(path.relative_to(folder)), path.read_bytes())
        if done:
            self.put(f"{tag}/done", b"1")

    def get_tree(self, folder: pathlib.Path, tag: str) -> pathlib.Path:
        """Gets what NxD's code reads of a tag."""
        for name in self.files(tag):
            if not name.startswith(".ckptd/"):
                (folder / tag / name).parent.mkdir(parents=True, exist_ok=True)
                key = f"{self.prefix}/{tag}/{name}"
                (folder / tag / name).write_bytes(self.server.client().get_object(Bucket=BUCKET, Key=key)["Body"].read())
        return folder / tag

    def finished(self) -> List[str]:
        """The finished tags, oldest first, as NxD's own code finds them."""
        client = self.server.client()
        found: List[Tuple[Any, str]] = []
        top = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.prefix}/", Delimiter="/")
        for folder in top.get("CommonPrefixes", []):
            here = client.list_objects_v2(Bucket=BUCKET, Prefix=folder["Prefix"], Delimiter="/")
            for each in here.get("Contents", []):
                if each["Key"] == folder["Prefix"] + "done":
                    found.append((each["LastModified"], folder["Prefix"].split("/")[-2]))
        return [tag for _, tag in sorted(found)]

    def next_launch(self, launch: Any) -> None:
        """The node is lost, and the job begins on another one."""
        nxd.configure()
        self.next_node()
        launch()
        self.configure()


@pytest.fixture
def job(
    server: BucketServer, tmp_path: pathlib.Path, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NxdJob]:
    (tmp_path / "node").mkdir()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    made = NxdJob(tmp_path / "node", server)
    made.configure()
    yield made
    nxd.configure()
    made.close()


def nxd_wrote(job: NxdJob, folder: pathlib.Path, tag: str, step: int, xser: bool, done: bool = True) -> None:
    """NxD itself saves the state of a step."""
    model = nxd_job.Model(step, ALONE)
    optimizer = nxd_job.NeuronZero1Optimizer(model, step, ALONE)
    for part, state in (("model", dict(model.state_dict())), ("optim", optimizer.state_dict())):
        if xser:
            xser_as_torch_xla(folder / tag, f"{part}/{NAME}", state)
        else:
            torch_save(folder, f"{tag}/{part}/{NAME}", state)
    torch_save(folder, f"{tag}/scheduler.pt", nxd_job.Scheduler(step).state)
    torch_save(folder, f"{tag}/user_content.pt", {"step": step, "seen": [step]})
    job.put_tree(folder, tag, done)


def test_next_node_loads_every_bit_and_the_files_are_those_of_nxd(job: NxdJob, launch: Any, tmp_path: pathlib.Path) -> None:
    check_job_that_loses_its_node(job, launch, tmp_path, use_xser=False)


@with_moto  # It has many small files, for which Swift takes long.
def test_next_node_loads_every_bit_of_a_file_for_each_tensor(job: NxdJob, launch: Any, tmp_path: pathlib.Path) -> None:
    check_job_that_loses_its_node(job, launch, tmp_path, use_xser=True)


def check_job_that_loses_its_node(job: NxdJob, launch: Any, tmp_path: pathlib.Path, use_xser: bool) -> None:
    assert not nxd.has_checkpoint(job.url)
    job.save(1, use_xser=use_xser)
    job.save(2, use_xser=use_xser, async_save=True)
    nxd.finalize_checkpoint()
    assert job.wrong(2) == [] and job.wrong(1, "step_1") == []
    files = job.files("step_2")
    if use_xser:
        assert [name for name in files if "tensors/" not in name] == sorted(
            [*OURS, *PLAIN, f"model/{NAME}.info.pt", f"optim/{NAME}.info.pt"]
        )
    else:
        assert files == sorted([*OURS, *PLAIN])
    assert job.finished() == ["step_1", "step_2"]
    theirs = job.get_tree(tmp_path, "step_2")
    expected = dict(nxd_job.Model(2, ALONE).state_dict())
    read = read_as_torch_xla(theirs, f"model/{NAME}") if use_xser else torch.load(theirs / f"model/{NAME}")
    assert nxd_job.differences(read, expected) == []

    job.next_launch(launch)
    assert nxd.has_checkpoint(f"{job.url}/")
    assert job.wrong(1, "step_1") == [], "by its tag, before this launch has resumed"
    assert job.wrong(2) == []
    job.save(3)
    assert job.wrong(3) == []


def test_retention_leaves_the_newest_and_tags_of_nxd(job: NxdJob, tmp_path: pathlib.Path) -> None:
    nxd_wrote(job, tmp_path, "theirs", 9, xser=False)
    for step in (1, 2, 3):
        job.save(step, num_kept_ckpts=2)
    until(lambda: job.files("step_1") == [], "the removal")
    assert job.finished() == ["theirs", "step_2", "step_3"]
    assert job.wrong(9, "theirs") == []


@with_moto
def test_tag_that_has_a_checkpoint_is_refused_until_it_is_deleted(job: NxdJob, tmp_path: pathlib.Path) -> None:
    job.save(1)
    for asynchronous in (False, True):
        with pytest.raises(ckptd.CkptdError, match="step_1") as taken:
            job.save(1, async_save=asynchronous)
            nxd.finalize_checkpoint()
        assert taken.value.reason == "TAG_TAKEN"
    nxd_wrote(job, tmp_path, "theirs", 1, xser=False)
    with pytest.raises(ckptd.CkptdError, match="theirs") as foreign:
        nxd.save_checkpoint(job.url, "theirs", model={"a": torch.ones(1)})
    assert foreign.value.reason == "TAG_FOREIGN"
    job.save(2)
    job.tool("delete", f"{job.url}/step_1")
    job.save(1)
    assert job.wrong(1) == []


def test_what_nxd_has_written_is_loaded_by_its_tag_and_as_the_latest(
    job: NxdJob, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_what_nxd_has_written(job, tmp_path, False, caplog)


@with_moto
def test_what_nxd_has_written_with_a_file_for_each_tensor_is_loaded(
    job: NxdJob, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_what_nxd_has_written(job, tmp_path, True, caplog)


def check_what_nxd_has_written(job: NxdJob, tmp_path: pathlib.Path, xser: bool, caplog: pytest.LogCaptureFixture) -> None:
    nxd_wrote(job, tmp_path, "step_1", 1, xser)
    nxd_wrote(job, tmp_path, "step 2", 2, xser)
    nxd_wrote(job, tmp_path, "zz_begun", 3, xser, done=False)
    nxd_wrote(job, tmp_path, "zz_pretrained", 4, xser, done=False)
    job.server.client().delete_object(Bucket=BUCKET, Key=f"{job.prefix}/zz_pretrained/checkpoint")
    # moto and Swift have the times of whole seconds; equal ones are in the order of names.
    job.put("step_1/done", b"1")
    assert nxd.has_checkpoint(job.url)
    assert job.wrong(1) == []
    assert "is not a checkpoint of ckptd and has no checksums" in caplog.text
    assert job.wrong(2, "step 2") == [] and job.wrong(4, "zz_pretrained") == []
    with pytest.raises(nxd.NoTag, match="it has no `done`"):
        job.wrong(3, "zz_begun")
    with pytest.raises(nxd.NoTag, match="nowhere"):
        job.wrong(3, "nowhere")
    assert not [key for key in job.keys() if ".ckptd" in key], "a load without a checkpoint of ckptd writes nothing"


def test_newest_of_ckptd_counts_beside_those_of_nxd_and_a_newer_one_is_named(
    job: NxdJob, tmp_path: pathlib.Path, launch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nxd_wrote(job, tmp_path, "theirs_1", 1, xser=False)
    job.save(2)
    job.next_launch(launch)
    until(lambda: (nxd_wrote(job, tmp_path, "theirs_3", 3, xser=False), is_later(job))[1], "the next second")
    with caplog.at_level(logging.WARNING):
        assert job.wrong(2) == []
    assert "NxD has written theirs_3" in caplog.text
    assert job.wrong(1, "theirs_1") == [] and job.wrong(3, "theirs_3") == []
    assert "OK" in job.tool("verify", job.url)


def is_later(job: NxdJob) -> bool:
    listed = job.server.client().list_objects_v2(Bucket=BUCKET, Prefix=f"{job.prefix}/")["Contents"]
    times = {found["Key"][len(job.prefix) + 1 :]: found["LastModified"] for found in listed}
    return bool(times["theirs_3/done"] > times["step_2/.ckptd/manifest"])


@with_moto
def test_what_is_under_way_or_has_lost_its_manifest_is_no_checkpoint_of_nxd(job: NxdJob) -> None:
    job.save(1)
    for name in ("done", "checkpoint", f"model/{NAME}", ".ckptd/manifest.new"):
        job.put(f"under_way/{name}", b"1")
    assert job.wrong(1) == []
    with pytest.raises(nxd.NoTag, match="under_way.*it has no manifest"):
        job.wrong(1, "under_way")
    job.put("given_up/.ckptd/manifest", b"")
    with pytest.raises(nxd.NoTag, match="given_up"):
        job.wrong(1, "given_up")
    job.server.client().delete_object(Bucket=BUCKET, Key=f"{job.prefix}/step_1/.ckptd/manifest")
    with pytest.raises(nxd.NoTag, match="step_1.*the removal of one, has not ended"):
        job.wrong(1, "step_1")


@with_moto
def test_object_that_is_replaced_while_it_is_read_is_an_error(job: NxdJob, tmp_path: pathlib.Path) -> None:
    nxd_wrote(job, tmp_path, "theirs", 1, xser=False)
    source = nxd._sources.Foreign(job.url, "theirs")
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(1)}, buffer)
    job.put(f"theirs/model/{NAME}", buffer.getvalue())
    with pytest.raises(ckptd.Refused, match="Precondition"):
        source.load(f"model/{NAME}", nxd._sources.Classes())
    assert source.load(f"optim/{NAME}", nxd._sources.Classes())["state"] == {}


@with_moto
def test_older_functions_save_and_load(job: NxdJob, launch: Any, tmp_path: pathlib.Path) -> None:
    state = {"model": {"w": torch.arange(6.0)}, "step": 7}
    for xser in (False, True):
        checkpointing.save(state, f"{job.url}/step_{int(xser)}", save_xser=xser)
    assert job.files("step_0") == sorted([*OURS, "tp_rank_00_pp_rank_00/checkpoint.pt"])
    torch_save(tmp_path, "theirs/tp_rank_00_pp_rank_00/checkpoint.pt", state)
    job.put("theirs/tp_rank_00_pp_rank_00/checkpoint.pt", (tmp_path / "theirs/tp_rank_00_pp_rank_00/checkpoint.pt").read_bytes())
    job.next_launch(launch)
    for tag, xser in (("step_0", False), ("step_1", True), ("theirs", False)):
        assert nxd_job.differences(checkpointing.load(f"{job.url}/{tag}", load_xser=xser), state) == []
    with pytest.raises(nxd.NoTag, match=f"{job.url}/nowhere"):
        checkpointing.load(f"{job.url}/nowhere")


@with_moto
def test_options_that_a_bucket_has_not_are_refused_with_the_way_out(job: NxdJob) -> None:
    for options, words in (({"upload": ckptd.Upload(f"s3://{BUCKET}/x")}, "upload= was given"), ({"share_unchanged": True}, "share_unchanged")):
        job.configure(**options)
        for call in (
            lambda: nxd.save_checkpoint(job.url, "t", model={"a": torch.ones(1)}),
            lambda: nxd.load_checkpoint(job.url, tag="t", model={}) if "upload" in words else job.save(1),
        ):
            with pytest.raises(ckptd.Refused, match=f"{job.url}.*{words}"):
                call()
    assert job.keys() == []


@with_moto
def test_server_that_is_away_is_named_within_the_time_limit(job: NxdJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.save(1)
    monkeypatch.setattr(store, "_LIMIT_SECONDS", 1.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    nxd._sources.root_paths._bucket.cache_clear()
    for call in (lambda: nxd.has_checkpoint(job.url), lambda: job.wrong(1), lambda: job.wrong(1, "step_1")):
        with pytest.raises(ckptd.Unavailable, match=f"s3://{BUCKET}/{job.prefix}") as away:
            call()
        assert away.value.reason == "STORE_TIMEOUT"


@pytest.fixture
def neuronx_distributed(monkeypatch: pytest.MonkeyPatch) -> Dict[str, Any]:
    """Fakes of NxD's modules, whose functions must not be called."""
    made: Dict[str, Any] = {}
    for name, functions in (
        ("neuronx_distributed", ()),
        ("neuronx_distributed.trainer", ()),
        ("neuronx_distributed.trainer.checkpoint", ("save_checkpoint", "load_checkpoint", "has_checkpoint")),
        ("neuronx_distributed.parallel_layers", ()),
        ("neuronx_distributed.parallel_layers.checkpointing", ("save", "load")),
    ):
        made[name] = types.ModuleType(name)
        for function in functions:
            setattr(made[name], function, lambda *_, **__: pytest.fail("NxD's own code was called"))
        monkeypatch.setitem(sys.modules, name, made[name])
    return made


@with_moto
def test_installed_functions_take_the_bucket(job: NxdJob, neuronx_distributed: Dict[str, Any]) -> None:
    nxd.install()
    try:
        theirs = neuronx_distributed["neuronx_distributed.trainer.checkpoint"]
        theirs.save_checkpoint(job.url, "step_1", model={"a": torch.arange(3)})
        assert theirs.has_checkpoint(job.url)
        loaded = {"a": torch.zeros(3, dtype=torch.int64)}
        theirs.load_checkpoint(job.url, model=loaded)
        assert torch.equal(loaded["a"], torch.arange(3))
        older = neuronx_distributed["neuronx_distributed.parallel_layers.checkpointing"]
        older.save({"model": loaded}, os.path.join(job.url, "step_2"))
        assert torch.equal(older.load(os.path.join(job.url, "step_2"))["model"]["a"], torch.arange(3))
    finally:
        nxd.uninstall()
