"""A bucket as the second tier behind a root: the daemon uploads, against servers that check signatures."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time
import urllib.request
import uuid

import ckptd
import pytest
from bucket_servers import BUCKET, BucketServer
from ckptd.local_daemon import LocalDaemon, find_program
from harness.waiting import TIMEOUT, until
from upload_job import SIZE, Job, save


def test_each_nth_checkpoint_is_uploaded_and_can_be_fetched(job: Job, tmp_path: pathlib.Path) -> None:
    run = job.run(every=2)
    for step in range(1, 5):
        save(run, step).wait()
    save(run, 5).wait()
    save(run, 6, SIZE).wait("uploaded", timeout=TIMEOUT)
    assert job.uploaded() == {"step_2", "step_4", "step_6"}
    assert "OK" in job.tool("verify", job.url)
    listed = job.tool("list", str(job.root))
    assert listed.count("UPLOADED") == 3 and listed.count("COMMITTED") == 3
    job.tool("fetch", f"{job.url}/step_6", str(tmp_path / "elsewhere"))
    fetched = (tmp_path / "elsewhere/step_6/data.bin").read_bytes()
    assert fetched == (job.root / "step_6/data.bin").read_bytes()


def test_wait_for_an_upload_that_is_not_its_turn_is_refused(job: Job) -> None:
    run = job.run(every=10)
    with pytest.raises(ckptd.Refused, match="every=10") as refused:
        save(run, 1).wait("uploaded", timeout=TIMEOUT)
    assert refused.value.reason == "NOT_UPLOADED"


def test_killed_daemon_goes_on_with_the_upload_and_lists_nothing_torn(job: Job) -> None:
    run = job.run()
    job.proxy.stop_after(SIZE // 2)
    save(run, 1, SIZE).wait()
    assert job.proxy.stopped.wait(TIMEOUT), "nothing was sent"
    assert job.uploaded() == set()
    assert "NO_CHECKPOINT" in job.tool("verify", job.url, code=1)
    assert job.daemon.end(signal.SIGKILL) == -signal.SIGKILL
    job.proxy.open_server()
    job.start()  # No trainer asks for anything.
    until(lambda: job.uploaded() == {"step_1"}, "the upload by the next daemon")
    assert "OK" in job.tool("verify", f"{job.url}/step_1")


def test_server_that_is_away_delays_no_save_and_gets_what_has_waited(job: Job) -> None:
    run = job.run(keep_last=2)
    save(run, 1).wait("uploaded", timeout=TIMEOUT)
    job.proxy.close_server()
    begun = time.monotonic()
    for step in range(2, 5):
        save(run, step).wait(timeout=TIMEOUT)
    assert time.monotonic() - begun < TIMEOUT
    waiting = [waiting.tag for waiting in job.status().waiting]
    assert waiting == ["step_2", "step_3", "step_4"]
    assert "3 waiting" in job.tool("status", "--verbose")
    job.proxy.open_server()
    until(lambda: job.uploaded() == {"step_3", "step_4"}, "the uploads, of which two are kept", 120)
    assert "OK" in job.tool("verify", job.url)


def test_operator_who_drains_hears_of_uploads_and_can_wait_for_them(job: Job) -> None:
    run = job.run()
    job.proxy.close_server()
    save(run, 1).wait()
    name = str(job.root / "step_1")
    drained = job.tool("drain")
    assert "DRAINED" in drained and "These uploads go on after a restart" in drained and name in drained
    job.tool("--timeout=0", "wait", name, "--level=uploaded", code=1)
    job.proxy.open_server()
    assert "step_1 is UPLOADED" in job.tool("--timeout=100", "wait", name, "--level=uploaded")
    assert f"it is in the bucket, too: {job.url}/step_1" in job.tool("why", name)
    assert "uploads" not in job.tool("drain")


def test_retention_keeps_what_waits_for_its_upload(job: Job) -> None:
    client = job.start()
    run = client.run(job.root, num_kept_ckpts=1, upload=ckptd.Upload(job.url))
    job.proxy.close_server()
    for step in range(1, 4):
        save(run, step).wait()
    assert {path.name for path in job.root.iterdir()} >= {"step_1", "step_2", "step_3"}
    kept = {decision.tag: decision.kept_by for decision in run.explain_retention()}
    assert "not uploaded yet" in kept["step_1"]
    job.proxy.open_server()
    until(lambda: job.uploaded() == {"step_1", "step_2", "step_3"}, "the uploads", 120)
    until(lambda: not (job.root / "step_1").exists() and not (job.root / "step_2").exists(), "retention")


def test_keep_last_removes_only_what_this_run_has_uploaded(job: Job) -> None:
    s3 = job.server.client()
    foreign = f"{job.prefix}/step_1/notes.txt"
    run = job.run(keep_last=1)
    save(run, 1).wait("uploaded", timeout=TIMEOUT)
    s3.put_object(Bucket=BUCKET, Key=foreign, Body=b"mine")
    save(run, 2).wait("uploaded", timeout=TIMEOUT)
    until(lambda: job.uploaded() == {"step_2"}, "the removal")

    def keys() -> set[str]:
        listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{job.prefix}/step_1/")
        return {found["Key"] for found in listed.get("Contents", [])}

    until(lambda: keys() == {foreign}, "the removal of the files")


def test_daemon_uploads_only_beneath_what_its_configuration_allows(
    server: BucketServer, tmp_path: pathlib.Path
) -> None:
    uid = os.getuid()
    job = Job(tmp_path, server, f'upload {{ allowed_prefixes: "s3://{BUCKET}/users/{{uid}}" }}\n')
    try:
        client = job.start()
        for url in (
            job.url,
            f"s3://{BUCKET}/users/{uid + 1}",
            f"s3://{BUCKET}/users/{uid}x",
            "s3://other/users/0",
        ):
            with pytest.raises(ckptd.Refused, match="allowed_prefixes") as refused:
                client.run(job.root, upload=ckptd.Upload(url))
            assert refused.value.reason == "UPLOAD_NOT_ALLOWED"
        client.run(job.root, upload=ckptd.Upload(f"s3://{BUCKET}/users/{uid}/run"))
    finally:
        job.close()


def test_private_daemon_uploads_with_the_rights_of_its_job(
    server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    with LocalDaemon(tmp_path / "daemon") as daemon, ckptd.connect(daemon.endpoint) as client:
        run = client.run(tmp_path / "root", upload=ckptd.Upload(url))
        save(run, 1).wait("uploaded", timeout=TIMEOUT)
    done = subprocess.run(
        [find_program("ckptctl"), "verify", url], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr


def test_metrics_say_what_waits_and_for_how_long(job: Job) -> None:
    run = job.run()
    save(run, 1, SIZE).wait("uploaded", timeout=TIMEOUT)
    job.proxy.close_server()
    save(run, 2).wait()
    port = until(lambda: _metrics_port(job.daemon.log()), "the port of /metrics")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT) as answer:
        text = answer.read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    by_name = {name.partition("{")[0]: float(value) for name, value in values.items()}
    assert by_name["ckptd_uploads_waiting"] == 1
    assert by_name["ckptd_uploads_total"] == 1
    assert by_name["ckptd_uploaded_bytes_total"] >= SIZE
    assert by_name["ckptd_oldest_upload_waiting_age_seconds"] >= 0


def _metrics_port(log: str) -> str:
    for line in log.splitlines():
        if "metrics_port=" in line:
            return line.split("metrics_port=")[1].split()[0]
    return ""
