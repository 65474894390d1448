"""Reading checkpoints without a daemon: what is whole comes back, what is not is named. The files are made
here, by the documented format.
"""

from __future__ import annotations

import datetime
import errno
import logging
import os
import pathlib
import random
import struct
import types
from typing import Any, List

import ckptd
import pytest
import torch
from ckptd._memory import native
from ckptd._reading.verified_file import RemoteFile
from ckptd._wire.protocol import storage
from checkpoint_files import CHUNK, encode_manifest, flip, saved, write_checkpoint

STATE = {
    "w": torch.randn(300, 1000),
    "tied": torch.arange(7),
    "small": [torch.ones(i) for i in range(200)],
    "step": 3,
}
CONTENT = random.Random(5).randbytes(5 * CHUNK + 1234)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    write_checkpoint(
        tmp_path,
        "step_2",
        5,
        {"model_0.pt": saved(STATE), "deep/er/note.txt": b"two", "e": b"", "big": CONTENT},
        2,
    )
    write_checkpoint(tmp_path, "step_9", 4, {"note.txt": b"nine"}, 9, loss=0.5)
    (tmp_path / ".ckptd/nodes").mkdir(parents=True)
    (tmp_path / "not_ours").mkdir()
    (tmp_path / "a_file").write_text("x")
    (tmp_path / "link").symlink_to("step_2")
    (tmp_path / "link_to_a_file").symlink_to("a_file")
    return tmp_path


def test_list_has_checkpoints_by_sequence_and_nothing_else(root: pathlib.Path) -> None:
    infos = ckptd.open_root(root).list()
    assert [(info.tag, info.step, info.sequence) for info in infos] == [("step_2", 2, 5), ("step_9", 9, 4)]
    assert infos[1].metrics == {"loss": 0.5}
    assert infos[1].files == ("note.txt",) and infos[1].bytes == 4 and infos[1].level == "committed"
    assert infos[0].time is not None and infos[0].time.year == 2023
    latest = ckptd.open_root(str(root)).latest()
    assert latest is not None and latest == infos[0]


def test_description_of_a_checkpoint_shows_what_differs_from_the_defaults() -> None:
    time = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)
    made = ckptd.CheckpointInfo("step_0", 0, 7, 1, 2, 1000, {"loss": 0.5}, (), "committed", time, resident=True)
    assert repr(made) == (
        "CheckpointInfo(tag='step_0', step=0, sequence=7, attempt=1, world_size=2, bytes=1000, metrics={'loss': 0.5}, "
        "level='committed', time=2026-01-02 03:04:05 UTC, resident=True)"
    )
    bare = ckptd.CheckpointInfo("a", None, 1, 1, 1, 0, {}, (), "committed", None)
    assert repr(bare) == "CheckpointInfo(tag='a', sequence=1, attempt=1, world_size=1, bytes=0, level='committed')"


def test_files_come_back_byte_for_byte(root: pathlib.Path) -> None:
    with ckptd.open_root(root).open() as checkpoint:
        assert checkpoint and checkpoint.tag == "step_2" and checkpoint.step == 2
        assert set(checkpoint.files) == {"model_0.pt", "deep/er/note.txt", "e", "big"}
        assert checkpoint.read("deep/er/note.txt") == b"two"
        assert checkpoint.read("e") == b""
        assert checkpoint.read("big") == CONTENT


def test_torch_objects_come_back_equal(root: pathlib.Path) -> None:
    with ckptd.open_root(root).open("step_2") as checkpoint:
        back = checkpoint.load("model_0.pt")
    assert torch.equal(back["w"], STATE["w"]) and back["step"] == 3
    assert all(torch.equal(a, b) for a, b in zip(back["small"], STATE["small"]))
    back["w"].add_(1)  # The memory belongs to the caller.
    with ckptd.open_root(root).open("step_2") as checkpoint:
        assert torch.equal(checkpoint.load("model_0.pt", map_location="cpu")["w"], STATE["w"])


def test_a_file_can_be_read_in_any_order_and_piece(root: pathlib.Path) -> None:
    with ckptd.open_root(root).open() as checkpoint, checkpoint._open("big") as file:
        pick = random.Random(1)
        for _ in range(500):
            at, size = (
                pick.randrange(len(CONTENT) + 10),
                pick.choice([0, 1, 100, CHUNK, 3 * CHUNK, len(CONTENT)]),
            )
            file.seek(at)
            assert file.read(size) == CONTENT[at : at + size]
        assert file.seek(-5, os.SEEK_END) == len(CONTENT) - 5
        assert file.read() == CONTENT[-5:] and file.tell() == len(CONTENT)


