"""The C++ reader reads what safetensors writes, and safetensors reads what the C++ writer writes."""

from __future__ import annotations

import json
import pathlib
import struct
from typing import Any, Dict

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import _SIZE, load_file, save_file
from tensor_files import Refused, Tool

DTYPES = [dtype for dtype in _SIZE if dtype is not None]


def some_tensors() -> Dict[str, torch.Tensor]:
    tensors = {}
    for dtype in DTYPES:
        raw = torch.arange(1, 12 * dtype.itemsize + 1, dtype=torch.int64).to(torch.uint8)
        tensor = raw.to(torch.bool)[:12] if dtype is torch.bool else raw.view(dtype)
        tensors[f"{dtype} ü \"q\""] = tensor.reshape(3, 4)
    tensors["empty"] = torch.empty(0, 7)
    tensors["0-dim"] = torch.tensor(2.5)
    return tensors


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("metadata", [None, {"format": "pt", "note": "ü\n\"\\"}])
def test_files_are_exchanged_with_safetensors_in_both_directions(metadata: Any, tool: Tool, tmp_path: pathlib.Path) -> None:
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    tensors = some_tensors()
    save_file(tensors, old, metadata)
    shown, content = tool("show-safetensors", old), old.read_bytes()
    assert (shown["metadata"] or None) == metadata
    assert {t["name"] for t in shown["tensors"]} == set(tensors)
    for found in shown["tensors"]:
        tensor = tensors[found["name"]]
        assert (found["dtype"], found["shape"]) == (str(tensor.dtype)[len("torch.") :], list(tensor.shape))
        assert content[found["offset"] : found["offset"] + found["bytes"]] == raw(tensor)

    tool("rewrite-safetensors", old, new)
    loaded = load_file(new)
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype is tensor.dtype and loaded[name].shape == tensor.shape
        assert raw(loaded[name]) == raw(tensor)
    with safe_open(new, "pt") as opened:
        assert opened.metadata() == metadata


def test_file_without_tensors_is_read(tool: Tool, tmp_path: pathlib.Path) -> None:
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    save_file({}, old)
    tool("rewrite-safetensors", old, new)
    assert load_file(new) == {}


ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": {**ENTRY, "data_offsets": [0, 5]}},
        {"a": {**ENTRY, "data_offsets": [1, 5]}},
        {"a": {**ENTRY, "data_offsets": [4, 0]}},
        {"a": {**ENTRY, "shape": [5]}},
        {"a": {**ENTRY, "shape": [2**33, 2**33]}},
        {"a": {**ENTRY, "shape": [-4]}},
        {"a": {**ENTRY, "dtype": "U9"}},
        {"a": ENTRY, "b": ENTRY},
        {"a": ENTRY, "b": {**ENTRY, "data_offsets": [5, 9]}},
        {"a": {"dtype": "U8"}},
        {"__metadata__": {"a": 1}, "a": ENTRY},
        {"a": [1]},
        [],
    ],
    ids=str,
)
def test_files_that_safetensors_refuses_are_refused(header: Any, tool: Tool, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bad.safetensors"
    text = json.dumps(header).encode()
    end = max([4, *(e["data_offsets"][1] for e in dict(header).values() if "data_offsets" in e)])
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end if end < 100 else 4))
    with pytest.raises(SafetensorError):
        load_file(path)
    with pytest.raises(Refused, match="CORRUPT_ARCHIVE|UNSUPPORTED_ARCHIVE"):
        tool("show-safetensors", path)
