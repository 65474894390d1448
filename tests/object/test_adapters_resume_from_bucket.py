"""A job of each library is started again on a node that has lost its disk: it goes on from the bucket, by its own line."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import uuid
from typing import Any, Dict, Iterator, List, Set

import pytest
from adapter_jobs import IMPORTS, JOBS, library_of
from bucket_servers import BUCKET, BucketServer, start_moto
from ckptd._checkpoint_info import CheckpointInfo
from ckptd.restore import open_root
from ckptd.uploads import Upload
import upload_job
from upload_job import Job

from harness import Trainer, together
from harness.waiting import until

MISSING = "not-there"  # A bucket.
WORLD_SIZE = 2
LAST_SAVE, STEPS = 4, 5
SECONDS = 240.0  # For a launch, which imports a library.


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def launch(
    endpoint: str, library: str, root: os.PathLike[str] | str, url: str, begins: bool = False
) -> List[Dict[str, Any]]:
    """Runs all ranks of a job, with what torchrun tells them. begins: it is the first launch."""
    shared = {
        "BEGINS": "yes" if begins else "no",
        "WORLD_SIZE": str(WORLD_SIZE),
        "LOCAL_WORLD_SIZE": str(WORLD_SIZE),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
        "CKPTD_TEST_IMPORTS": f"{IMPORTS[library_of(library)]}\nimport adapter_jobs",
    }
    ranks = [
        Trainer(endpoint, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(WORLD_SIZE)
    ]
    try:
        results = together(ranks, f"adapter_jobs.run({library!r}, {str(root)!r}, {url!r}, {STEPS})", SECONDS)
        if not any("error" in result for result in results):  # After one, process groups wait for each other.
            for rank in ranks:
                rank.process.stdin.close()
            assert [rank.process.wait(SECONDS) for rank in ranks] == [0] * WORLD_SIZE
        return results
    finally:
        for rank in ranks:
            rank.close()


@pytest.fixture(scope="module")
def moto() -> Iterator[BucketServer]:
    yield from start_moto()


@pytest.fixture(scope="module")
def job(moto: BucketServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The daemon of all jobs. Each has a root and a prefix of its own."""
    allowed = " ".join(f'allowed_prefixes: "s3://{bucket}"' for bucket in (BUCKET, MISSING))
    made = Job(tmp_path_factory.mktemp("daemon"), moto, f"upload {{ {allowed} }}\n")
    made.start()
    yield made
    made.close()


@dataclasses.dataclass
class Trained:
    """A job that has trained to the end, with the checkpoints of its steps 2 and 4 in the bucket."""

    job: Job
    library: str
    root: pathlib.Path
    prefix: str
    values: Any  # The weights at its end, of each rank.

    def copy_of_bucket(self, before: int = LAST_SAVE + 1) -> str:
        """The URL of a copy with the checkpoints of the steps before one. The next launch may change it as it likes.

        Some libraries save after the last step, too.
        """
        made, client = uuid.uuid4().hex, self.job.server.client()
        kept = {info.tag for info in self.checkpoints() if info.step is not None and info.step < before}
        for found in client.list_objects_v2(Bucket=BUCKET, Prefix=self.prefix)["Contents"]:
            key = found["Key"]
            if key.split("/")[1] in kept:
                to = made + key[len(self.prefix) :]
                client.copy_object(Bucket=BUCKET, Key=to, CopySource={"Bucket": BUCKET, "Key": key})
        return f"s3://{BUCKET}/{made}"

    def again(self, root: pathlib.Path, url: str) -> List[Dict[str, Any]]:
        return launch(self.job.daemon.endpoint, self.library, root, url)

    def checkpoints(self) -> List[CheckpointInfo]:
        """Those that the first launch has saved, newest first."""
        inner = ".ckptd-lightning" if self.library.startswith("lightning") else "."
        return open_root(self.root / inner).list()


LIBRARIES = [*IMPORTS]
OTHER_LINES = sorted(set(JOBS) - set(LIBRARIES))  # Of the same libraries.