@pytest.mark.parametrize("at", [0, 3 * CHUNK, 5 * CHUNK + 1233])
def test_one_wrong_bit_is_corrupt_and_names_file_and_chunk(root: pathlib.Path, at: int) -> None:
    flip(root / "step_2/big", at)
    with ckptd.open_root(root).open() as checkpoint:
        with pytest.raises(ckptd.Corrupt) as caught:
            checkpoint.read("big")
        error = caught.value
        begin = at // CHUNK * CHUNK
        assert error.reason == "CORRUPT_FILE" and error.tag == "step_2" and error.ranks == (0,)
        assert error.details["path"] == "big" and error.details["chunk"] == at // CHUNK
        assert error.details["expected"] == native.crc32c(CONTENT[begin : begin + CHUNK])
        assert error.details["found"] == native.crc32c(
            (root / "step_2/big").read_bytes()[begin : begin + CHUNK]
        )
        for word in ("big", "step_2", f"chunk {at // CHUNK}", f"{error.details['expected']:#010x}"):
            assert word in str(error)
        assert checkpoint.read("e") == b""  # The other files are intact.


def test_wrong_bit_in_a_tensor_is_corrupt_though_torch_would_load_it(root: pathlib.Path) -> None:
    path = root / "step_2/model_0.pt"
    at = path.read_bytes().index(STATE["w"].numpy().tobytes()[:64])
    flip(path, at + 100_000)
    torch.load(path)
    with ckptd.open_root(root).open() as checkpoint, pytest.raises(ckptd.Corrupt, match="chunk 1"):
        checkpoint.load("model_0.pt")


@pytest.mark.parametrize("change", [-1, 1, -CHUNK])
def test_a_file_of_another_size_is_corrupt(root: pathlib.Path, change: int) -> None:
    path = root / "step_2/big"
    os.truncate(path, path.stat().st_size + change)
    with (
        ckptd.open_root(root).open() as checkpoint,
        pytest.raises(ckptd.Corrupt, match="were saved") as caught,
    ):
        checkpoint.read("big")
    assert caught.value.reason == "SHORT_FILE"


def test_missing_file_is_corrupt_and_unknown_name_is_not_found(root: pathlib.Path) -> None:
    (root / "step_2/big").unlink()
    with ckptd.open_root(root).open() as checkpoint:
        with pytest.raises(ckptd.Corrupt, match="big"):
            checkpoint.read("big")
        with pytest.raises(ckptd.NotFound, match='no file "other"; it has .*model_0.pt') as caught:
            checkpoint.read("other")
        assert caught.value.reason == "UNKNOWN_FILE"
        with pytest.raises(ckptd.NotFound):
            checkpoint.load("../step_9/note.txt")


@pytest.mark.parametrize("component", ["deep", "deep/er", "deep/er/note.txt"])
def test_a_link_in_the_place_of_a_file_or_folder_is_not_followed(root: pathlib.Path, component: str) -> None:
    place = root / "step_2" / component
    place.rename(root / "moved")
    place.symlink_to(root / "moved")
    with ckptd.open_root(root).open() as checkpoint, pytest.raises(ckptd.Corrupt, match="cannot be opened"):
        checkpoint.read("deep/er/note.txt")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [".ckptd/damaged", "a/.ckptd/manifest", "a/f", "b"])
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "link to a device", "directory"])
def test_what_is_no_file_is_neither_waited_for_nor_read(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    root = tmp_path / "root"
    write_checkpoint(root, "a", 1, {"f": b"content"})
    write_checkpoint(root, "older", 0, {"f": b"older"})
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path if kind == "pipe" else tmp_path / "pipe")
        if kind != "pipe":
            path.symlink_to(tmp_path / "pipe" if kind == "link to a pipe" else "/dev/zero")
    reader = ckptd.open_root(root)
    if name == "a/.ckptd/manifest":
        with reader.open() as checkpoint:
            assert checkpoint.tag == "older"
        with pytest.raises(ckptd.CkptdError):
            reader.open("a")
        return
    with reader.open() as checkpoint:
        assert checkpoint.tag == "a" and not checkpoint.info.damage
        if name != "a/f":
            assert checkpoint.read("f") == b"content"
            return
        with pytest.raises(ckptd.Corrupt, match="cannot be opened"):
            checkpoint.read("f")


