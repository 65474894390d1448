"""ckptd.dcp with a bucket as the root: save, async_save, load, latest() and install()."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any, Dict, Iterator, List

import ckptd
import ckptd.dcp
import pytest
import torch
import torch.distributed.checkpoint as dcp
from bucket_root_job import BucketRootJob
from bucket_servers import BUCKET, BucketServer, with_moto
from ckptd._adapters import root_paths
from ckptd._roots.bucket import store
from ckptd.dcp import Reader, Writer
from harness.waiting import TIMEOUT, until
from torch.distributed.checkpoint.api import CheckpointException

FILES = [".ckptd/manifest", ".ckptd/part-00000", ".metadata", "__0_0.distcp"]


class DcpJob(BucketRootJob):
    """A job of one rank that saves by ckptd.dcp into the bucket."""

    def configure(self, **options: Any) -> None:
        self.start()
        ckptd.dcp.configure(endpoint=self.daemon.endpoint, timeout=TIMEOUT, **options)

    def path(self, step: int) -> str:
        return f"{self.url}/step-{step}"

    def files(self, tag: str) -> List[str]:
        return sorted(key[len(tag) + 1 :] for key in self.keys() if key.startswith(f"{tag}/"))

    def next_launch(self, launch: Any) -> None:
        """The node is lost, and the job begins on another one."""
        ckptd.dcp.configure()
        self.next_node()
        launch()
        self.configure()


def state(step: int) -> Dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    weights = torch.randn(300, 70, generator=generator)
    weights[0, 0], weights[0, 1] = -0.0, float("nan")
    return {"w": weights, "b": torch.arange(9.0) * step, "step": step}


def is_loaded(step: int, **how: Any) -> bool:
    """Whether dcp.load() gives every bit of a step's state."""
    into = {"w": torch.zeros(300, 70), "b": torch.zeros(9), "step": 0}
    dcp.load(into, **how)
    found, wanted = into["w"].view(torch.int32), state(step)["w"].view(torch.int32)
    return torch.equal(found, wanted) and torch.equal(into["b"], state(step)["b"]) and into["step"] == step


def cause_of(caught: Any) -> Any:
    """The error of rank 0 in DCP's exception."""
    return caught.value.failures[0][0]


@pytest.fixture
def job(
    server: BucketServer, tmp_path: pathlib.Path, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DcpJob]:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    made = DcpJob(tmp_path, server)
    made.configure()
    yield made
    ckptd.dcp.uninstall()
    ckptd.dcp.configure()
    made.close()


def test_next_node_loads_every_bit_of_the_newest(job: DcpJob, launch: Any) -> None:
    assert ckptd.dcp.latest(job.url) is None and ckptd.dcp.list(job.url) == []
    metadata = dcp.save(state(1), storage_writer=Writer(job.path(1)))
    assert set(metadata.state_dict_metadata) == {"w", "b", "step"}
    saving = ckptd.dcp.async_save(state(2), checkpoint_id=job.path(2), storage_writer=Writer(job.path(1)))
    assert is_loaded(2, storage_reader=Reader(job.path(2))), "it waits for the save that is in flight"
    assert set(saving.result(TIMEOUT).state_dict_metadata) == {"w", "b", "step"}
    assert job.files("step-2") == FILES
    assert ckptd.dcp.latest(f"{job.url}/") == job.path(2)
    job.next_launch(launch)
    assert ckptd.dcp.latest(job.url) == job.path(2)
    assert [info.tag for info in ckptd.dcp.list(job.url)] == ["step-2", "step-1"]
    for step in (1, 2):
        assert is_loaded(step, checkpoint_id=job.path(step), storage_reader=Reader(job.url + "/other"))
    assert [key for key in job.keys() if key.startswith(".ckptd/terms/")] == job_terms(job), "reading takes no root"
    dcp.save(state(3), storage_writer=Writer(job.path(3), num_kept_ckpts=2))
    assert ckptd.dcp.latest(job.url) == job.path(3) and is_loaded(3, storage_reader=Reader(job.path(3)))
    until(lambda: job.files("step-1") == [], "retention")
    assert "OK" in job.tool("verify", job.url)