@pytest.fixture(scope="module", params=LIBRARIES)
def trained(request: pytest.FixtureRequest, job: Job, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained_by(job, request.param, tmp_path_factory.mktemp("first"))


def trained_by(job: Job, library: str, folder: pathlib.Path) -> Trained:
    root, prefix = folder / "root", uuid.uuid4().hex
    ranks = launch(job.daemon.endpoint, library, root, f"s3://{BUCKET}/{prefix}", begins=True)
    made = Trained(job, library, root, prefix, [rank.get("values", rank) for rank in ranks])
    assert [rank.get("begin", rank) for rank in ranks] == [0] * WORLD_SIZE

    tags = {info.tag for info in made.checkpoints()}
    assert tags
    until(lambda: tags <= uploaded_tags(made), "the uploads")
    return made


def uploaded_tags(trained: Trained) -> Set[str]:
    """Those that are complete, and of which the daemon will remove nothing any more."""
    listed = trained.job.server.client().list_objects_v2(Bucket=BUCKET, Prefix=trained.prefix)
    keys = [found["Key"] for found in listed.get("Contents", [])]

    def with_file(name: str) -> Set[str]:
        return {key.split("/")[1] for key in keys if key.endswith(f"/.ckptd/{name}")}

    return with_file("manifest") - with_file("manifest.new")


def log_of(job: Job, root: pathlib.Path) -> str:
    return "\n".join(line for line in job.daemon.log().splitlines() if str(root) in line)


def check_goes_on(trained: Trained, tmp_path: pathlib.Path) -> None:
    ranks = trained.again(tmp_path / "root", trained.copy_of_bucket())
    assert [rank.get("begin", rank) for rank in ranks] == [LAST_SAVE] * WORLD_SIZE
    assert [rank["values"] for rank in ranks] == trained.values
    assert log_of(trained.job, tmp_path).count(": fetching ") == 1


def test_job_on_an_empty_disk_goes_on_from_the_bucket_with_the_same_values(
    trained: Trained, tmp_path: pathlib.Path
) -> None:
    check_goes_on(trained, tmp_path)


@pytest.mark.parametrize("library", OTHER_LINES)
def test_other_lines_of_a_library_go_on_from_the_bucket_too(
    job: Job, library: str, tmp_path: pathlib.Path
) -> None:
    check_goes_on(trained_by(job, library, tmp_path / "first"), tmp_path / "second")


def test_bucket_that_cannot_be_read_is_an_error_on_all_ranks(
    trained: Trained, tmp_path: pathlib.Path
) -> None:
    # It says so at once; one that does not answer is tried for a minute.
    url = f"s3://{MISSING}/{trained.prefix}"
    for rank in trained.again(tmp_path / "root", url):
        assert rank.get("reason") == "RESTORE_FAILED", rank
        assert url in rank["words"] and "restore=False" in rank["words"]


def test_root_with_a_newer_checkpoint_than_the_bucket_fetches_nothing(
    trained: Trained, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(trained.root, tmp_path / "root", symlinks=True)
    newest = trained.checkpoints()[0].step
    assert newest is not None
    ranks = trained.again(tmp_path / "root", trained.copy_of_bucket(before=newest))
    assert [rank.get("begin", rank) for rank in ranks] == [newest] * WORLD_SIZE
    if newest < STEPS:
        assert [rank["values"] for rank in ranks] == trained.values
    assert ": fetching " not in log_of(trained.job, tmp_path)


def test_upload_without_restore_begins_from_an_empty_root(
    job: Job, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trained_by(job, "dcp", tmp_path / "first")
    monkeypatch.setenv("RESTORE", "no")
    ranks = first.again(tmp_path / "second", first.copy_of_bucket())
    assert [rank.get("begin", rank) for rank in ranks] == [0] * WORLD_SIZE
    assert ": fetching " not in log_of(job, tmp_path / "second")


LOOK = """
import sys, ckptd, ckptd.dcp
ckptd.dcp.configure(upload=ckptd.Upload(sys.argv[2]))
print(ckptd.dcp.latest(sys.argv[1]))
"""


def test_process_beside_the_job_that_saves_there_sees_the_root(job: Job, tmp_path: pathlib.Path) -> None:
    root, url = tmp_path / "root", f"s3://{BUCKET}/{uuid.uuid4().hex}"
    upload_job.save(job.start().run(root, upload=Upload(url)), 1).wait()
    environment = {**os.environ, "CKPTD_ENDPOINT": job.daemon.endpoint, "CKPTD_JOB_ID": "another one"}
    command = [sys.executable, "-c", LOOK, str(root), url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout.strip() == str(root / "step_1"), done.stderr
    assert upload_job.save(job.start().run(root, upload=Upload(url)), 2).wait().level == "committed"
