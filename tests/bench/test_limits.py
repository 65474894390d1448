"""The memory copy that saves are held against."""

from __future__ import annotations

import ctypes
import os
import pathlib

import pytest
import torch

from bench.base import limits, pages


def test_a_copy_by_each_loop_begins_when_all_processes_are_there() -> None:
    tensors = [torch.arange(1000.0), torch.arange(3.0)]
    copy = limits.MemoryCopy(tensors, threads=2)
    events = []
    copy_by = copy._copy
    copy._copy = lambda loop: (events.append(loop), copy_by(loop))[1]
    turn = copy(lambda: events.append("barrier"))
    assert list(turn) == limits.native.copy_loops()
    assert events == [event for loop in range(len(turn)) for event in ("barrier", loop)]


def test_every_thread_copies_its_share_of_all_bytes() -> None:
    tensors = [torch.arange(1000.0), torch.arange(3.0), torch.arange(77, dtype=torch.uint8)]
    copy = limits.MemoryCopy(tensors, threads=3)
    ctypes.memset(copy.memory.address, 0, copy.size)
    copy()
    copied = ctypes.string_at(copy.memory.address, copy.size)
    assert copied == b"".join(tensor.numpy().tobytes() for tensor in tensors)


def test_write_to_the_disk_has_all_bytes_synced_and_leaves_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    assert limits.time_direct_write(tmp_path, (9 << 20) + 123) > 0
    assert synced == [(9 << 20) + 123]
    assert not list(tmp_path.iterdir())


def test_a_copy_out_of_the_shared_memory_puts_the_same_bytes_back() -> None:
    tensor = torch.arange(5000, dtype=torch.uint8)
    kept = tensor.clone()
    copy = limits.MemoryCopy([tensor], threads=2, out=True)
    tensor.zero_()
    copy()
    assert torch.equal(tensor, kept)


@pytest.mark.parametrize(("kind", "size"), [(pages.PLAIN, "4 KiB"), (pages.TRANSPARENT, "2 MiB")])
def test_a_copy_is_on_pages_of_the_kind_that_it_names(kind: str, size: str) -> None:
    if kind == pages.TRANSPARENT and not pages.shared_huge_pages_work():
        pytest.skip("this kernel makes no huge pages of shared memory on request (Linux 6.1)")
    tensor = torch.ones(8 << 20, dtype=torch.uint8)
    copy = limits.MemoryCopy([tensor], 1, kind)
    assert copy.pages().endswith(f"to shared pages of {size}, touched")
    assert (pages.huge_bytes(copy.memory.address) > 0) == (kind == pages.TRANSPARENT)
    out = limits.MemoryCopy([tensor], 1, kind, out=True)
    assert out.pages().startswith(f"from shared pages of {size} to ")


def test_fresh_pages_are_fresh_until_the_copy() -> None:
    memory = pages.Memory(8 << 20, pages.TRANSPARENT, shared=False, touched=False)
    assert pages.resident_bytes(memory.address) == 0
    memory.touch(threads=2)
    assert pages.resident_bytes(memory.address) >= 8 << 20


def test_every_copy_loop_into_fresh_pages_takes_time() -> None:
    tensor = torch.ones(9 << 20, dtype=torch.uint8)
    source = limits.MemoryCopy([tensor], 1).memory
    for loop in limits.native.copy_loops():
        assert limits.copy_into_fresh_pages(source, tensor.nbytes, 2, loop) > 0
        assert limits.copy_into_fresh_pool([tensor], 2, pages.PLAIN, loop) > 0
