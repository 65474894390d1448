"""ckptctl with s3://, against servers that check signatures; one of them checks policies, too."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import uuid

import ckptd
import pytest
from bucket_servers import BUCKET, BucketServer
from ckptd.local_daemon import LocalDaemon, find_program

PART = 16 << 20


class Tool:
    """ckptctl with the server's environment."""

    def __init__(self, server: BucketServer) -> None:
        self.server = server
        self.url = f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def run(self, *arguments: object, code: int = 0) -> str:
        done = subprocess.run(
            [find_program("ckptctl"), *map(str, arguments)],
            env=self.server.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def keys(self) -> set[str]:
        prefix = self.url.split("/", 3)[3]
        listed = self.server.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return {found["Key"][len(prefix) + 1 :] for found in listed.get("Contents", [])}

    def keys_of_checkpoints(self) -> set[str]:
        return {key for key in self.keys() if not key.startswith(".ckptd/index/")}


@pytest.fixture
def tool(server: BucketServer) -> Tool:
    return Tool(server)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A root with the checkpoint step_10: a file of two parts, and a small one."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "model.pt").write_bytes(os.urandom(PART + 4321))
    (folder / "notes.txt").write_text("hello")
    with LocalDaemon(folder / "daemon") as daemon:
        command = [find_program("ckptctl"), f"--endpoint={daemon.endpoint}", "save", "--step=10"]
        files = [str(folder / "model.pt"), str(folder / "notes.txt")]
        subprocess.run([*command, str(folder / "root" / "step_10"), *files], check=True, timeout=120)
    return folder / "root"


def files_of(directory: pathlib.Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_checkpoint_goes_to_a_bucket_and_comes_back_as_a_root_that_a_job_resumes_from(
    tool: Tool, root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    tool.run("upload", root / "step_10", tool.url)
    assert tool.keys_of_checkpoints() == {f"step_10/{name}" for name in files_of(root / "step_10")}
    assert "step_10" in tool.run("list", tool.url)
    assert "OK" in tool.run("verify", tool.url)
    assert "OK" in tool.run("verify", f"{tool.url}/step_10")
    tool.run("fetch", f"{tool.url}/step_10", tmp_path / "fetched")
    assert files_of(tmp_path / "fetched" / "step_10") == files_of(root / "step_10")

    with LocalDaemon(tmp_path / "daemon") as daemon, ckptd.connect(daemon.endpoint) as client:
        run = client.run(str(tmp_path / "fetched"))
        with run.resume() as checkpoint:
            assert checkpoint and checkpoint.tag == "step_10"


def test_second_upload_sends_nothing(tool: Tool, root: pathlib.Path) -> None:
    first = json.loads(tool.run("--output=json", "upload", root / "step_10", tool.url))
    again = json.loads(tool.run("--output=json", "upload", root / "step_10", tool.url))
    assert first["sent_bytes"] > PART and first["arrived_bytes"] == 0
    assert again["sent_bytes"] == 0


def test_upload_goes_on_with_the_parts_that_have_arrived(tool: Tool, root: pathlib.Path) -> None:
    prefix = tool.url.split("/", 3)[3]
    manifest = (root / "step_10/.ckptd/manifest").read_bytes()
    s3 = tool.server.client()
    s3.put_object(Bucket=BUCKET, Key=f"{prefix}/step_10/.ckptd/manifest.new", Body=manifest)
    where = {"Bucket": BUCKET, "Key": f"{prefix}/step_10/model.pt"}
    upload = s3.create_multipart_upload(**where)["UploadId"]
    first = (root / "step_10/model.pt").read_bytes()[:PART]
    s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=first)
    assert "NO_CHECKPOINT" in tool.run("verify", tool.url, code=1)
    done = json.loads(tool.run("--output=json", "upload", root / "step_10", tool.url))
    assert done["arrived_bytes"] == PART and done["sent_bytes"] < PART
    assert "OK" in tool.run("verify", f"{tool.url}/step_10")
    assert tool.keys_of_checkpoints() == {f"step_10/{name}" for name in files_of(root / "step_10")}
    assert not s3.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads")


def test_damage_in_the_bucket_is_named_and_not_fetched(
    tool: Tool, root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    tool.run("upload", root / "step_10", tool.url)
    prefix = tool.url.split("/", 3)[3]
    tool.server.client().put_object(Bucket=BUCKET, Key=f"{prefix}/step_10/notes.txt", Body=b"jello")
    assert "CORRUPT_FILE" in tool.run("fetch", f"{tool.url}/step_10", tmp_path / "new", code=1)
    assert not (tmp_path / "new/step_10").exists()
    done = subprocess.run(
        [find_program("ckptctl"), "verify", tool.url],
        env=tool.server.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "notes.txt" in done.stdout


def test_errors_say_what_is_wrong(tool: Tool, root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert "s3://BUCKET/PREFIX" in tool.run("upload", root / "step_10", "bucket/run", code=2)
    assert "NO_CHECKPOINT" in tool.run("upload", root / "step_11", tool.url, code=1)
    assert "NO_CHECKPOINT" in tool.run("fetch", f"{tool.url}/step_10", tmp_path, code=1)
    assert "NO_CHECKPOINT" in tool.run("verify", tool.url, code=1)
    tool.server = dataclasses.replace(tool.server, secret_key="wrong")
    assert "STORE_DENIED" in tool.run("list", tool.url, code=4)
