"""The names in a bucket's index, against servers: buckets that lack them, and what lists cost."""

from __future__ import annotations

import concurrent.futures
import pathlib
from typing import Any, Dict, Iterator, List, Set

import ckptd
import pytest
from bucket_copies import Copies, requests_of
from bucket_servers import BUCKET, BucketServer, with_moto
from checkpoint_files import encode_manifest, index_name
from ckptd._wire.protocol import storage
from fault_job import FaultJob, new_launch
from fault_plan import INDEX
from harness.waiting import TIMEOUT, until

MANY = 1020  # Two pages.


@pytest.fixture
def fault_job(server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultJob]:
    monkeypatch.setenv("CKPTD_LAUNCH_ID", "")  # new_launch() changes it.
    made = FaultJob(tmp_path, server)
    yield made
    made.close()


def names_of(job: FaultJob) -> Set[str]:
    return {key for key in job.keys() if key.startswith(INDEX)}


def test_bucket_of_an_earlier_version_is_resumed_from_and_gets_its_names(
    fault_job: FaultJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fault_job
    new_launch()
    run = job.run()
    for step in (1, 2, 3):
        job.save(run, step, 1000).wait("uploaded", timeout=TIMEOUT)
    until(lambda: len(names_of(job)) == 3, "the names")
    names, s3 = names_of(job), job.server.client()
    for name in names:
        s3.delete_object(Bucket=BUCKET, Key=f"{job.prefix}/{name}")
    stale = f"{INDEX}{index_name(storage.ManifestSummary(tag='gone', sequence=9))}"
    s3.put_object(Bucket=BUCKET, Key=f"{job.prefix}/{stale}", Body=b"")

    listed = job.ctl("list", job.url).stdout
    assert all(f"step_{step}" in listed for step in (1, 2, 3)) and "gone" not in listed
    Copies(job.server, tmp_path, monkeypatch)  # Sets the environment.
    latest = ckptd.open_root(job.url).latest()
    assert latest is not None and latest.tag == "step_3"
    assert names_of(job) == {stale}, "readers write nothing"

    found = job.resumed()
    assert found is not None and found[0] == "step_3"
    until(lambda: names_of(job) == names, "the daemon's repair")


@with_moto
def test_lists_cost_pages_and_no_request_for_each_checkpoint(
    fault_job: FaultJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fault_job
    Copies(job.server, tmp_path, monkeypatch)  # Sets the environment.
    s3 = job.server.client()

    def put(number: int) -> None:
        begun = 1_700_000_000_000_000 + number
        summary = storage.ManifestSummary(
            format_version=1, tag=f"step_{number}", sequence=number, attempt=1, ordinal=1, world_size=1,
            create_time_us=begun, commit_time_us=begun + 1, chunk_bytes=1 << 20,
        )  # fmt: skip
        manifest = encode_manifest(summary, b"")
        s3.put_object(Bucket=BUCKET, Key=f"{job.prefix}/step_{number}/.ckptd/manifest", Body=manifest)
        s3.put_object(Bucket=BUCKET, Key=f"{job.prefix}/{INDEX}{index_name(summary)}", Body=b"")

    def costs(first: int, last: int) -> "List[Dict[str, int]]":
        """Returns the requests of `ckptctl list`, of a resume and of latest(), by their kinds, with checkpoints up to `last`."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(put, range(first, last + 1)))
        job.proxy.plan()
        listed = job.ctl("list", job.url)
        assert listed.returncode == 0 and listed.stdout.count("step_") >= last
        of_ckptctl = count(request.kind for request in job.proxy.seen)
        new_launch()
        run = job.run()
        job.proxy.plan()
        with run.resume(timeout=TIMEOUT) as checkpoint:
            assert checkpoint is not None and checkpoint.tag == f"step_{last}"
        of_resume = count(request.kind for request in job.proxy.seen)
        job.lose_disk()
        root = ckptd.open_root(job.url)
        seen = requests_of(root)
        latest = root.latest()
        assert latest is not None and latest.tag == f"step_{last}"
        return [of_ckptctl, of_resume, count(name for name, _ in seen)]

    few, many = costs(1, 70), costs(71, MANY)
    for one, other in zip(few, many):
        pages = {"GET list", BUCKET}
        assert {kind: n for kind, n in one.items() if kind not in pages} == {
            kind: n for kind, n in other.items() if kind not in pages
        }
    assert [cost.get("GET list", cost.get(BUCKET)) for cost in few] == [5, 4, 2], few
    assert [cost.get("GET list", cost.get(BUCKET)) for cost in many] == [8, 6, 4], many


def count(kinds: Any) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for kind in kinds:
        found[kind] = found.get(kind, 0) + 1
    return found
