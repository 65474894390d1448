"""What a reader sees of a checkpoint that another node has just written, or removes: names and sizes that a network file system
shows late are looked at again, and a removal is no damage. A pause of the reader is where the file system changes here.
"""

from __future__ import annotations

import errno
import os
import pathlib
import types
from typing import Any, Callable, List

import ckptd
import pytest
from ckptd._membership.membership import STALE_SECONDS
from ckptd._reading import local_files, verified_file
from ckptd._reading.local_files import LocalFiles
from checkpoint_files import write_checkpoint

CONTENT = b"of rank 0"


class Time:
    """Stands in for the module. Each pause ends at once, after `at_pause`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses = 0
        self.at_pause: Callable[[], Any] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1
        self.at_pause()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(local_files, "time", made)
    return made


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """The directory of a checkpoint that two nodes have written."""
    write_checkpoint(tmp_path, "step_2", 5, {"big": CONTENT}, 2)
    for node in ("a", "b"):
        (tmp_path / f"step_2/.ckptd/node.{node}.0123abcd-5").write_bytes(b"")
    return tmp_path / "step_2"


@pytest.fixture
def files(folder: pathlib.Path, request: pytest.FixtureRequest) -> LocalFiles:
    made = LocalFiles(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), "step_2", "step_2")
    request.addfinalizer(made.close)
    return made


def read(files: LocalFiles) -> bytes:
    with files.open("big", 1) as file:
        return bytes(file.read())


def one_node_wrote(folder: pathlib.Path) -> None:
    for record in (folder / ".ckptd").glob("node.*"):
        record.unlink()


def test_a_name_that_is_seen_late_is_waited_for(folder: pathlib.Path, files: LocalFiles, time: Time) -> None:
    (folder / "big").rename(folder / "unseen")
    time.at_pause = lambda: time.pauses == 2 and (folder / "unseen").rename(folder / "big")
    assert read(files) == CONTENT and time.pauses == 2


@pytest.mark.parametrize("shown", [len(CONTENT) + 2400, 0], ids=["longer", "shorter"])
def test_a_size_that_is_seen_late_is_waited_for(folder: pathlib.Path, files: LocalFiles, time: Time, shown: int) -> None:
    os.truncate(folder / "big", shown)
    time.at_pause = lambda: (folder / "big").write_bytes(CONTENT)
    assert read(files) == CONTENT and time.pauses == 1


@pytest.mark.parametrize("damage", [pathlib.Path.unlink, lambda path: os.truncate(path, 3)], ids=["missing", "short"])
def test_damage_of_several_nodes_is_said_when_no_file_system_would_still_be_late(
    folder: pathlib.Path, files: LocalFiles, time: Time, damage: "Callable[[pathlib.Path], None]"
) -> None:
    damage(folder / "big")
    with pytest.raises(ckptd.Corrupt, match="big"):
        read(files)
    assert STALE_SECONDS <= time.now < STALE_SECONDS + 1


def test_damage_of_one_node_is_said_at_once(folder: pathlib.Path, files: LocalFiles, time: Time) -> None:
    one_node_wrote(folder)
    (folder / "big").unlink()
    with pytest.raises(ckptd.Corrupt, match="big"):
        read(files)
    assert time.pauses == 0


@pytest.mark.parametrize("nodes", ["one", "several"])
@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_checkpoint_that_is_removed_under_its_reader_is_not_called_damaged(
    folder: pathlib.Path, files: LocalFiles, time: Time, nodes: str, replaced: bool
) -> None:
    if nodes == "one":
        one_node_wrote(folder)
    (folder / ".ckptd").rename(folder / ".ckptd.removed.5")
    (folder / "big").unlink()
    if replaced:
        write_checkpoint(folder.parent, "step_2", 6, {"other": CONTENT}, 2)
    with pytest.raises(ckptd.NotFound, match="step_2 was removed while it was being read") as caught:
        read(files)
    assert caught.value.reason == "NO_CHECKPOINT" and time.pauses == 0


def test_a_removal_that_is_seen_late_is_not_called_damage(folder: pathlib.Path, files: LocalFiles, time: Time) -> None:
    (folder / "big").unlink()
    time.at_pause = lambda: (folder / ".ckptd/manifest").unlink()
    with pytest.raises(ckptd.NotFound, match="removed while it was being read"):
        read(files)
    assert time.pauses == 1


def test_a_removal_between_two_looks_is_not_called_damage(
    folder: pathlib.Path, files: LocalFiles, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "big").unlink()
    listed = os.listdir

    def removes_first(path: str) -> List[str]:
        (folder / ".ckptd").rename(folder / ".ckptd.removed.5")
        return listed(path)

    monkeypatch.setattr(local_files.os, "listdir", removes_first)
    with pytest.raises(ckptd.NotFound, match="removed while it was being read"):
        read(files)
    assert time.pauses == 1


def test_a_file_that_is_removed_on_another_node_while_it_is_open_is_not_called_damaged(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale: List[Any] = [types.SimpleNamespace(errno=errno.ESTALE, chunk=0, found=0)]
    with files.open("big", 1) as file:
        monkeypatch.setattr(verified_file.native, "read_verified", lambda *_: stale.pop())
        with pytest.raises(ckptd.NotFound, match="removed while it was being read"):
            file.read()
    assert stale == []
