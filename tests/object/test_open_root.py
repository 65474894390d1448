"""open_root("s3://...") reads a bucket as it reads a directory with the same checkpoints."""

from __future__ import annotations

import io
import pathlib
import random
import subprocess
from typing import Any, Callable

import ckptd
import pytest
import torch
from bucket_copies import MANIFEST, Copies, requests_of
from bucket_servers import BUCKET, BucketServer, with_moto
from checkpoint_files import CHUNK, encode_manifest, flip, saved, write_checkpoint
from ckptd._roots.bucket import bucket_file
from ckptd._wire.protocol import storage
from ckptd.local_daemon import find_program

STATE = {
    "w": torch.randn(300, 1000),
    "tied": torch.arange(7),
    "small": [torch.ones(i) for i in range(50)],
    "step": 3,
}
BIG = random.Random(5).randbytes(21 * CHUNK + 1234)


@pytest.fixture
def copies(server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(server, tmp_path, monkeypatch)


@pytest.fixture
def whole(copies: Copies) -> Copies:
    """Two checkpoints, the newest is step_2."""
    write_checkpoint(copies.folder, "step_1", 1, {"note.txt": b"one"}, 1, loss=0.5)
    files = {"model_0.pt": saved(STATE), "deep/er/note.txt": b"two", "e": b"", "big": BIG, "odd + name": b"odd"}
    write_checkpoint(copies.folder, "step_2", 2, files, 2)
    for tag in ("step_1", "step_2"):
        copies.copy(tag)
    return copies


def test_list_and_latest_are_those_of_a_directory_with_the_same_checkpoints(whole: Copies) -> None:
    there, here = whole.root(), ckptd.open_root(whole.folder)
    assert there.path == whole.url
    assert [info.tag for info in there.list()] == ["step_2", "step_1"] and there.list() == here.list()
    assert there.latest() == here.latest() == there.list()[0]
    assert ckptd.open_root(f"{whole.url}/").list() == here.list()
    with there.open("step_1") as checkpoint:
        assert checkpoint.info == here.list()[1] and checkpoint.read("note.txt") == b"one"


def test_list_has_what_comes_in_several_pages(whole: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    root = whole.root()
    s3: Any = root._place
    list_page = s3._store._client.list_objects_v2
    pages = []

    def list_one(**arguments: Any) -> Any:
        pages.append(list_page(MaxKeys=1, **arguments))
        return pages[-1]

    monkeypatch.setattr(s3._store._client, "list_objects_v2", list_one)
    assert [info.tag for info in root.list()] == ["step_2", "step_1"] and len(pages) >= 2


def test_checkpoint_may_lie_in_the_bucket_itself(whole: Copies) -> None:
    tag = f"top-{whole.prefix}"
    write_checkpoint(whole.folder, tag, 3, {"note.txt": b"top"})
    for name in ("note.txt", MANIFEST):
        whole.s3.put_object(Bucket=BUCKET, Key=f"{tag}/{name}", Body=(whole.folder / tag / name).read_bytes())
    root = ckptd.open_root(f"s3://{BUCKET}")
    with root.open(tag) as checkpoint:
        assert checkpoint.read("note.txt") == b"top"
    assert tag in [info.tag for info in root.list()]


def test_empty_prefix_has_no_checkpoint(copies: Copies) -> None:
    assert copies.root().list() == [] and copies.root().latest() is None
    for tag in ("latest", "step_1", "../step_1", ""):
        with pytest.raises(ckptd.NotFound) as caught:
            copies.root().open(tag)
        assert caught.value.reason == "NO_CHECKPOINT" and copies.url in str(caught.value)


def test_files_are_those_that_were_saved_bit_for_bit(whole: Copies) -> None:
    expected = torch.load(io.BytesIO(whole.get("step_2/model_0.pt")))
    with whole.root().open() as checkpoint:
        assert checkpoint.read("big") == BIG and checkpoint.read("e") == b""
        assert checkpoint.read("deep/er/note.txt") == b"two" and checkpoint.read("odd + name") == b"odd"
        target = {**STATE, "w": torch.zeros(300, 1000), "small": [torch.zeros(i) for i in range(50)]}
        loads = [
            checkpoint.load("model_0.pt"),
            checkpoint.load("model_0.pt", weights_only=False),
            checkpoint.load("model_0.pt", mmap=True),
            checkpoint.load("model_0.pt", into=target),
        ]
        assert loads[3] is target
        checkpoint._verify()
    for loaded in loads:
        assert loaded["step"] == 3 and torch.equal(loaded["w"], expected["w"]) and torch.equal(loaded["tied"], expected["tied"])
        assert all(torch.equal(one, other) for one, other in zip(loaded["small"], expected["small"]))


def test_what_ckptctl_has_uploaded_is_read(copies: Copies, tmp_path: pathlib.Path) -> None:
    write_checkpoint(copies.folder, "step_7", 7, {"model.pt": saved(STATE), "big": BIG}, 7)
    command = [find_program("ckptctl"), "upload", str(tmp_path / "step_7"), copies.url]
    subprocess.run(command, env=copies.server.environment(), check=True, timeout=120)
    with copies.root().open() as checkpoint:
        assert checkpoint.tag == "step_7" and torch.equal(checkpoint.load("model.pt")["w"], STATE["w"])
        assert checkpoint.read("big") == BIG


def test_slices_cost_the_chunks_that_they_touch_and_no_other(whole: Copies) -> None:
    root = whole.root()
    with root.open() as checkpoint:
        seen = requests_of(root)
        ranges = [("big", 5 * CHUNK + 7, 10), ("big", 5 * CHUNK + 100, 1), ("big", 9 * CHUNK - 1, 2), ("big", 0, 0)]
        assert checkpoint.read_ranges(ranges) == [BIG[at : at + size] for _, at, size in ranges]
        spans = [f"bytes={5 * CHUNK}-{6 * CHUNK - 1}", f"bytes={8 * CHUNK}-{10 * CHUNK - 1}"]
        assert sorted(seen) == [("big", span) for span in spans]


def test_parts_of_a_file_are_read_at_the_same_time_straight_to_their_place(
    whole: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_file, "_PART_BYTES", 2 * CHUNK)
    steps = []
    with whole.root().open() as checkpoint:
        monkeypatch.setattr(bucket_file.BucketFile, "_take_buffer", None)  # Nothing needs one.
        assert checkpoint.read("big", progress=lambda done, size: steps.append((done, size))) == BIG
    assert len(steps) >= 11 and steps == sorted(steps) and steps[-1] == (len(BIG), len(BIG))


def test_exception_from_progress_ends_the_read(whole: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_file, "_PART_BYTES", CHUNK)

    def stop(done: int, size: int) -> None:
        raise KeyboardInterrupt

    with whole.root().open() as checkpoint:
        with pytest.raises(KeyboardInterrupt):
            checkpoint.read("big", progress=stop)
        assert checkpoint.read("big") == BIG


def test_damage_of_a_byte_is_an_error_that_names_file_and_chunk(whole: Copies) -> None:
    whole.flip("step_2/big", 8 * CHUNK + 5)
    with whole.root().open() as checkpoint:
        for read in (
            lambda: checkpoint.read("big"),
            lambda: checkpoint.read_ranges([("big", 8 * CHUNK, 1)]),
            checkpoint._verify,
        ):
            with pytest.raises(ckptd.Corrupt, match="file big of checkpoint step_2 is corrupt: chunk 8,") as caught:
                read()
            assert caught.value.reason == "CORRUPT_FILE" and caught.value.details["chunk"] == 8
        assert checkpoint.read_ranges([("big", 7 * CHUNK, 9)]) == [BIG[7 * CHUNK : 7 * CHUNK + 9]]
    whole.flip("step_2/model_0.pt", 100_000)
    with whole.root().open() as checkpoint:
        for load in (lambda: checkpoint.load("model_0.pt"), lambda: checkpoint.load("model_0.pt", weights_only=False)):
            with pytest.raises(ckptd.Corrupt, match="file model_0.pt of checkpoint step_2 is corrupt: chunk 1,"):
                load()


@pytest.mark.parametrize("name", ["big", "e"])
@pytest.mark.parametrize("size", [None, 1, len(BIG) + 1], ids=["missing", "short", "long"])
@with_moto
def test_object_that_is_missing_or_of_another_size_is_named(whole: Copies, name: str, size: Any) -> None:
    if size is None:
        whole.delete(f"step_2/{name}")
    else:
        whole.put(f"step_2/{name}", (BIG + b"x")[:size])
    with whole.root().open() as checkpoint:
        said = "it is not in the bucket" if size is None else f"it has {size} bytes"
        for read in (lambda: checkpoint.read(name), checkpoint._verify):
            with pytest.raises(ckptd.Corrupt, match=f"file {name} of checkpoint step_2 is corrupt: {said}") as caught:
                read()
            assert caught.value.reason == ("CORRUPT_FILE" if size is None else "SHORT_FILE")
        if name == "big" and size == 1:
            with pytest.raises(ckptd.Corrupt, match="it has 1 bytes"):
                checkpoint.read_ranges([("big", 8 * CHUNK, 1)])


def test_upload_that_has_not_ended_is_no_checkpoint(whole: Copies) -> None:
    manifest = whole.get(f"step_2/{MANIFEST}")
    whole.put(f"step_2/{MANIFEST}.new", manifest)
    whole.delete(f"step_2/{MANIFEST}")
    root = whole.root()
    assert [info.tag for info in root.list()] == ["step_1"]
    latest = root.latest()
    assert latest is not None and latest.tag == "step_1"
    with pytest.raises(ckptd.NotFound, match="an upload that has not ended is none") as caught:
        root.open("step_2")
    assert caught.value.reason == "NO_CHECKPOINT"


def damage_head(manifest: bytes) -> bytes:
    return manifest[:20] + bytes([manifest[20] ^ 1]) + manifest[21:]


def damage_body(manifest: bytes) -> bytes:
    return manifest[:-1] + bytes([manifest[-1] ^ 1])


@pytest.mark.parametrize("damage", [damage_head, damage_body, lambda data: data[:-1], lambda data: data[:9]])
@with_moto
def test_damaged_manifest_is_left_out_of_the_list_and_is_an_error_if_named(
    whole: Copies, damage: "Callable[[bytes], bytes]", caplog: pytest.LogCaptureFixture
) -> None:
    whole.put(f"step_2/{MANIFEST}", damage(whole.get(f"step_2/{MANIFEST}")))
    root = whole.root()
    assert [info.tag for info in root.list()] == ["step_1"]
    assert f"the manifest of {whole.url}/step_2 is damaged" in caplog.text
    latest = root.latest()
    assert latest is not None and latest.tag == "step_1"
    with pytest.raises(ckptd.Corrupt) as caught:
        root.open("step_2")
    assert (caught.value.reason, caught.value.tag) == ("CORRUPT_MANIFEST", "step_2")
    whole.delete(f"step_1/{MANIFEST}")
    with pytest.raises(ckptd.Corrupt, match="no other may be opened in its place"):
        root.latest()


@with_moto
def test_renamed_checkpoint_is_damaged(whole: Copies) -> None:
    whole.put(f"step_3/{MANIFEST}", whole.get(f"step_2/{MANIFEST}"))
    assert [info.tag for info in whole.root().list()] == ["step_2", "step_1"]
    with pytest.raises(ckptd.Corrupt, match="it is of tag step_2: the objects were renamed or copied"):
        whole.root().open("step_3")


@with_moto
def test_path_that_leaves_the_checkpoint_is_never_asked_for(copies: Copies) -> None:
    body = storage.ManifestBody()
    body.files.add(path="../other", size_bytes=1, chunk_crc32c=[1])
    summary = storage.ManifestSummary(format_version=1, tag="t", sequence=1, file_count=1, chunk_bytes=CHUNK)
    copies.put(f"t/{MANIFEST}", encode_manifest(summary, body.SerializeToString()))
    root = copies.root()
    with root.open("t") as checkpoint:
        seen = requests_of(root)
        with pytest.raises(ckptd.NotFound, match="cannot be the name of a file") as caught:
            checkpoint.read("../other")
        assert caught.value.reason == "INVALID_PATH" and seen == []


@with_moto
def test_the_newest_is_the_one_that_was_begun_last_as_for_a_resume(copies: Copies) -> None:
    """A root that was lost may have begun its sequences anew."""
    for tag, sequence, begun in (("before", 900, 1_000), ("after", 3, 2_000)):
        summary = storage.ManifestSummary(
            format_version=1, tag=tag, sequence=sequence, create_time_us=begun, chunk_bytes=CHUNK
        )
        copies.put(f"{tag}/{MANIFEST}", encode_manifest(summary, b""))
    assert [info.tag for info in copies.root().list()] == ["after", "before"]
    latest = copies.root().latest()
    assert latest is not None and latest.tag == "after"


@with_moto
def test_suspect_checkpoint_is_passed_over_as_in_a_directory(whole: Copies) -> None:
    summary = storage.ManifestSummary(format_version=1, tag="s", sequence=9, chunk_bytes=CHUNK, suspect="NaN")
    (whole.folder / "s/.ckptd").mkdir(parents=True)
    (whole.folder / "s" / MANIFEST).write_bytes(encode_manifest(summary, b""))
    whole.copy("s")
    with whole.root().open() as there, ckptd.open_root(whole.folder).open() as here:
        assert there.tag == "step_2" and there.passed_over == here.passed_over and len(there.passed_over) == 1


def test_tag_that_is_saved_again_while_it_is_open_is_no_longer_read(whole: Copies) -> None:
    with whole.root().open("step_2") as checkpoint:
        assert checkpoint.read_ranges([("big", 0, 5)]) == [BIG[:5]]
        again = random.Random(6).randbytes(len(BIG))
        other = ckptd_folder(whole, "again")
        write_checkpoint(other, "step_2", 3, {"big": again, "model_0.pt": saved(STATE)}, 2)
        whole.folder = other
        whole.copy("step_2")
        for name in ("big", "e"):
            if name == "e":
                whole.delete("step_2/e")
            with pytest.raises(ckptd.NotFound, match="step_2 was replaced by another one while it was being read") as caught:
                checkpoint.read(name)
            assert caught.value.reason == "NO_CHECKPOINT"
    with whole.root().open("step_2") as checkpoint:
        assert checkpoint.read("big") == again


def ckptd_folder(copies: Copies, name: str) -> pathlib.Path:
    folder = copies.folder / f".{name}"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("what", [MANIFEST, "big"])
def test_tag_that_is_removed_while_it_is_open_is_said_to_be_removed(whole: Copies, what: str) -> None:
    """A removal takes the manifest first."""
    with whole.root().open("step_2") as checkpoint:
        whole.delete(f"step_2/{MANIFEST}")
        if what == "big":
            whole.delete("step_2/big")
            with pytest.raises(ckptd.NotFound, match="step_2 was removed while it was being read"):
                checkpoint.read("big")
        else:
            assert checkpoint.read("big") == BIG  # What is there still is what was saved.


def test_directory_and_bucket_say_the_same_of_damage(whole: Copies) -> None:
    flip(whole.folder / "step_2/big", 3 * CHUNK)
    whole.copy("step_2")
    said = []
    for root in (whole.root(), ckptd.open_root(whole.folder)):
        with root.open() as checkpoint, pytest.raises(ckptd.Corrupt) as caught:
            checkpoint.read("big")
        said.append((str(caught.value), caught.value.reason, caught.value.ranks, caught.value.details))
    assert said[0] == said[1]