def test_record_of_damages_behind_a_link_is_not_followed(tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    write_checkpoint(other, "a", 1, {"f": b"x"})
    (other / ".ckptd").mkdir()
    (other / ".ckptd/damaged").write_bytes(b"of another root")
    root = tmp_path / "root"
    write_checkpoint(root, "a", 1, {"f": b"x"})
    (root / ".ckptd").symlink_to(other / ".ckptd")
    with ckptd.open_root(root).open() as checkpoint:
        assert checkpoint.read("f") == b"x"


def test_latest_of_manifests_that_are_all_damaged_is_corrupt_and_not_none(root: pathlib.Path) -> None:
    for tag in ("step_2", "step_9"):
        os.truncate(root / tag / ".ckptd/manifest", 20)
    for call in (ckptd.open_root(root).latest, ckptd.open_root(root).open):
        with pytest.raises(ckptd.Corrupt, match="step_2: .*20 bytes") as caught:
            call()
        assert caught.value.reason == "CHECKPOINT_DAMAGED"


MANIFEST = "step_2/.ckptd/manifest"


@pytest.mark.parametrize("at", [0, 8, 12, 16, 20, 24, 33, 40, 4096, 4200])
def test_manifest_with_one_wrong_bit_is_corrupt_and_the_older_checkpoint_is_latest(
    root: pathlib.Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    flip(root / MANIFEST, at)
    with pytest.raises(ckptd.Corrupt) as caught:
        ckptd.open_root(root).open("step_2")
    assert caught.value.reason == "CORRUPT_MANIFEST" and caught.value.tag == "step_2"
    with caplog.at_level(logging.WARNING, "ckptd"):
        assert [info.tag for info in ckptd.open_root(root).list()] == ["step_9"]
    assert "step_2" in caplog.text


@pytest.mark.parametrize("size", [0, 10, 4095, 4096, 4100])
def test_a_manifest_that_ends_early_is_corrupt(root: pathlib.Path, size: int) -> None:
    os.truncate(root / MANIFEST, size)
    with pytest.raises(ckptd.Corrupt):
        ckptd.open_root(root).open("step_2")


def test_manifest_with_trailing_bytes_is_corrupt(root: pathlib.Path) -> None:
    with open(root / MANIFEST, "ab") as file:
        file.write(b"x")
    with pytest.raises(ckptd.Corrupt, match="more than"):
        ckptd.open_root(root).open("step_2")


def rewrite(root: pathlib.Path, change: Any) -> None:
    """Writes an intact manifest with other content."""
    data = (root / MANIFEST).read_bytes()
    size = struct.unpack_from("<I", data, 12)[0]
    summary = storage.ManifestSummary.FromString(data[36 : 36 + size])
    body = storage.ManifestBody.FromString(data[4096:])
    change(summary, body)
    (root / MANIFEST).write_bytes(encode_manifest(summary, body.SerializeToString()))


def more_files(summary: Any, body: Any) -> None:
    summary.file_count += 1


def twice(summary: Any, body: Any) -> None:
    body.files[1].path = body.files[0].path


def fewer_checksums(summary: Any, body: Any) -> None:
    del body.files[0].chunk_crc32c[:]


def no_chunks(summary: Any, body: Any) -> None:
    summary.chunk_bytes = 0


@pytest.mark.parametrize("change", [more_files, twice, fewer_checksums, no_chunks])
def test_a_manifest_that_contradicts_itself_is_corrupt(root: pathlib.Path, change: Any) -> None:
    rewrite(root, change)
    with pytest.raises(ckptd.Corrupt):
        ckptd.open_root(root).open("step_2")


def test_a_manifest_of_a_later_version_says_to_install_a_newer_package(root: pathlib.Path) -> None:
    data = bytearray((root / MANIFEST).read_bytes())
    struct.pack_into("<I", data, 8, 2)
    struct.pack_into("<I", data, 32, native.crc32c(bytes(data[:32])))
    (root / MANIFEST).write_bytes(data)
    with pytest.raises(ckptd.Refused, match="newer") as caught:
        ckptd.open_root(root).open("step_2")
    assert caught.value.reason == "NEWER_FORMAT"


def test_renamed_checkpoint_is_not_listed_under_its_new_name(root: pathlib.Path) -> None:
    (root / "step_2").rename(root / "step_3")
    assert [info.tag for info in ckptd.open_root(root).list()] == ["step_9"]


@pytest.mark.parametrize(
    "tag", ["nothing", "not_ours", "a_file", "link_to_a_file", "", ".", "..", ".ckptd", "../x", "step_2/deep", "x\0y"]
)
def test_folder_that_is_not_a_checkpoint_is_not_found(root: pathlib.Path, tag: str) -> None:
    with pytest.raises(ckptd.NotFound) as caught:
        ckptd.open_root(root).open(tag)
    assert caught.value.reason == "NO_CHECKPOINT"


def test_an_empty_root_has_no_latest(tmp_path: pathlib.Path) -> None:
    root = ckptd.open_root(tmp_path)
    assert root.latest() is None and root.list() == []
    with pytest.raises(ckptd.NotFound, match="latest"):
        root.open()
    with pytest.raises(ckptd.NotFound, match="not a directory"):
        ckptd.open_root(tmp_path / "missing")


def test_empty_checkpoint_is_falsy_and_not_found_when_it_is_used() -> None:
    none = ckptd.Checkpoint(None, None)
    assert not none
    with none as same:
        assert same is none
    uses: List[Any] = [lambda: none.tag, lambda: none.read("x"), lambda: none.load("x"), lambda: none.files]
    for use in uses:
        with pytest.raises(ckptd.NotFound, match="no checkpoint to resume from"):
            use()


def test_reading_a_closed_checkpoint_is_not_found(root: pathlib.Path) -> None:
    checkpoint = ckptd.open_root(root).open()
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(ckptd.NotFound, match="is closed"):
        checkpoint.read("e")


@pytest.mark.filterwarnings("ignore")
def test_classes_that_could_run_code_are_refused_unless_they_are_named(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"path": pathlib.PurePosixPath("/x")})})
    with ckptd.open_root(tmp_path).open() as checkpoint:
        with pytest.raises(ckptd.Refused, match="safe_globals") as caught:
            checkpoint.load("m.pt")
        assert caught.value.reason == "UNSAFE_GLOBALS" and "weights_only=False" in str(caught.value)
        assert "(pathlib.PurePosixPath); if you trust the file" in str(caught.value)
        assert "load('m.pt', safe_globals=[pathlib.PurePosixPath])" in str(caught.value)
        assert "\x1b" not in str(caught.value) and "\n" not in str(caught.value)
        assert checkpoint.load("m.pt", safe_globals=[pathlib.PurePosixPath])["path"] == pathlib.PurePosixPath(
            "/x"
        )
        assert checkpoint.load("m.pt", weights_only=False)["path"] == pathlib.PurePosixPath("/x")


