"""The memory copy that saves are held against."""

from __future__ import annotations

import os
import pathlib

import pytest
import torch

from bench.base import limits


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
    copy._kept[1].zero_()
    copy()
    copied = copy._kept[1].numpy().tobytes()
    assert copied == b"".join(tensor.numpy().tobytes() for tensor in tensors)


def test_write_to_the_disk_has_all_bytes_synced_and_leaves_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    assert limits.time_direct_write(tmp_path, (9 << 20) + 123) > 0
    assert synced == [(9 << 20) + 123]
    assert not list(tmp_path.iterdir())
