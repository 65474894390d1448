"""load() into new tensors: what torch.load would return, read straight to its place."""

from __future__ import annotations

import collections
import pathlib
from typing import Any

import ckptd
import pytest
import torch
from checkpoint_files import CHUNK, flip, saved, write_checkpoint
from ckptd._reading.verified_file import VerifiedFile
from ckptd._torch.new_tensors import read_new_tensors


def load(root: pathlib.Path, value: Any, **options: Any) -> Any:
    write_checkpoint(root, "a", 1, {"m.pt": saved(value)})
    with ckptd.open_root(root).open() as checkpoint:
        return checkpoint.load("m.pt", **options)


@pytest.fixture(autouse=True)
def torch_reads(monkeypatch: pytest.MonkeyPatch) -> "collections.Counter[str]":
    """Counts by map_location how often torch.load was called."""
    counted: "collections.Counter[str]" = collections.Counter()
    original = torch.load

    def count(*args: Any, **options: Any) -> Any:
        counted[str(options["map_location"])] += 1
        return original(*args, **options)

    monkeypatch.setattr(torch, "load", count)
    return counted


def test_new_tensors_are_what_was_saved(tmp_path: pathlib.Path, torch_reads: Any) -> None:
    shared = torch.randn(CHUNK // 4 * 3)
    state = {
        "large": torch.randn(1000, 777),
        "parameter": torch.nn.Parameter(torch.randn(5)),
        "empty": torch.zeros(0, 4),
        "strided": torch.arange(12.0).reshape(3, 4).t(),
        "tied": [shared, shared[10:20]],
        "step": 7,
    }
    loaded = load(tmp_path, state)
    for name in ("large", "parameter", "empty", "strided"):
        assert torch.equal(loaded[name], state[name]) and loaded[name].stride() == state[name].stride(), name
    assert isinstance(loaded["parameter"], torch.nn.Parameter) and loaded["parameter"].requires_grad
    assert torch.equal(loaded["tied"][0], shared) and loaded["step"] == 7
    loaded["tied"][0][10] = 3
    assert loaded["tied"][1][0] == 3, "a tied tensor shares its memory"
    assert torch_reads == {"meta": 1}, "torch has copied no bytes"


def test_new_tensors_can_be_resized(tmp_path: pathlib.Path) -> None:
    tensor = load(tmp_path, {"x": torch.arange(10.0)})["x"]
    tensor.resize_(100_000)
    assert tensor[:10].tolist() == list(range(10))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(torch.eye(4).to_sparse(), id="sparse"),
        pytest.param({torch.tensor(1.0)}, id="a tensor in a set"),
    ],
)
def test_state_that_only_torch_can_make_is_made_by_torch(tmp_path: pathlib.Path, value: Any, torch_reads: Any) -> None:
    loaded = load(tmp_path, {"x": value})
    assert type(loaded["x"]) is type(value) and str(loaded["x"]) == str(value)
    assert torch_reads["cpu"] == 1


def test_wrong_bit_in_a_new_tensor_is_corrupt(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"x": torch.randn(CHUNK)})})
    flip(tmp_path / "a" / "m.pt", CHUNK + 5)
    with ckptd.open_root(tmp_path).open() as checkpoint, pytest.raises(ckptd.Corrupt):
        checkpoint.load("m.pt")


class Bytes(VerifiedFile):
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__(len(data), max(len(data), 1))
        self._data = data

    def _fetch(self, chunk: int, into: memoryview) -> None:
        into[:] = self._data[: len(into)]


def on_meta(offsets_and_sizes: Any) -> Any:
    """Tensors of bytes that claim these places in a file."""
    state = {}
    for number, (offset, size) in enumerate(offsets_and_sizes):
        state[number] = torch.empty(size, dtype=torch.uint8, device="meta")
        state[number].untyped_storage()._checkpoint_offset = offset
    return state


def test_tensors_that_claim_bytes_beyond_the_end_are_corrupt() -> None:
    with pytest.raises(ckptd.Corrupt, match="beyond its end"):
        read_new_tensors(on_meta([(90, 20)]), Bytes(bytes(100)))


def test_tensors_that_claim_the_same_bytes_are_left_to_torch() -> None:
    assert read_new_tensors(on_meta([(0, 20), (10, 20)]), Bytes(bytes(100))) is None