def job_terms(job: DcpJob) -> List[str]:
    """The term of the only launch that has saved."""
    terms = [key for key in job.keys() if key.startswith(".ckptd/terms/")]
    assert len(terms) == 1
    return terms


def test_installed_functions_take_the_url(job: DcpJob, launch: Any) -> None:
    ckptd.dcp.install(num_kept_ckpts=5)
    for step in (1, 2):
        dcp.save(state(step), checkpoint_id=job.path(step))
    dcp.async_save(state(3), checkpoint_id=job.path(3)).result(TIMEOUT)
    assert job.files("step-3") == FILES
    job.next_launch(launch)
    assert all(is_loaded(step, checkpoint_id=job.path(step)) for step in (1, 2, 3))


@with_moto
def test_tag_that_has_a_checkpoint_is_refused_until_it_is_deleted(job: DcpJob) -> None:
    for step in (1, 2):
        dcp.save(state(step), storage_writer=Writer(job.path(step)))
    for options in ({}, {"overwrite": True}):
        with pytest.raises(CheckpointException, match="step-1 is taken by a checkpoint.*: delete that first") as taken:
            dcp.save(state(1), storage_writer=Writer(job.path(1), **options))  # type: ignore[arg-type]
        assert cause_of(taken).reason == "TAG_TAKEN"
    with pytest.raises((CheckpointException, RuntimeError), match="already exists"):
        dcp.save(state(1), storage_writer=Writer(job.path(1), overwrite=False))
    failed = ckptd.dcp.async_save(state(1), checkpoint_id=job.path(1), storage_writer=Writer(job.path(1)))
    assert "TAG_TAKEN" in str(failed.exception(TIMEOUT)) or failed.exception(TIMEOUT).reason == "TAG_TAKEN"
    job.tool("delete", job.path(1))
    dcp.save(state(4), storage_writer=Writer(job.path(1)))
    assert is_loaded(4, storage_reader=Reader(job.path(1)))


@with_moto
def test_what_dcp_itself_has_put_there_is_not_replaced_and_left_to_its_reader(job: DcpJob) -> None:
    for name in (".metadata", "__0_0.distcp"):
        job.server.client().put_object(Bucket=BUCKET, Key=f"{job.prefix}/theirs/{name}", Body=b"1")
    dcp.save(state(1), storage_writer=Writer(job.path(1)))
    assert ckptd.dcp.latest(job.url) == job.path(1)
    with pytest.raises(CheckpointException, match="theirs") as foreign:
        dcp.save(state(1), storage_writer=Writer(f"{job.url}/theirs", overwrite=True))
    assert cause_of(foreign).reason == "TAG_FOREIGN"
    with pytest.raises(CheckpointException) as caught:
        is_loaded(1, storage_reader=Reader(f"{job.url}/theirs"))
    error = cause_of(caught)
    assert isinstance(error, ckptd.NotFound) and "FsspecReader" in str(error)
    ckptd.dcp.install()
    setup = ckptd.dcp._install._set_up
    assert isinstance(setup(None, job.path(1), reader=True), Reader)
    assert not ckptd.dcp._install._is_of_dcp_in_bucket(job.path(9))
    assert ckptd.dcp._install._is_of_dcp_in_bucket(f"{job.url}/theirs")


@with_moto
def test_names_and_options_that_a_bucket_has_not_are_refused_with_the_way_out(job: DcpJob) -> None:
    for url, words in (
        ("s3://Bucket/run/step-1", '"Bucket" in s3://Bucket/run/step-1 is no name of a bucket'),
        (f"s3://{BUCKET}", "names no checkpoint"),
        (f"s3://{BUCKET}/a//b", "an empty name"),
        ("gs://bucket/run/step-1", "gs://bucket/run/step-1"),
    ):
        for make in (Writer, Reader):
            with pytest.raises(ckptd.Refused, match=words):
                make(url)
    for options, words in (
        ({"upload": ckptd.Upload(f"s3://{BUCKET}/x")}, "upload= was given"),
        ({"share_unchanged": True}, "share_unchanged"),
    ):
        job.configure(**options)
        with pytest.raises((ckptd.Refused, CheckpointException), match=f"{job.url}.*{words}"):
            dcp.save(state(1), storage_writer=Writer(job.path(1)))
    with pytest.raises(ckptd.Refused, match="upload= was given"):
        job.configure(upload=ckptd.Upload(f"s3://{BUCKET}/x"))
        ckptd.dcp.latest(job.url)
    assert job.keys() == []


