"""tools/bench bucket: its server keeps what it is sent, and its figures are of what was measured.

The case itself takes a minute and a half with --quick, so no test runs it.
"""

from __future__ import annotations

import http.client
import os
import pathlib
import subprocess
import sys
from typing import Iterator, List

import ckptd
import pytest
from bench.base import machine
from bench.base.context import BenchContext
from bench.base.daemon import Daemon
from bench.base.result import Result
from bench.cases.bucket import case
from bench.cases.bucket.server import URL, Server
from bench.cases.bucket.transfers import Transfer

ROOT = pathlib.Path(__file__).resolve().parents[2]
BYTES = (33 << 20) + 4321  # Three parts.


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tools/bench, for the processes of the bench."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def server(importable: None) -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    (tmp_path / "daemon").mkdir()
    with Daemon(tmp_path / "daemon", 64 << 20) as daemon, ckptd.connect(daemon.endpoint) as client:
        run = client.run(tmp_path / "root")
        run.save("step_1", files={"large.bin": os.urandom(BYTES), "small.bin": b"small"}).wait()
        yield tmp_path / "root/step_1"


def contents(folder: pathlib.Path) -> "dict[str, bytes]":
    return {name: (folder / name).read_bytes() for name in ("large.bin", "small.bin")}


def tool(server: Server, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [machine.program("ckptctl"), *arguments]
    return subprocess.run(command, env=server.environment, capture_output=True, text=True, timeout=120)


def test_server_gives_back_what_ckptctl_has_sent(
    server: Server, checkpoint: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert tool(server, "upload", str(checkpoint), f"{URL}/run").returncode == 0
    assert "OK" in tool(server, "verify", f"{URL}/run/step_1").stdout
    fetched = tool(server, "fetch", f"{URL}/run/step_1", str(tmp_path / "new"))
    assert fetched.returncode == 0, fetched.stderr
    assert contents(tmp_path / "new/step_1") == contents(checkpoint)
    assert server.cpu() > 0
    server.empty()
    assert tool(server, "verify", f"{URL}/run/step_1").returncode != 0


def test_server_refuses_what_ckptctl_asks_it_for_before_it_sends(server: Server) -> None:
    def put(key: str, **headers: str) -> int:
        connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("PUT", f"/bench/{key}", b"", named)
        return connection.getresponse().status

    assert put("claim", if_none_match="*") == 200
    assert put("claim", if_none_match="*") == 412, "two uploads could mix two checkpoints"
    assert put("probe", x_amz_checksum_crc32c="AAAAAA==") == 200
    assert put("probe", x_amz_checksum_crc32c="AAAAAQ==") == 400, "each upload would be read back"


@pytest.mark.parametrize("kind", ["threads", "crt"])
def test_server_gives_back_what_other_clients_have_sent(
    server: Server, checkpoint: pathlib.Path, tmp_path: pathlib.Path, kind: str
) -> None:
    # The other one needs it for CRC32C.
    pytest.importorskip("awscrt", reason="tools/bench bucket installs awscrt when it is run")
    for what, folder in (("upload", checkpoint), ("fetch", tmp_path / "new")):
        arguments = [kind, what, server.endpoint, "run", str(folder), "large.bin", "small.bin"]
        command = [sys.executable, "-m", "bench.cases.bucket.client_program", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "new") == contents(checkpoint)


def test_figures_are_ratios_to_the_faster_client_and_seconds_per_gigabyte(tmp_path: pathlib.Path) -> None:
    def turns(*seconds: float) -> List[Transfer]:
        return [Transfer(each, each / 2, each / 4) for each in seconds]

    measured = {}
    for what in ("upload", "fetch"):
        measured["crt", what] = turns(1.0, 2.0, 90.0)
        measured["threads", what] = turns(5.0, 4.0, 3.0)
        measured["ckptctl", what] = turns(4.0, 8.0, 4.0)
        measured["daemon", what] = turns(1.0, 1.0, 1.0)
    results: List[Result] = []
    case.report_transfers(
        BenchContext(tmp_path, quick=True, clients=[], results=results), 2_000_000_000, measured
    )
    found = {result.name: result for result in results}
    assert found["bucket.upload.vs_client"].value == 0.5 and found["bucket.upload.vs_client"].ok is False
    assert (
        found["bucket.fetch.daemon.vs_client"].value == 2.0
        and found["bucket.fetch.daemon.vs_client"].ok is True
    )
    assert found["bucket.fetch.cpu_s_per_gb"].value == 1.0
    limit = found["bucket.upload.vs_client"].limit or ""
    assert "s3transfer with awscrt 1.00 [0.02-2.00] GB/s" in limit and "ours 0.50 [0.25-0.50] GB/s" in limit
    assert "the server 0.50 s of CPU per GB" in limit
