"""Slices of files: only the chunks that they touch are read."""

from __future__ import annotations

import os
import pathlib
import random
import sys
import types
from typing import Any, Iterator, List, Tuple

import ckptd
import pytest
from ckptd import _progress_bar
from ckptd._memory import native
from ckptd._reading.verified_file import RemoteFile
from ckptd._wire.protocol import messages
from checkpoint_files import CHUNK, write_checkpoint


def bytes_read() -> int:
    """Returns how many bytes this process has read from files, cached or not."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("rchar")).split()[1])


@pytest.fixture
def files(tmp_path: pathlib.Path) -> "Tuple[ckptd.Checkpoint, dict[str, bytes]]":
    numbers = random.Random(5)
    content = {"a": numbers.randbytes(40 * CHUNK + 77), "b": numbers.randbytes(3 * CHUNK), "none": b""}
    write_checkpoint(tmp_path, "t", 1, content)
    return ckptd.open_root(tmp_path).open("t"), content


def test_slices_come_in_the_order_they_were_asked_for(files) -> None:
    checkpoint, content = files
    numbers = random.Random(6)
    ranges: List[Tuple[str, int, int]] = [("none", 0, 0), ("b", 3 * CHUNK, 0)]
    for _ in range(200):  # Many of them overlap.
        name = numbers.choice(["a", "b"])
        offset = numbers.randrange(len(content[name]))
        ranges.append((name, offset, numbers.randrange(min(3 * CHUNK, len(content[name]) - offset) + 1)))
    wanted = [content[name][offset : offset + size] for name, offset, size in ranges]
    assert checkpoint.read_ranges(ranges) == wanted
    buffers = [bytearray(size) for _, _, size in ranges]
    assert checkpoint.read_ranges(ranges, into=buffers)[5] is buffers[5]
    assert buffers == wanted


def test_one_percent_of_a_file_costs_the_chunks_that_it_touches(files) -> None:
    checkpoint, content = files
    piece = len(content["a"]) // 100 // 16
    ranges = [("a", at * 2 * CHUNK + 100, piece) for at in range(16)]
    before = bytes_read()
    checkpoint.read_ranges(ranges)
    assert bytes_read() - before <= 1.05 * 16 * CHUNK


def test_slice_beyond_its_file_is_refused_before_a_byte_is_read(files) -> None:
    checkpoint, content = files
    buffer = bytearray(b"untouched")
    for bad in [(-1, 5), (3 * CHUNK - 4, 5), (0, -1)]:
        with pytest.raises((ckptd.Refused, ValueError), match="were asked for|do not fit"):
            checkpoint.read_ranges([("b", 0, 9), ("b", *bad)], into=[buffer, bytearray(max(0, bad[1]))])
        assert buffer == b"untouched"
    with pytest.raises(ckptd.Refused, match="their buffer has 4"):
        checkpoint.read_ranges([("b", 0, 5)], into=[bytearray(4)])
    with pytest.raises(ckptd.Refused, match="1 ranges were asked for, and 0 buffers were given"):
        checkpoint.read_ranges([("b", 0, 5)], into=[])
    with pytest.raises(ckptd.NotFound):
        checkpoint.read_ranges([("c", 0, 5)])


def test_corrupt_chunk_is_found_by_a_slice_that_touches_it_and_by_no_other(files, tmp_path: pathlib.Path) -> None:
    checkpoint, content = files
    with open(tmp_path / "t" / "a", "r+b") as file:
        file.seek(7 * CHUNK + 5)
        file.write(bytes([content["a"][7 * CHUNK + 5] ^ 1]))
    assert checkpoint.read_ranges([("a", 8 * CHUNK, 10)]) == [content["a"][8 * CHUNK : 8 * CHUNK + 10]]
    with pytest.raises(ckptd.Corrupt) as caught:
        checkpoint.read_ranges([("a", 8 * CHUNK - 1, 1)])
    assert caught.value.details["chunk"] == 7


def test_progress_reaches_the_last_byte(files) -> None:
    checkpoint, content = files
    seen: List[Tuple[int, int]] = []
    assert checkpoint.read("a", progress=lambda done, total: seen.append((done, total))) == content["a"]
    assert seen[-1] == (len(content["a"]), len(content["a"]))
    assert seen == sorted(seen)


def test_progress_without_tqdm_is_a_line_in_the_log(files, monkeypatch, caplog) -> None:
    checkpoint, content = files
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(_progress_bar, "_LINE_SECONDS", 0.0)
    with caplog.at_level("INFO", logger="ckptd"):
        checkpoint.read("a", progress=True)
    assert any("t/a" in record.getMessage() and "left" in record.getMessage() for record in caplog.records)


def test_exception_from_progress_ends_the_read(tmp_path: pathlib.Path) -> None:
    size = 256 << 20
    write_checkpoint(tmp_path, "t", 1, {"big": os.urandom(1 << 20) * (size >> 20)})

    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with ckptd.open_root(tmp_path).open("t") as checkpoint, pytest.raises(KeyboardInterrupt):
        checkpoint.read("big", progress=give_up)


def test_slices_over_grpc_transfer_only_their_bytes(files) -> None:
    """A fake session, for files that this process cannot open."""
    _, content = files
    asked: List[Any] = []

    class Session:
        checkpoints = types.SimpleNamespace(ReadFile=None)

        def stream(self, _: Any, request: Any, __: float) -> Iterator[Any]:
            asked.append(request)
            data = b"".join(content["a"][r.offset : r.offset + r.size_bytes] for r in request.ranges)
            for at in range(0, len(data), 1000):  # A message may end inside a range.
                yield messages.ReadFileResponse(data=data[at : at + 1000])

    ranges = [(3, 5), (3 * CHUNK - 1, 2500), (8 * CHUNK, 1)]
    with RemoteFile("t", "a", len(content["a"]), Session(), "lease") as file:  # type: ignore[arg-type]
        buffers = [bytearray(size) for _, size in ranges]
        addresses = [native.address_of(buffer) for buffer in buffers]
        file.scatter([(offset, address, size) for (offset, size), (address, _) in zip(ranges, addresses)])
        assert buffers == [content["a"][offset : offset + size] for offset, size in ranges]
        assert [(r.offset, r.size_bytes) for r in asked[0].ranges] == ranges and len(asked) == 1
        content["a"] = content["a"][: 8 * CHUNK]
        with pytest.raises(ckptd.Corrupt, match="ends 1 bytes early"):
            file.scatter([(8 * CHUNK, addresses[2][0], 1)])
