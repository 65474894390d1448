"""load() into new tensors: what torch.load would return, read straight to its place."""

from __future__ import annotations

import collections
import pathlib
from typing import Any

import ckptd
import pytest
import torch
from checkpoint_files import CHUNK, BytesFile, flip, saved, write_checkpoint
from ckptd._torch.reading.archive_records import Record, Records
from ckptd._torch.reading.new_tensors import read_new_tensors


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
        pytest.param({torch.tensor(1.0): 1}, id="a tensor as a key"),
        pytest.param({(1, torch.tensor(1.0)): 1}, id="a tensor in a key"),
        pytest.param(torch.empty(0, device="meta"), id="a tensor without bytes"),
        pytest.param(torch.randn(2, dtype=torch.complex64).conj(), id="conjugate"),
    ],
)
def test_state_that_only_torch_can_make_is_made_by_torch(tmp_path: pathlib.Path, value: Any, torch_reads: Any) -> None:
    loaded = load(tmp_path, {"x": value})
    assert type(loaded["x"]) is type(value) and str(loaded["x"]) == str(value)
    assert torch_reads["cpu"] == 1


def with_attributes(tensor: torch.Tensor) -> torch.Tensor:
    tensor.tag, tensor.scale = "x", torch.full((3,), 7.0)  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize(
    "tensor", [torch.ones(2), torch.nn.Parameter(torch.ones(2))], ids=["tensor", "parameter"]
)
def test_attributes_of_a_tensor_stay(tmp_path: pathlib.Path, tensor: torch.Tensor) -> None:
    loaded = load(tmp_path, {"x": with_attributes(tensor), "y": torch.ones(3)})["x"]
    assert type(loaded) is type(tensor) and torch.equal(loaded, tensor)
    assert loaded.tag == "x" and loaded.scale.tolist() == [7.0] * 3


def test_buffer_is_still_one(tmp_path: pathlib.Path) -> None:
    loaded = load(tmp_path, {"x": torch.nn.Buffer(torch.ones(2), persistent=False)})["x"]
    assert isinstance(loaded, torch.nn.Buffer) and not loaded.persistent


def test_attributes_of_mappings_have_their_tensors(tmp_path: pathlib.Path, torch_reads: Any) -> None:
    ordered = collections.OrderedDict(a=torch.ones(1))
    ordered.extra = [torch.full((2,), 5.0)]  # type: ignore[attr-defined]
    ordered.again = ordered["a"]  # type: ignore[attr-defined]
    loaded = load(tmp_path, {"ordered": ordered, "counter": collections.Counter("aab")})
    assert loaded["ordered"].extra[0].tolist() == [5.0, 5.0]
    assert loaded["ordered"].again is loaded["ordered"]["a"]
    assert type(loaded["counter"]) is collections.Counter and loaded["counter"] == {"a": 2, "b": 1}
    assert torch_reads == {"meta": 1}


def test_metadata_of_a_model_stays(tmp_path: pathlib.Path) -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()
    assert load(tmp_path, state)._metadata == state._metadata


def test_containers_inside_of_themselves_stay_so(tmp_path: pathlib.Path) -> None:
    state: Any = {"x": torch.ones(2), "list": [1]}
    state["list"].append(state["list"])
    state["self"] = state
    loaded = load(tmp_path, state)
    assert loaded["self"] is loaded and loaded["list"][1] is loaded["list"] and loaded["x"].tolist() == [1, 1]


def test_wrong_bit_in_a_new_tensor_is_corrupt(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"x": torch.randn(CHUNK)})})
    flip(tmp_path / "a" / "m.pt", CHUNK + 5)
    with ckptd.open_root(tmp_path).open() as checkpoint, pytest.raises(ckptd.Corrupt):
        checkpoint.load("m.pt")


def on_meta(offsets_and_sizes: Any) -> Any:
    """Tensors of bytes that claim these places in a file."""
    state = {}
    for number, (offset, size) in enumerate(offsets_and_sizes):
        state[number] = torch.empty(size, dtype=torch.uint8, device="meta")
        state[number].untyped_storage()._checkpoint_offset = offset
    return state


def at(*places: Any) -> Records:
    """Records at these places, (begin, size) each."""
    return {f"data/{number}": Record(*place) for number, place in enumerate(places)}


def test_tensors_that_claim_bytes_beyond_the_end_are_corrupt() -> None:
    with pytest.raises(ckptd.Corrupt, match="beyond its end"):
        read_new_tensors(on_meta([(90, 20)]), BytesFile(bytes(100)), at((90, 20)))


def test_tensors_that_claim_the_same_bytes_are_left_to_torch() -> None:
    assert read_new_tensors(on_meta([(0, 20), (10, 20)]), BytesFile(bytes(100)), at((0, 20), (10, 20))) is None


@pytest.mark.parametrize("place", [(0, 30), (0, 10), (1, 20)], ids=["larger", "smaller", "elsewhere"])
def test_tensors_that_are_not_the_records_of_their_file_are_left_to_torch(place: Any) -> None:
    assert read_new_tensors(on_meta([(0, 20), place]), BytesFile(bytes(100)), at((0, 20))) is None


def test_tensor_that_reaches_beyond_its_storage_is_left_to_torch() -> None:
    # The product of size and stride is beyond 64 bits, so that torch does not see how far the tensor reaches.
    state = on_meta([(0, 32)])
    state[0] = state[0].as_strided((5,), (1 << 62,))
    assert read_new_tensors(state, BytesFile(bytes(100)), at((0, 32))) is None
