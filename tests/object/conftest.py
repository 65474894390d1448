from __future__ import annotations

import pathlib
from typing import Iterator

import pytest
from bucket_servers import BucketServer, start_moto
from swift_server import start_swift
from upload_job import Job


@pytest.fixture(scope="session", params=["moto", "swift"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BucketServer]:
    """Each test runs against both."""
    yield from start_moto() if request.param == "moto" else start_swift(tmp_path_factory.mktemp("swift"))


@pytest.fixture
def job(server: BucketServer, tmp_path: pathlib.Path) -> Iterator[Job]:
    made = Job(tmp_path, server)
    yield made
    made.close()
