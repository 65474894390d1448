"""Resume on a node whose disk has lost the run: the daemon fetches the newest checkpoint of the bucket first."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import shutil
import signal
import uuid
from typing import Any, Optional

import ckptd
import pytest
from bucket_servers import BUCKET, BucketServer
from harness.waiting import TIMEOUT, until
from upload_job import SIZE, Job, save


@pytest.fixture(autouse=True)
def launch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes what joins from now on a new launch of the job."""

    def begin() -> None:
        monkeypatch.setenv("CKPTD_LAUNCH_ID", uuid.uuid4().hex)

    begin()
    return begin


def content(job: Job, tag: str) -> bytes:
    return (job.root / tag / "data.bin").read_bytes()


def resumed(run: ckptd.Run, timeout: float = TIMEOUT) -> Optional[tuple[str, bytes]]:
    """The tag and the bytes that a rank resumes from; None: it begins from nothing."""
    with run.resume(timeout=timeout) as checkpoint:
        return (checkpoint.tag, checkpoint.read("data.bin")) if checkpoint else None


def test_both_ranks_go_on_from_the_bucket_after_the_disk_was_lost(job: Job, launch: Any) -> None:
    run = job.run(keep_last=2)
    for step in (1, 2):
        save(run, step, SIZE).wait("uploaded", timeout=TIMEOUT)
    expected = content(job, "step_2")
    job.lose_disk()
    launch()
    client = job.start()
    second = ckptd.connect(job.daemon.endpoint)
    upload = ckptd.Upload(job.url, keep_last=2)
    ranks = [
        connection.run(job.root, rank=rank, world_size=2, num_kept_ckpts=1, upload=upload)
        for rank, connection in enumerate((client, second))
    ]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(resumed, ranks))
    second.close()
    assert found == [("step_2", expected)] * 2
    assert "fetching step_2" in job.daemon.log()
    assert "UPLOADED" in job.tool("list", str(job.root)), "it is not uploaded again"


def test_run_that_went_on_saves_uploads_and_retains_as_before(job: Job, launch: Any) -> None:
    run = job.run(keep_last=2)
    for step in (1, 2):
        save(run, step).wait("uploaded", timeout=TIMEOUT)
    job.lose_disk()
    launch()
    run = job.run(keep_last=2)
    found = resumed(run)
    assert found is not None and found[0] == "step_2"
    save(run, 2).wait()  # As the first save of the first launch: another checkpoint takes the tag.
    save(run, 3).wait("uploaded", timeout=TIMEOUT)
    until(lambda: job.uploaded() == {"step_2", "step_3"}, "the removal of what the lost root had uploaded")
    assert "OK" in job.tool("verify", f"{job.url}/step_2")


def test_root_that_is_newer_than_the_bucket_wins(job: Job, launch: Any) -> None:
    run = job.run(every=2)
    for step in (1, 2, 3):
        save(run, step).wait()
    until(lambda: job.uploaded() == {"step_2"}, "the upload")
    newest = content(job, "step_3")
    launch()
    assert resumed(job.client.run(job.root, upload=ckptd.Upload(job.url))) == ("step_3", newest)  # type: ignore[union-attr]


def test_root_that_is_older_than_the_bucket_goes_on_from_the_bucket(
    job: Job, launch: Any, tmp_path: pathlib.Path
) -> None:
    run = job.run()
    save(run, 1).wait("uploaded", timeout=TIMEOUT)
    # The daemon writes the run's record under a name of its own at any time.
    shutil.copytree(job.root, tmp_path / "backup", ignore=shutil.ignore_patterns("*.tmp"))
    save(run, 2).wait("uploaded", timeout=TIMEOUT)
    newest = content(job, "step_2")
    job.lose_disk()
    shutil.copytree(tmp_path / "backup", job.root)
    launch()
    assert resumed(job.run()) == ("step_2", newest)


def test_bucket_that_is_away_fails_the_resume_of_an_empty_root(job: Job, launch: Any) -> None:
    save(job.run(), 1).wait("uploaded", timeout=TIMEOUT)
    job.lose_disk()
    launch()
    job.proxy.close_server()
    with pytest.raises(ckptd.Refused) as refused:
        resumed(job.run())
    assert refused.value.reason == "RESTORE_FAILED"
    assert job.url in str(refused.value) and "restore=False" in str(refused.value)
    assert resumed(job.run(restore=False)) is None
    launch()
    job.proxy.open_server()
    found = resumed(job.run())
    assert found is not None and found[0] == "step_1"


def test_deleted_checkpoint_does_not_come_back_from_the_bucket(job: Job, launch: Any) -> None:
    run = job.run()
    for step in (1, 2):
        save(run, step).wait("uploaded", timeout=TIMEOUT)
    save(run, 3).wait("uploaded", timeout=TIMEOUT)
    oldest = content(job, "step_1")
    for tag in ("step_3", "step_2"):
        shutil.rmtree(job.root / tag)  # An operator goes back to step_1.
    job.restart_without()
    launch()
    assert resumed(job.run()) == ("step_1", oldest)
    assert job.uploaded() == {"step_1", "step_2", "step_3"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_daemon_that_ends_in_a_fetch_lists_nothing_torn_and_the_next_one_fetches_again(
    job: Job, launch: Any, number: signal.Signals
) -> None:
    save(job.run(), 1, SIZE).wait("uploaded", timeout=TIMEOUT)
    expected = content(job, "step_1")
    job.lose_disk()
    launch()
    run = job.run()
    job.proxy.stop_after(SIZE // 2, upstream=False)
    with pytest.raises(ckptd.WaitTimeout, match=f"fetching step_1 from {job.url}"):
        resumed(run, timeout=2)
    assert "resume waits for step_1" in job.tool("status", "--verbose")
    assert job.proxy.stopped.is_set()
    job.daemon.end(number)
    left = {"lock", "step_1"} if number == signal.SIGKILL else {"lock"}
    assert {path.name for path in (job.root / ".fetch").iterdir()} == left
    job.proxy.open_server()
    job.start()
    assert "step_1" not in job.tool("list", str(job.root))
    assert resumed(run) == ("step_1", expected)
    assert {path.name for path in (job.root / ".fetch").iterdir()} == {"lock"}


def test_damaged_checkpoint_of_the_bucket_gives_way_to_an_older_one(job: Job, launch: Any) -> None:
    run = job.run()
    for step in (1, 2):
        save(run, step).wait("uploaded", timeout=TIMEOUT)
    expected = content(job, "step_1")
    key = f"{job.prefix}/step_2/data.bin"
    job.server.client().put_object(Bucket=BUCKET, Key=key, Body=b"x" * 1000)
    job.lose_disk()
    launch()
    assert resumed(job.run()) == ("step_1", expected)
    assert "step_2 is damaged" in job.daemon.log()


def test_missing_credentials_are_named(server: BucketServer, tmp_path: pathlib.Path) -> None:
    other = Job(tmp_path, server)
    other.server = dataclasses.replace(server, access_key="", secret_key="")
    try:
        with pytest.raises(ckptd.Refused, match="credentials") as refused:
            resumed(other.run())
        assert refused.value.reason == "RESTORE_FAILED"
    finally:
        other.close()
