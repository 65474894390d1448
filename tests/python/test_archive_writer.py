"""Our `.pt` is torch.save's, byte for byte but for the serialization id and the storages' ZIP CRCs, without
a second copy of the tensors.
"""

from __future__ import annotations

import collections
import io
import os
import warnings
import zlib
from array import array
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
import torch
from ckptd import UnsafeGlobalsWarning
from ckptd._memory import native
from ckptd._memory.image import Memory
from ckptd._torch.writing import archive_writer, state_pickler, zip_layout


def written(obj: Any, views: str = "compact") -> bytes:
    """Returns the image of an object, copied into two buffers, as into two segments."""
    image = archive_writer.image(obj, views)
    buffers = [bytearray(image.size // 3 + 1), bytearray(image.size)]
    places = [native.address_of(buffer) for buffer in buffers]
    memory = Memory([(places[0][0], len(buffers[0])), (places[1][0], len(buffers[1]))], places)
    image.write(memory, 0, 2)
    return bytes(buffers[0] + buffers[1])[: image.size]


def saved_by_torch(obj: Any) -> bytes:
    """Returns what torch.save writes with its option that leaves the CRCs of storages 0."""
    buffer = io.BytesIO()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(obj, buffer)
    finally:
        torch.serialization.set_crc32_options(True)
    return buffer.getvalue()


def without_id(data: bytes) -> bytes:
    """Blanks the serialization id, 40 digits without meaning, and its CRC, which is there twice."""
    at = data.index(b".data/serialization_id")
    begin = data.index(b"PK\x07\x08", at) - 40
    data = data[:begin] + bytes(40) + data[begin + 40 :]
    entry = data.index(b"PK\x01\x02", begin)
    last = data.rindex(b"PK\x01\x02")
    blank = bytearray(data)
    blank[begin + 44 : begin + 48] = bytes(4)
    blank[last + 16 : last + 20] = bytes(4)
    # torch's option leaves out all CRCs; our writer has those of the small records.
    while entry >= 0:
        blank[entry + 16 : entry + 20] = bytes(4)
        entry = data.find(b"PK\x01\x02", entry + 4)
    descriptor = data.find(b"PK\x07\x08")
    while descriptor >= 0:
        blank[descriptor + 4 : descriptor + 8] = bytes(4)
        descriptor = data.find(b"PK\x07\x08", descriptor + 4)
    return bytes(blank)


class Subclass(torch.Tensor):
    pass


BASE = torch.arange(100, dtype=torch.float32)


def tied() -> Dict[str, torch.Tensor]:
    weight = torch.nn.Parameter(torch.randn(30))
    return {"encoder": weight, "decoder": weight, "again": weight.detach()}


def with_attribute() -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.tag = "x"  # type: ignore[attr-defined]
    return tensor


def trained() -> Dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}


KINDS: Dict[str, Callable[[], Any]] = {
    "model and optimizer": trained,
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "two views that cover all": lambda: {"a": BASE[:50], "b": BASE[25:]},
    "chunks of a flat buffer": lambda: list(BASE.chunk(10)),
    "tied": tied,
    "bfloat16": lambda: torch.randn(5).bfloat16(),
    "float8": lambda: torch.randn(5).to(torch.float8_e4m3fn),
    "float8 e8m0": lambda: torch.ones(4).to(torch.float8_e8m0fnu),
    "float4": lambda: torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "uint16": lambda: torch.tensor([1, 2], dtype=torch.uint16),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "bool": lambda: torch.tensor([True, False]),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(4), 0.1, 10, torch.quint8),
    "quantized by channel": lambda: torch.quantize_per_channel(
        torch.randn(2, 4), torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0, torch.qint8
    ),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2]), torch.ones(3), size=(3, 3)
    ),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "scalar": lambda: torch.tensor(1.5),
    "empty": lambda: torch.empty(0, 4),
    "meta": lambda: torch.empty(3, 4, device="meta"),
    "requires grad": lambda: torch.ones(2, requires_grad=True),
    "not a leaf": lambda: torch.ones(2, requires_grad=True) * 2,
    "expanded": lambda: torch.zeros(1).expand(1000),
    "subclass": lambda: torch.ones(3).as_subclass(Subclass),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "buffer": lambda: torch.nn.Buffer(torch.ones(2)),
    "tensor with attribute": with_attribute,
    "typed storage": lambda: torch.arange(5.0).storage(),
    "untyped storage": lambda: torch.arange(5.0).untyped_storage(),
    "generator state": torch.get_rng_state,
    "numpy array": lambda: np.arange(5),
    "numpy scalar": lambda: np.float32(2),
    "dtype, device, size": lambda: {"d": torch.device("cpu"), "t": torch.float32, "s": torch.Size([1, 2])},
    "plain values": lambda: {
        "i": 2**100,
        "s": "é",
        "b": b"x",
        "n": None,
        "set": {1},
        "t": (1, -0.0, float("nan")),
    },
    "the word cpu": lambda: {"cpu": torch.ones(2), "0": "cpu"},
    "ordered dict": lambda: collections.OrderedDict(a=torch.ones(1), b=collections.OrderedDict()),
    "memory of others": lambda: torch.frombuffer(bytearray(16), dtype=torch.float32),
    "the same object twice": lambda: [BASE, BASE, [1], collections.Counter("aab")],
    "nothing": dict,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("views", ["compact", "keep"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_those_of_torch_save(kind: str, views: str) -> None:
    obj = KINDS[kind]()
    assert without_id(written(obj, views)) == without_id(saved_by_torch(obj))


@pytest.mark.parametrize("count", [1, 9, 10, 11, 101])
def test_the_bytes_are_those_of_torch_save_for_any_number_of_storages(count: int) -> None:
    obj = [torch.randn(i % 7) for i in range(count)]
    assert without_id(written(obj)) == without_id(saved_by_torch(obj))


@pytest.mark.parametrize("size", range(0, 200, 7))
def test_the_bytes_are_those_of_torch_save_for_any_length_of_the_pickle(size: int) -> None:
    obj = {"padding": "x" * size, "t": torch.arange(size)}
    assert without_id(written(obj)) == without_id(saved_by_torch(obj))


@pytest.mark.filterwarnings("ignore")
def test_own_crcs_of_small_records_are_right_so_that_only_storages_fail_a_zip_test() -> None:
    import zipfile

    archive = zipfile.ZipFile(io.BytesIO(written({"a": 1})))
    assert archive.testzip() is None
    assert archive.read("archive/byteorder") == b"little"


def test_keep_saves_whole_storages_as_torch_does() -> None:
    obj = {"small": BASE[10:12], "strided": BASE[::3]}
    assert without_id(written(obj, "keep")) == without_id(saved_by_torch(obj))
    assert len(written(obj)) < len(written(obj, "keep")) + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.int64])
