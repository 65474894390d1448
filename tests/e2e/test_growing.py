"""Parts that are filled file by file, with a real daemon."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List

import ckptd
import pytest
from ckptd._session.session import Session

PART = {"a": b"first", "b": bytes(range(256)) * 9000, "c": b"", "d": b"last" * 5000}
LARGER = {**PART, "b": bytes(range(256)) * 400_000, "e": b"behind it"}  # More than any segment.


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """The names of the requests that this process makes."""
    made: List[str] = []
    before = Session.call

    def call(session: Session, method: Any, request: Any, timeout: float) -> Any:
        made.append(type(request).__name__)
        return before(session, method, request, timeout)

    monkeypatch.setattr(Session, "call", call)
    return made


def save(run: ckptd.Run, tag: str, files: Dict[str, bytes]) -> None:
    with run.begin(tag) as part:
        for name, data in files.items():
            part.add(name, data)
    part.wait(timeout=60)


def test_part_no_larger_than_the_last_one_needs_no_call_for_its_files(tmp_path: pathlib.Path, calls: List[str]) -> None:
    extends = []
    with ckptd.LocalDaemon(str(tmp_path / "daemon"), pool_bytes=512 << 20) as daemon:
        run = ckptd.connect(daemon.endpoint).run(str(tmp_path / "ckpts"), rank=0, world_size=1)
        for tag, files in (("first", PART), ("same", PART), ("larger", LARGER), ("smaller", {"b": b"x"})):
            calls.clear()
            save(run, tag, files)
            extends.append(calls.count("ExtendRequest"))
            with run.open(tag) as checkpoint:
                assert {name: checkpoint.read(name) for name in checkpoint.files} == files
    assert extends == [4, 0, extends[2], 0] and 0 < extends[2] < len(LARGER)