def test_load_needs_no_more_memory_than_the_tensors(tmp_path: pathlib.Path) -> None:
    """The bytes of a storage are verified on their way into it, without a copy of the file beside."""
    import subprocess
    import sys

    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"w": torch.zeros(64 << 20)})})  # 256 MiB
    code = f"""
import resource, torch, ckptd
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ckptd.open_root({str(tmp_path)!r}).open() as checkpoint:
    state = checkpoint.load("m.pt")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 1.25 * (256 << 20)


def test_an_io_error_of_the_daemon_is_not_corruption() -> None:
    class OfADaemon:
        checkpoints = types.SimpleNamespace(ReadFile=None)

        def __init__(self, reason: str) -> None:
            self.error = ckptd.errors.make("DATA_LOSS", reason, "chunk 0 cannot be read")

        def stream(self, *_: Any) -> Any:
            raise self.error

    for reason, kind in (
        ("IO_ERROR", ckptd.CheckpointFailed),
        ("SESSION_LOST", ckptd.CheckpointFailed),
        ("CORRUPT_FILE", ckptd.Corrupt),
    ):
        file = RemoteFile("step_2", "m.pt", 100, OfADaemon(reason), "lease")  # type: ignore[arg-type]
        with pytest.raises(kind, match="chunk 0 cannot be read") as caught:
            file.readinto(bytearray(100))
        assert caught.value.reason == reason


@pytest.mark.parametrize("number, kind", [(errno.EIO, OSError), (errno.ENODEV, OSError), (errno.ENODATA, ckptd.Corrupt)])
def test_only_bytes_that_the_disk_has_lost_are_corrupt(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: Any
) -> None:
    write_checkpoint(tmp_path, "a", 1, {"m.bin": b"x" * 10_000})
    fault = types.SimpleNamespace(errno=number, chunk=0, found=0)
    monkeypatch.setattr(native, "read_verified", lambda *_: fault)
    with ckptd.open_root(str(tmp_path)).open() as checkpoint, pytest.raises(kind):
        checkpoint.read("m.bin")


def shared_record(damages: List[Any]) -> bytes:
    message = storage.SharedRunRecord(format_version=1, damages=storage.DamageRecord(damages=damages)).SerializeToString()
    return struct.pack("<8sIII", b"CKPTDSRR", 1, len(message), native.crc32c(message)) + message


def test_open_root_knows_the_damage_marks_of_a_shared_root(root: pathlib.Path, caplog: Any) -> None:
    shared = root / ".ckptd/shared"
    shared.mkdir()
    marked = storage.Damage(tag="step_2", sequence=5, message="chunk 3")
    (shared / "record.2").write_bytes(shared_record([storage.Damage(tag="step_9", sequence=4, message="repaired since")]))
    (shared / "record.10").write_bytes(shared_record([marked]))  # The one of the highest term counts.
    (shared / "record.x").write_text("of nobody")
    opened = ckptd.open_root(root)
    assert [(info.tag, info.damage) for info in opened.list()] == [("step_2", "chunk 3"), ("step_9", "")]
    latest = opened.latest()
    assert latest is not None and latest.tag == "step_9"
    assert "cannot be read" not in caplog.text
    (shared / "record.10").write_bytes(b"torn")
    assert [info.damage for info in opened.list()] == ["", ""]
    assert "record.10 cannot be read" in caplog.text