def test_small_view_is_saved_without_the_rest_of_its_storage(dtype: torch.dtype) -> None:
    big = torch.arange(100_000, dtype=torch.float32).to(dtype)
    data = written({"view": big[50_000:50_010]})
    assert len(data) < 4000
    back = torch.load(io.BytesIO(data), weights_only=True)["view"]
    assert back.untyped_storage().nbytes() == 10 * dtype.itemsize
    assert torch.equal(back.view(torch.uint8), big[50_000:50_010].view(torch.uint8))


def test_overlapping_views_still_share_memory_and_no_byte_is_saved_twice() -> None:
    big = torch.arange(100_000, dtype=torch.float32)
    obj = {
        "a": big[:50],
        "b": big[25:75],
        "far": big[900:910],
        "none": big[5:5],
        "parameter": torch.nn.Parameter(big[30:40]),
    }
    data = written(obj)
    assert len(data) < 4000
    back = torch.load(io.BytesIO(data), weights_only=True)
    assert all(torch.equal(back[name], obj[name]) for name in obj)
    back["a"][30] = -1
    assert back["b"][5] == -1 and back["parameter"][0] == -1
    assert back["far"].untyped_storage().nbytes() == 40


def test_storage_that_one_tensor_uses_whole_is_kept_whole() -> None:
    big = torch.arange(10_000, dtype=torch.float32)
    for obj in ({"view": big[:10], "whole": big}, {"view": big[:10], "storage": big.untyped_storage()}):
        if "storage" in obj:
            obj["view"] = big.view(torch.uint8)[:10]
        data = written(obj)
        assert without_id(data) == without_id(saved_by_torch(obj))


