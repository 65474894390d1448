"""What lies at a path: a checkpoint of ckptd by whatever path, one of another program, one without its manifest."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import zipfile

import ckptd
import pytest
import torch
from checkpoint_files import flip, write_checkpoint
from ckptd import _checkpoint_paths
from ckptd._saving import file_values


def archive_of_ckptd(value: object) -> bytes:
    return b"".join(bytes(piece) for piece in file_values.image_of("a.pt", value).stream())


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "root"
    write_checkpoint(made, "step-1", 1, {"a.pt": archive_of_ckptd({"w": torch.ones(9)}), "b": b"bytes"}, 1)
    (made / ".ckptd/nodes").mkdir(parents=True)
    return made


@pytest.mark.parametrize("how", ["link in the root", "link from outside", "link to a link", "link to the root", "moved away", "renamed"])
def test_opens_and_verifies_checkpoint_by_other_paths(root: pathlib.Path, tmp_path: pathlib.Path, how: str) -> None:
    path = root / "best"
    if how == "link in the root":
        path.symlink_to("step-1")
    elif how == "link from outside":
        path = tmp_path / "outside"
        path.symlink_to(root / "step-1")
    elif how == "link to a link":
        (root / "better").symlink_to("step-1")
        path.symlink_to("better")
    elif how == "link to the root":
        (tmp_path / "other").symlink_to(root)
        path = tmp_path / "other/step-1"
    elif how == "moved away":
        path = tmp_path / "elsewhere/step-1"
        path.parent.mkdir()
        (root / "step-1").rename(path)
    else:
        (root / "step-1").rename(path)
    assert _checkpoint_paths.is_committed(str(path))
    with ckptd.open_root(path.parent).open(path.name) as checkpoint:
        assert checkpoint.tag == "step-1" and checkpoint.read("b") == b"bytes"
    flip(path / "b", 2)
    with ckptd.open_root(path.parent).open(path.name) as checkpoint, pytest.raises(ckptd.Corrupt):
        checkpoint.read("b")


@pytest.mark.parametrize("target", ["nothing", "loop", "file"])
def test_link_to_no_checkpoint_is_not_found(root: pathlib.Path, target: str) -> None:
    (root / "file").write_text("x")
    (root / "loop").symlink_to("best")
    (root / "best").symlink_to(target)
    assert not _checkpoint_paths.is_committed(str(root / "best"))
    with pytest.raises(ckptd.NotFound, match="no checkpoint best is committed"):
        ckptd.open_root(root).open("best")


@pytest.mark.parametrize("left", ["part records", "nothing"])
def test_checkpoint_whose_manifest_is_missing_is_corrupt(root: pathlib.Path, left: str) -> None:
    if left == "nothing":
        shutil.rmtree(root / "step-1/.ckptd")
    else:
        (root / "step-1/.ckptd/manifest").rename(root / "step-1/.ckptd/part-00000")
    with pytest.raises(ckptd.Corrupt, match="written by ckptd.*move it out of the root") as caught:
        _checkpoint_paths.is_committed(str(root / "step-1"))
    assert caught.value.reason == "CORRUPT_MANIFEST" and caught.value.tag == "step-1"
    with pytest.raises(ckptd.Corrupt):
        ckptd.open_root(root).open("step-1")


def test_files_of_ckptd_outside_of_its_roots_are_foreign(root: pathlib.Path) -> None:
    shutil.rmtree(root / "step-1/.ckptd")
    shutil.rmtree(root / ".ckptd")
    assert not _checkpoint_paths.is_committed(str(root / "step-1"))


def test_files_of_other_programs_in_a_root_are_foreign_and_said_to_be_unverified(
    root: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "theirs").mkdir()
    torch.save({"w": torch.ones(9)}, root / "theirs/a.pt")
    (root / "theirs/b.pt").write_bytes(b"PK\x03\x04 and no archive")
    shutil.copy(root / "step-1/a.pt", root / "theirs/c.pt")
    (root / "file").write_text("x")
    for name in ("theirs", "file", "missing"):
        assert not _checkpoint_paths.is_committed(str(root / name))
    with caplog.at_level(logging.WARNING, "ckptd"):
        for _ in range(2):
            for name in ("theirs", "missing"):
                _checkpoint_paths.warn_unverified(str(root / name))
    assert [record.message for record in caplog.records] == [
        f"ckptd: {root}/theirs is not a checkpoint of ckptd and has no checksums: it is read unverified"
    ]


@pytest.mark.parametrize("tool", ["DeepSpeed's", "ckptd's"])
def test_what_a_converter_has_made_beside_copies_of_ckptds_files_is_foreign(root: pathlib.Path, tool: str) -> None:
    other = root / "converted" / ("zero" if tool == "DeepSpeed's" else "optim") / "w.pt"
    other.parent.mkdir(parents=True)
    shutil.copy(root / "step-1/a.pt", root / "converted/a.pt")
    torch.save({"w": torch.ones(9)}, other)
    if tool == "ckptd's":  # ckptctl convert writes no serialization id.
        without_id(other)
    assert not _checkpoint_paths.is_committed(str(root / "converted"))


def without_id(path: pathlib.Path) -> None:
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist() if "serialization_id" not in name}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)


def test_files_of_ckptd_beside_some_of_torch_are_ckptds(root: pathlib.Path) -> None:
    shutil.rmtree(root / "step-1/.ckptd")
    torch.save({"w": torch.ones(9)}, root / "step-1/scheduler.pt")  # As NxD and the Trainer of transformers have.
    with pytest.raises(ckptd.Corrupt):
        _checkpoint_paths.is_committed(str(root / "step-1"))


def test_root_that_is_taken_for_a_checkpoint_is_foreign(root: pathlib.Path) -> None:
    assert not _checkpoint_paths.is_committed(str(root)) and os.path.isdir(root / ".ckptd")
