"""What clients of an earlier version say, and what it left on disk, is understood as it was then.

tests/compat/data has a folder for each version that is supported; record.py makes it.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tarfile
from typing import Any, Dict, Iterator, List

import pytest

import ckptd
from ckptd.local_daemon import find_program

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import play  # noqa: E402
import scenario  # noqa: E402
from transcript import Protocol  # noqa: E402

VERSIONS = sorted(path.name for path in (HERE / "data").iterdir())
NOT_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="the recorded root belongs to user 0")


@pytest.fixture()
def daemon(tmp_path: pathlib.Path) -> Iterator[ckptd.LocalDaemon]:
    started = ckptd.LocalDaemon(tmp_path / "daemon", pool_bytes=64 << 20).start()
    yield started
    started.stop()


def fields(message: Any, prefix: str = "") -> Iterator[str]:
    """Each field, method and enum value of a file's descriptor, as one line that must never change."""
    name = f"{prefix}.{message.name}"
    for field in message.field:
        yield f"{name}.{field.name} = {field.number} {field.label} {field.type} {field.type_name} {field.proto3_optional}"
    for enum in message.enum_type:
        yield from values(enum, name)
    for nested in message.nested_type:
        yield from fields(nested, name)


def values(enum: Any, prefix: str) -> Iterator[str]:
    for value in enum.value:
        yield f"{prefix}.{enum.name}.{value.name} = {value.number}"


def lines(protocol: Protocol) -> List[str]:
    found: List[str] = []
    for file in protocol.files.file:
        if not file.name.startswith("ckptd/"):
            continue
        for message in file.message_type:
            found += fields(message, file.package)
        for enum in file.enum_type:
            found += values(enum, file.package)
        for service in file.service:
            for method in service.method:
                streams = f"{method.client_streaming} {method.server_streaming}"
                found.append(f"{service.name}.{method.name} {method.input_type} {method.output_type} {streams}")
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_protocol_and_disk_format_keep_every_field_of(version: str) -> None:
    then = lines(Protocol((HERE / "data" / version / "protocol.binpb").read_bytes()))
    now = lines(Protocol(play.descriptors(HERE.parents[1] / "proto")))
    assert len(then) > 300
    assert not set(then) - set(now)


@NOT_ROOT
@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_calls_are_answered_as_by(
    version: str, daemon: ckptd.LocalDaemon, tmp_path: pathlib.Path
) -> None:
    recorded: Dict[str, Any] = json.loads((HERE / "data" / version / "transcript.json").read_text())
    assert len(recorded["steps"]) > 50
    protocol = Protocol((HERE / "data" / version / "protocol.binpb").read_bytes())
    play.make_root(tmp_path / "root")
    assert not play.compare(protocol, daemon.endpoint, str(tmp_path / "root"), recorded)


@NOT_ROOT
@pytest.mark.parametrize("version", VERSIONS)
def test_root_is_read_that_was_left_by(version: str, daemon: ckptd.LocalDaemon, tmp_path: pathlib.Path) -> None:
    with tarfile.open(HERE / "data" / version / "root.tar.gz") as archive:
        archive.extractall(tmp_path)
    root = tmp_path / "root"
    ckptctl = find_program("ckptctl")
    verified = subprocess.run([ckptctl, "verify", str(root)], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr

    with ckptd.connect(daemon.endpoint) as client:
        run = client.run(root, rank=0, world_size=1, run_id="compat")
        found = {info.tag: info for info in run.list()}
        assert list(found) == ["step-3", "step-2", "step-1", "nxd_7"]
        assert found["step-1"].step == 1 and found["step-1"].pinned
        # step-3 was reported to be damaged, and the pointer file names the newest that is not.
        assert (root / "latest").read_text() == "step-2"
        with run.resume() as checkpoint:
            assert checkpoint.tag == "step-2"
            assert checkpoint.metrics == {"loss": 1.5}
            assert [info.tag for info in checkpoint.passed_over] == ["step-3"]
            for rank in (0, 1):
                assert checkpoint.read(f"model/rank{rank}.bin") == scenario.content("step-2", rank)
        (status,) = client.status().runs
        assert status.attempt == 2, "the launch that was recorded was the first"
    # The save that was under way when the daemon was killed is gone, and its sequence is not given again.
    assert not list((root / ".ckptd" / "nodes" / "local" / "inflight").iterdir())
