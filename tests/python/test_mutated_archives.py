"""load() of archives that somebody made to do harm: what torch.load to the CPU gives, and never memory of others."""

from __future__ import annotations

import io
import pathlib
import zipfile
from typing import Any, Callable, Dict, Optional

import ckptd
import pytest
import torch
from archive_mutations import Call, Reference, archive, check
from checkpoint_files import saved, write_checkpoint


def tensor(key: str, count: Any, shape: Any = None, strides: Any = (1,), offset: Any = 0) -> Call:
    reference = Reference(torch.ByteStorage, key, count)
    return Call(torch._utils._rebuild_tensor_v2, reference, offset, (count,) if shape is None else shape, strides, False, None)


def repacked(data: bytes, edit: "Callable[[str, bytes], Optional[bytes]]") -> bytes:
    """Returns an archive as a ZIP tool packs it: without padding and descriptors."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as read, zipfile.ZipFile(out, "w") as write:
        for name in read.namelist():
            edited = edit(name.partition("/")[2], read.read(name))
            if edited is not None:
                write.writestr(name, edited)
    return out.getvalue()


def load(root: pathlib.Path, data: bytes, **options: Any) -> Any:
    write_checkpoint(root, "a", 1, {"m.pt": data})
    with ckptd.open_root(root).open() as checkpoint:
        return checkpoint.load("m.pt", **options)


@pytest.mark.parametrize("seed", range(500))
def test_mutated_archive_is_loaded_as_torch_loads_it(seed: int) -> None:
    check(seed)


MIB = 1 << 20
LIES: Dict[str, Any] = {
    "two references of different sizes": {"a": tensor("0", 4 * MIB), "b": tensor("0", 8 * MIB)},
    "a reference that is larger than its record": {"a": tensor("0", 9 * MIB)},
    "a tensor that is larger than its reference": {"a": tensor("0", 8 * MIB, (9 * MIB,))},
    "a tensor that begins after its storage": {"a": tensor("0", 8 * MIB, (1,), offset=8 * MIB)},
    "a step beyond the storage": {"a": tensor("0", 8 * MIB, (2, 2), (16 * MIB, 1))},
    "a step of more bytes than there are numbers": {"a": tensor("0", 8 * MIB, (3, 1), ((1 << 63) - 1, 1))},
    "a reference of no class of storages": {"a": tensor("0", 8 * MIB), "b": Reference({}, "0", 8 * MIB)},
    "a tensor of an empty storage": {"a": tensor("1", 0, (64,))},
    "a tensor that is dropped": Call(dict.fromkeys, tensor("0", 8 * MIB, (9 * MIB,))),
    "a record that is not there": {"a": tensor("../0", 8 * MIB)},
}


@pytest.mark.parametrize("lie", LIES)
def test_reference_that_lies_about_its_record_is_refused(lie: str, tmp_path: pathlib.Path) -> None:
    data = archive(LIES[lie], {"data/0": b"A" * 8 * MIB, "data/1": b""}, {})
    with pytest.raises(Exception):  # noqa: B017 - torch chooses which.
        load(tmp_path, data)


def test_reference_that_is_larger_than_its_record_names_the_file_and_the_sizes(tmp_path: pathlib.Path) -> None:
    data = archive({"a": tensor("0", 128)}, {"data/0": b"A" * 64}, {})
    with pytest.raises(ckptd.Refused, match="m.pt of a is not loaded: it says that storage 0 has 128 bytes, and the file has 64"):
        load(tmp_path, data)


def test_reference_to_another_record_reads_that_record(tmp_path: pathlib.Path) -> None:
    data = archive({"a": tensor("0", 64), "b": tensor("2", 64)}, {f"data/{key}": bytes([key]) * 64 for key in range(3)}, {})
    loaded = load(tmp_path, data)
    assert loaded["a"].unique().tolist() == [0] and loaded["b"].unique().tolist() == [2]


STATE = {"x": torch.arange(5), "y": torch.arange(1000.0)}


@pytest.mark.parametrize("into", [False, True], ids=["new", "into"])
@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda name, data: data, id="a ZIP tool"),
        pytest.param(lambda name, data: None if name.startswith(".") else data, id="an older torch"),
        pytest.param(lambda name, data: b"4096" if name == ".storage_alignment" else data, id="another alignment"),
        pytest.param(lambda name, data: b"0" if name == ".storage_alignment" else data, id="an alignment to nothing"),
    ],
)
def test_archive_that_another_program_packed_has_its_values(edit: Any, into: bool, tmp_path: pathlib.Path) -> None:
    target = {name: torch.zeros_like(value) for name, value in STATE.items()} if into else None
    loaded = load(tmp_path, repacked(saved(STATE), edit), into=target)
    assert all(torch.equal(loaded[name], value) for name, value in STATE.items())


@pytest.mark.parametrize("into", [False, True], ids=["new", "into"])
def test_archive_of_the_other_byte_order_has_its_values(into: bool, tmp_path: pathlib.Path) -> None:
    state = {"x": torch.arange(5)}
    swapped = {"x": torch.frombuffer(bytearray(state["x"].numpy().byteswap().tobytes()), dtype=torch.int64)}
    data = repacked(saved(swapped), lambda name, data: b"big" if name == "byteorder" else data)
    target = {"x": torch.zeros(5, dtype=torch.int64)} if into else None
    assert torch.equal(load(tmp_path, data, into=target)["x"], state["x"])


@pytest.mark.parametrize("edited", ["byteorder", ".storage_alignment", "nothing"])
def test_load_to_the_meta_device_refuses_what_torch_cannot_load_there(edited: str, tmp_path: pathlib.Path) -> None:
    small = {"byteorder": b"big", ".storage_alignment": b"0"}
    data = repacked(saved(STATE), lambda name, data: small[name] if name == edited else data)
    with pytest.raises(ckptd.Refused, match="meta device"):
        load(tmp_path, data, map_location="meta")