@with_moto
def test_server_that_is_away_is_named_within_the_time_limit(job: DcpJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LIMIT_SECONDS", 1.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    root_paths._bucket.cache_clear()
    with pytest.raises(ckptd.Unavailable, match=job.url) as away:
        ckptd.dcp.latest(job.url)
    assert away.value.reason == "STORE_TIMEOUT"
    with pytest.raises(CheckpointException) as caught:
        is_loaded(1, storage_reader=Reader(job.path(1)))
    error = cause_of(caught)
    assert isinstance(error, ckptd.Unavailable) and job.url in str(error)


@with_moto
def test_safetensors_files_are_saved_and_loaded(job: DcpJob, launch: Any) -> None:
    tensors = {"w": state(1)["w"], "b": state(1)["b"]}
    dcp.save(tensors, storage_writer=ckptd.dcp.HuggingFaceWriter(job.path(1), {"w": 1, "b": 1}, enable_consolidation=True))
    assert [name for name in job.files("step-1") if name.endswith("safetensors")]
    job.next_launch(launch)
    into = {name: torch.zeros_like(value) for name, value in tensors.items()}
    dcp.load(into, storage_reader=Reader(job.path(1)))
    assert all(torch.equal(into[name].view(torch.int32), value.view(torch.int32)) for name, value in tensors.items())


@with_moto
def test_urls_of_ckptd_are_of_directories_alone(job: DcpJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.listdir(tmp_path)
    with pytest.raises((ckptd.Refused, CheckpointException), match="must be a directory here"):
        dcp.save(state(1), checkpoint_id=f"ckptd://{job.path(1)}")
    assert os.listdir(tmp_path) == before


LOAD = """
import sys, torch, torch.distributed.checkpoint as dcp, ckptd.dcp
state = {"b": torch.zeros(9)}
path = ckptd.dcp.latest(sys.argv[1])
dcp.load(state, storage_reader=ckptd.dcp.Reader(path))
print(path, float(state["b"].sum()))
"""


@with_moto
def test_process_beside_the_job_reads_without_taking_the_root(job: DcpJob, monkeypatch: pytest.MonkeyPatch) -> None:
    dcp.save(state(1), storage_writer=Writer(job.path(1)))
    monkeypatch.setenv("CKPTD_ENDPOINT", job.daemon.endpoint)
    monkeypatch.setenv("CKPTD_JOB_ID", "another one")
    done = subprocess.run([sys.executable, "-c", LOAD, job.url], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.stdout == f"{job.path(1)} 36.0\n", done.stderr
    dcp.save(state(2), storage_writer=Writer(job.path(2)))
    assert len([key for key in job.keys() if key.startswith(".ckptd/terms/")]) == 1


LATEST = """
import sys, ckptd.dcp
print("asks", flush=True)
print(ckptd.dcp.latest(sys.argv[1]))
"""


@with_moto
def test_latest_waits_for_what_an_earlier_launch_had_sealed_on_this_node(job: DcpJob, monkeypatch: pytest.MonkeyPatch) -> None:
    dcp.save(state(1), storage_writer=Writer(job.path(1)))
    job.proxy.stop_after(10_000)
    ckptd.dcp.async_save(state(2), checkpoint_id=job.path(2), storage_writer=Writer(job.path(2)))
    assert job.proxy.stopped.wait(TIMEOUT), "nothing was sent"
    monkeypatch.setenv("CKPTD_ENDPOINT", job.daemon.endpoint)
    monkeypatch.setenv("CKPTD_LAUNCH_ID", "the next one")
    asking = subprocess.Popen([sys.executable, "-c", LATEST, job.url], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None and asking.stdout.readline() == "asks\n"
    job.proxy.close_server()  # The connection that hangs ends.
    job.proxy.open_server()
    assert asking.communicate(timeout=TIMEOUT)[0] == f"{job.path(2)}\n"