def test_flat_buffer_with_alignment_gaps_is_kept_whole() -> None:
    flat = torch.zeros(1000)
    obj = [flat[:490], flat[500:]]
    back = torch.load(io.BytesIO(written(obj)), weights_only=True)
    assert back[0].untyped_storage().data_ptr() == back[1].untyped_storage().data_ptr()


def test_tied_weights_are_saved_once_and_come_back_tied() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(100, 100), "b": torch.nn.Linear(100, 100)})
    model["b"].weight = model["a"].weight
    data = written(model.state_dict())
    assert len(data) < 2 * 100 * 100 * 4
    back = torch.load(io.BytesIO(data), weights_only=True)
    assert back["a.weight"].data_ptr() == back["b.weight"].data_ptr()


def test_one_storage_under_two_dtypes_is_refused_as_torch_refuses_it() -> None:
    obj = {"a": BASE, "b": BASE.view(torch.int32)}
    with pytest.raises(RuntimeError, match="as different types"):
        saved_by_torch(obj)
    with pytest.raises(RuntimeError, match="as different types"):
        written(obj)


@pytest.mark.parametrize("obj", [lambda: 0, open], ids=["lambda", "local file"])
def test_unpicklable_object_raises_the_error_of_pickle(obj: Any, tmp_path: Any) -> None:
    if obj is open:
        obj = open(tmp_path / "f", "w")
    with pytest.raises(Exception, match="pickle") as ours:
        written({"x": obj})
    with pytest.raises(type(ours.value)):
        torch.save({"x": obj}, io.BytesIO())


def test_later_save_of_the_same_shape_has_the_new_values() -> None:
    state = {"w": torch.zeros(1000), "view": torch.zeros(5000)[7:9], "step": 1, "list": [1, 2.0]}
    for step in range(300):
        state["w"].fill_(step)
        state["view"].fill_(-step)
        state["step"] = step  # From 256 on it takes one byte more in the pickle.
        state["list"].append(step)
        back = torch.load(io.BytesIO(written(state)), weights_only=True)
        assert back["step"] == step and back["list"][-1] == step
        assert back["w"][-1] == step and back["view"][0] == -step


def test_tensor_at_the_address_of_a_freed_one_is_not_confused_with_it() -> None:
    for i in range(50):
        state = {"a": torch.full((1000,), float(i)), "b": torch.full((1000,), float(i + 1))}
        back = torch.load(io.BytesIO(written(state)), weights_only=True)
        assert back["a"][0] == i and back["b"][0] == i + 1
        assert back["a"].data_ptr() != back["b"].data_ptr()


