from __future__ import annotations

import pathlib
import uuid
from typing import Any, Iterator

import pytest
from bucket_root_job import BucketRootJob
from bucket_servers import BucketServer, start_moto
from fault_cases import Cases, Shared, ToolCases
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


@pytest.fixture
def root(server: BucketServer, tmp_path: pathlib.Path) -> Iterator[BucketRootJob]:
    made = BucketRootJob(tmp_path, server)
    yield made
    made.close()


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes what joins from now on a new launch of the job."""

    def begin() -> None:
        monkeypatch.setenv("CKPTD_LAUNCH_ID", uuid.uuid4().hex)

    begin()
    return begin


@pytest.fixture(scope="module")
def shared_cases(server: BucketServer) -> Iterator[Shared[Cases]]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CKPTD_LAUNCH_ID", "")  # Cases change it.
        shared = Shared(server, Cases)
        yield shared
        shared.close()


@pytest.fixture
def cases(shared_cases: Shared[Cases]) -> Cases:
    return shared_cases.get()


@pytest.fixture(scope="module")
def shared_tool(server: BucketServer) -> Iterator[Shared[ToolCases]]:
    shared = Shared(server, ToolCases)
    yield shared
    shared.close()


@pytest.fixture
def tool(shared_tool: Shared[ToolCases]) -> ToolCases:
    return shared_tool.get()
