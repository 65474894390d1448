"""A bucket as the root: parts go from the daemon's memory to the bucket, and a new node resumes from there."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import uuid
from typing import Any, Dict, List, Optional

import ckptd
import pytest
from bucket_root_job import BucketRootJob
from bucket_servers import BUCKET, BucketServer, with_moto
from ckptd.local_daemon import LocalDaemon
from harness.waiting import TIMEOUT, until
from upload_job import SIZE, save

pytestmark = pytest.mark.usefixtures("launch")


OTHER_JOB = """
import sys
import ckptd
run = ckptd.connect(sys.argv[1]).run(sys.argv[2], rank=0, world_size=1)
run.save("step_3", step=3, files={"data.bin": b"3"}).wait(timeout=60)
"""


def resumed(run: ckptd.Run, name: str = "data.bin") -> Optional[tuple[str, bytes]]:
    with run.resume(timeout=TIMEOUT) as checkpoint:
        return (checkpoint.tag, checkpoint.read(name)) if checkpoint else None


def test_run_saves_into_the_bucket_and_a_new_node_resumes_from_it(root: BucketRootJob, launch: Any) -> None:
    root.start()
    second = ckptd.connect(root.daemon.endpoint)
    saved: Dict[int, bytes] = {}

    def of(rank: int) -> ckptd.Run:
        client = root.client if rank == 0 else second
        assert client is not None
        return client.run(root.url, rank=rank, world_size=2, num_kept_ckpts=2)

    runs = [of(0), of(1)]
    for step in (1, 2, 3):
        saves = []
        for rank, run in enumerate(runs):
            saved[rank] = os.urandom(SIZE if rank == 0 else 1000)
            saves.append((run, {f"rank_{rank}.bin": saved[rank]}))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            begun = list(pool.map(lambda each: each[0].save(f"step_{step}", step=step, files=each[1]), saves))
        begun[0].wait("committed", timeout=TIMEOUT)
    newest = runs[0].latest()
    assert newest is not None and newest.tag == "step_3"
    until(lambda: root.uploaded() == {"step_2", "step_3"}, "retention")
    until(lambda: not [key for key in root.keys() if key.startswith("step_1/")], "the removal of its files")
    second.close()
    root.next_node()
    launch()
    root.start()
    second = ckptd.connect(root.daemon.endpoint)
    runs = [of(0), of(1)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(resumed, runs, ("rank_0.bin", "rank_1.bin")))
    assert found == [("step_3", saved[0]), ("step_3", saved[1])]
    assert [info.tag for info in runs[0].list()] == ["step_3", "step_2"]
    assert runs[0].attempt == 2
    second.close()


def test_programs_without_a_daemon_read_what_the_run_has_saved(
    root: BucketRootJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(SIZE)
    root.run().save("step_1", step=1, files={"folder/data.bin": data, "empty": b""}).wait(timeout=TIMEOUT)
    for name, value in root.server.environment().items():
        monkeypatch.setenv(name, value)
    given_up = f"{root.prefix}/step_2/.ckptd/manifest"
    root.server.client().put_object(Bucket=BUCKET, Key=given_up, Body=b"")
    assert [info.tag for info in ckptd.open_root(root.url).list()] == ["step_1"]
    with pytest.raises(ckptd.NotFound):
        ckptd.open_root(root.url).open("step_2")
    assert "NO_CHECKPOINT" in root.tool("fetch", f"{root.url}/step_2", str(tmp_path / "disk"), code=1)
    with ckptd.open_root(root.url).open() as checkpoint:
        assert checkpoint.read("folder/data.bin") == data
    assert "step_1" in root.tool("list", root.url)
    assert "OK" in root.tool("verify", root.url)
    root.tool("fetch", f"{root.url}/step_1", str(tmp_path / "disk"))
    assert (tmp_path / "disk/step_1/folder/data.bin").read_bytes() == data
    assert root.url in root.tool("status", "--verbose")
    assert "step_1 is COMMITTED" in root.tool("wait", f"{root.url}/step_1")
    assert not [key for key in root.keys() if "unended" in key or key.endswith("manifest.new")]


def test_rank_without_a_copy_in_memory_reads_through_the_daemon(root: BucketRootJob, launch: Any) -> None:
    data = os.urandom(SIZE)
    root.run().save("step_1", step=1, files={"data.bin": data, "empty": b""}).wait(timeout=TIMEOUT)
    root.next_node()
    launch()
    run = root.run()
    with run.open("step_1") as checkpoint:
        assert checkpoint.read("data.bin") == data
        assert checkpoint.read("empty") == b""
        ranges = [("data.bin", 5, 10), ("data.bin", SIZE - 3, 3)]
        assert [bytes(got) for got in checkpoint.read_ranges(ranges)] == [data[5:15], data[-3:]]


def test_daemon_killed_within_a_save_leaves_nothing_torn(root: BucketRootJob, launch: Any) -> None:
    run = root.run()
    save(run, 1).wait(timeout=TIMEOUT)
    root.proxy.stop_after(SIZE // 2)
    save(run, 2, SIZE)
    assert root.proxy.stopped.wait(TIMEOUT), "nothing was sent"
    assert root.uploaded() == {"step_1"}
    root.proxy.open_server()
    root.next_node()
    launch()
    run = root.run()
    assert [info.tag for info in run.list()] == ["step_1"]
    assert not [key for key in root.keys() if key.startswith("step_2/") and not key.endswith("/.ckptd/manifest")]
    assert "OK" in root.tool("verify", root.url)
    found = resumed(run)
    assert found is not None and found[0] == "step_1"
    save(run, 2, SIZE).wait(timeout=TIMEOUT)
    assert root.uploaded() == {"step_1", "step_2"}
    assert "OK" in root.tool("verify", root.url)


def test_sealed_save_is_committed_without_its_trainer(root: BucketRootJob, launch: Any) -> None:
    run = root.run()
    save(run, 1, SIZE)
    assert root.client is not None
    root.client.close()
    root.client = None
    until(lambda: root.uploaded() == {"step_1"}, "the commit")


@with_moto
def test_bucket_that_is_away_fails_the_save_with_its_url_and_a_later_one_succeeds(root: BucketRootJob) -> None:
    run = root.run()
    root.proxy.close_server()
    with pytest.raises(ckptd.CkptdError, match=f"s3://{BUCKET}/{root.prefix}"):
        save(run, 1).wait(timeout=TIMEOUT)
    root.proxy.open_server()
    save(run, 2).wait(timeout=TIMEOUT)
    assert root.uploaded() == {"step_2"}


@with_moto
def test_bucket_that_goes_away_within_a_save_delays_its_commit(root: BucketRootJob) -> None:
    run = root.run()
    root.proxy.stop_after(SIZE // 2)
    begun = save(run, 1, SIZE)
    assert root.proxy.stopped.wait(TIMEOUT)
    root.proxy.close_server()  # The connections that hang end.
    root.proxy.open_server()
    begun.wait(timeout=TIMEOUT)
    assert root.uploaded() == {"step_1"}


@with_moto
def test_daemon_that_opens_the_root_elsewhere_ends_the_saves_of_the_first(
    root: BucketRootJob, server: BucketServer, tmp_path: pathlib.Path, launch: Any
) -> None:
    run = root.run()
    save(run, 1).wait(timeout=TIMEOUT)
    (tmp_path / "other").mkdir()
    other = BucketRootJob(tmp_path / "other", server)
    try:
        other.start()
        # Another process, because one has each rank of a root once.
        job = [sys.executable, "-c", OTHER_JOB, other.daemon.endpoint, root.url]
        subprocess.run(job, env={**os.environ, "CKPTD_LAUNCH_ID": "other"}, check=True, timeout=TIMEOUT)
        with pytest.raises(ckptd.CkptdError, match=f"on {socket.gethostname()} .* has opened this root since") as taken:
            save(run, 2).wait(timeout=TIMEOUT)
        assert taken.value.reason == "ROOT_TAKEN_OVER"
        assert root.uploaded() == {"step_1", "step_3"}
    finally:
        other.close()
    assert root.client is not None
    root.client.close()  # The job ends, and its next launch takes the root back.
    root.client = None
    launch()

    def next_launch() -> List[str]:
        again = root.run()
        with contextlib.suppress(ckptd.CkptdError):  # The daemon has not closed the root yet.
            save(again, 4).wait(timeout=TIMEOUT)
            return [info.tag for info in again.list()]
        assert root.client is not None
        root.client.close()
        root.client = None
        return []

    assert until(next_launch, "the root's way back") == ["step_4", "step_3", "step_1"]


@with_moto
def test_what_a_bucket_has_not_is_refused_with_the_way_out(root: BucketRootJob) -> None:
    client = root.start()
    with pytest.raises(ckptd.Refused, match="upload="):
        client.run(root.url, upload=ckptd.Upload(f"s3://{BUCKET}/x"))
    with pytest.raises(ckptd.Refused, match="share_unchanged"):
        client.run(root.url, share_unchanged=True)
    with pytest.raises(ckptd.Refused, match="open_root"):
        client.open(root.url)
    with pytest.raises(ckptd.Refused, match="a folder that the nodes share") as spans:
        client.run(root.url, rank=0, world_size=2, local_ranks=[0])
    assert spans.value.reason == "MULTI_NODE_UNSUPPORTED"
    run = root.run()
    with pytest.raises(ckptd.CkptdError, match="pointer"):
        run.save("step_1", files={"a": b"1"}, pointers={"latest": "step_1"}).wait(timeout=TIMEOUT)
    save(run, 2).wait(timeout=TIMEOUT)
    with pytest.raises(ckptd.CkptdError) as taken:
        save(run, 2).wait(timeout=TIMEOUT)
    assert taken.value.reason == "TAG_TAKEN"
    save(run, 3).wait(timeout=TIMEOUT)
    run.delete("step_2")
    save(run, 2).wait(timeout=TIMEOUT)
    assert "ckptctl list" in root.tool("doctor", root.url, code=2)
    run.pin("step_2")
    with pytest.raises(ckptd.Refused):
        run.delete("step_2")


@with_moto
def test_service_has_roots_only_beneath_what_its_configuration_allows(server: BucketServer, tmp_path: pathlib.Path) -> None:
    uid = os.getuid()
    job = BucketRootJob(tmp_path, server, f'upload {{ allowed_prefixes: "s3://{BUCKET}/users/{{uid}}" }}\n')
    try:
        with pytest.raises(ckptd.Refused, match="allowed_prefixes") as refused:
            job.run()
        assert refused.value.reason == "UPLOAD_NOT_ALLOWED"
        run = job.start().run(f"s3://{BUCKET}/users/{uid}/{job.prefix}/")
        save(run, 1).wait(timeout=TIMEOUT)
        assert run.root == f"s3://{BUCKET}/users/{uid}/{job.prefix}"
    finally:
        job.close()


@with_moto
def test_private_daemon_saves_with_the_rights_of_its_job(
    server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, launch: Any
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    with LocalDaemon(tmp_path / "daemon", pool_bytes="256MiB") as daemon, ckptd.connect(daemon.endpoint) as client:
        save(client.run(url), 1, SIZE).wait(timeout=TIMEOUT)
    assert os.listdir(tmp_path) == ["daemon"], "no directory is called as the URL"
    launch()
    with LocalDaemon(tmp_path / "daemon2", pool_bytes="256MiB") as daemon, ckptd.connect(daemon.endpoint) as client:
        found = resumed(client.run(url))
    assert found is not None and found[0] == "step_1" and len(found[1]) == SIZE


@with_moto
def test_damage_in_the_bucket_is_noticed_and_the_older_checkpoint_offered(root: BucketRootJob, launch: Any) -> None:
    run = root.run()
    for step in (1, 2):
        save(run, step).wait(timeout=TIMEOUT)
    key = f"{root.prefix}/step_2/data.bin"
    root.server.client().put_object(Bucket=BUCKET, Key=key, Body=os.urandom(1000))
    root.next_node()
    launch()
    run = root.run()
    loaded = run.restore(lambda checkpoint: (checkpoint.tag, checkpoint.read("data.bin")), timeout=TIMEOUT)
    assert loaded[0] == "step_1"
    assert "step_2" in [info.tag for info in run.list() if info.damage]
    root.next_node()
    launch()
    assert "step_2" in [info.tag for info in root.run().list() if info.damage], "the next daemon knows it, too"