class MakesTensors:
    """Pickles to tensors that nothing else refers to."""

    def __getstate__(self) -> Dict[str, Any]:
        return {f"t{i}": torch.full((100,), float(i)) for i in range(20)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.state = state


@pytest.mark.filterwarnings("ignore")
def test_temporary_tensors_made_while_pickling_are_saved_separately() -> None:
    back = torch.load(io.BytesIO(written([MakesTensors(), BASE[:3]])), weights_only=False)
    assert all(back[0].state[f"t{i}"][0] == i for i in range(20))


def sparse_tensor(size: int, files: List[int]) -> torch.Tensor:
    """Returns a tensor of a size that takes no memory."""
    import mmap

    files.append(os.memfd_create("sparse"))
    os.ftruncate(files[-1], size)
    return torch.frombuffer(mmap.mmap(files[-1], size), dtype=torch.uint8)


class Skipping:
    """A file that records what is written where. Under skip_data torch seeks over storages."""

    def __init__(self) -> None:
        self.pieces: List[Tuple[int, bytes]] = []
        self.at = 0

    def write(self, data: Any) -> int:
        self.pieces.append((self.at, bytes(data)))
        self.at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset if whence == 0 else self.at + offset
        return self.at

    def tell(self) -> int:
        return self.at

    def flush(self) -> None:
        pass


MAX32 = 0xFFFFFFFF


@pytest.mark.parametrize(
    "sizes",
    [
        (5 << 30, 12),
        (2 << 30, 2 << 30, 2 << 30),
        (MAX32, 8),
        (MAX32 - 1, 8),
        (MAX32 + 1, 8),
        ((1 << 32) - 2000, 8, 8, 3600, 3600),
    ],
    ids=str,
)
def test_zip64_fields_are_where_torch_puts_them(sizes: Tuple[int, ...]) -> None:
    files: List[int] = []
    try:
        obj = [sparse_tensor(size, files) for size in sizes]
        theirs = Skipping()
        with torch.serialization.skip_data():
            torch.save(obj, theirs)
        pickled = state_pickler.pickle_state(obj, True)
        layout = zip_layout.Layout(len(pickled.pickled), sizes, True)
        assert layout.size == max(at + len(data) for at, data in theirs.pieces)
        ours = {layout.pickle_offset: pickled.pickled}
        glue = layout.filled_glue(zlib.crc32(pickled.pickled))
        for offset, start, length in zip(layout.glue_offsets, layout.glue_starts, layout.glue_lengths):
            ours[offset] = bytes(glue[start : start + length])
        assert without_id(b"".join(data for _, data in sorted(ours.items()))) == without_id(
            b"".join(data for _, data in sorted(theirs.pieces) if data)
        )
    finally:
        for file in files:
            os.close(file)


def test_unsafe_classes_are_named_when_saving_and_once_only() -> None:
    with pytest.warns(UnsafeGlobalsWarning, match="collections.deque") as caught:
        written({"queue": collections.deque([1])})
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written({"queue": collections.deque([2])})
        written(trained())


def test_the_public_interface_of_torch_alone_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = {**trained(), "view": BASE[3:5]}
    monkeypatch.setattr(archive_writer, "_own_writer_works", False)
    assert written(obj) == saved_by_torch(obj)
    assert b"".join(archive_writer.image(obj).stream()) == saved_by_torch(obj)
    assert torch.serialization.get_crc32_options()


def test_unexpected_torch_is_detected_and_torch_save_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_writer, "_own_writer_works", None)
    monkeypatch.setattr(
        archive_writer, "_lay_out", lambda obj, compact: archive_writer.image_by_torch_save({"a": torch.zeros(1)})
    )
    with pytest.warns(RuntimeWarning, match="own writer does not work with this version of torch"):
        assert written({"b": 1}) == saved_by_torch({"b": 1})


def test_an_object_that_changes_its_size_between_the_passes_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_writer, "_own_writer_works", False)
    obj = {"list": [1]}
    image = archive_writer.image(obj)
    obj["list"].extend(range(1000))
    buffer = bytearray(image.size)
    address, keep = native.address_of(buffer)
    with pytest.raises(RuntimeError, match="while it was being saved"):
        image.write(Memory([(address, len(buffer))], keep), 0, 1)


def test_a_stream_is_the_same_bytes_whatever_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptd._memory import image as image_module

    obj = trained()
    expected = written(obj)
    for window in (1, 63, 1000, 1 << 20):
        monkeypatch.setattr(image_module, "_WINDOW_BYTES", window)
        assert b"".join(archive_writer.image(obj).stream()) == expected


def test_threads_divide_a_large_copy_and_leave_nothing_out() -> None:
    obj = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (9_000_001, 17, 12_000_000, 1)]
    image = archive_writer.image(obj)
    expected = b"".join(image.stream())
    for threads in (1, 2, 3, 7, 1000):
        buffer = bytearray(image.size)
        address, keep = native.address_of(buffer)
        image.write(Memory([(address, len(buffer))], keep), 0, threads)
        assert buffer == expected


def test_copy_never_writes_past_the_end_of_a_part() -> None:
    image = archive_writer.image(torch.zeros(1000))
    buffer = bytearray(b"\xaa" * (image.size + 10))
    address, keep = native.address_of(buffer)
    with pytest.raises(RuntimeError, match="do not fit"):
        image.write(Memory([(address, image.size - 1)], keep), 0, 1)
    assert buffer == b"\xaa" * len(buffer)
    pieces = native.Pieces(array("Q", [2**63]), array("Q", [address]), array("Q", [8]))
    with pytest.raises(RuntimeError, match="do not fit"):
        native.copy(Memory([(address, 100)], keep).segments, 0, pieces, 0, 2**64 - 1, 1)
