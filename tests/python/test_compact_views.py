"""Views of shared buffers, saved compactly: what torch.save and torch.load would give back, also where the views are
of several dtypes, overlap, or have odd strides.
"""

from __future__ import annotations

import io
import pathlib
import random
from typing import Any, Dict, Iterator, List, Tuple

import ckptd
import pytest
import torch
from checkpoint_files import saved, write_checkpoint
from ckptd._saving import finite
from ckptd._torch.writing import archive_writer

pytestmark = pytest.mark.filterwarnings("ignore")

# torch keeps these beside one another in one storage.
BYTES = [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64, torch.complex128]


def view_of(random_: random.Random, storage: Any, dtype: torch.dtype) -> torch.Tensor:
    """Returns a view with random offset, shape and strides, which are within the storage."""
    count = storage.nbytes() // dtype.itemsize
    offset = random_.randrange(count + 1)
    shape: List[int] = []
    strides: List[int] = []
    room = count - offset - 1  # The largest index beyond the first element.
    for _ in range(random_.randrange(4)):
        stride = random_.choice((0, 1, 1, 2, 3, 7))
        size = random_.randrange(0, 6) if stride == 0 or room < 0 else random_.randrange(0, min(6, room // stride + 1) + 1)
        shape.append(size)
        strides.append(stride)
        room -= max(0, size - 1) * stride
    if offset == count and 0 not in shape:
        shape, strides = [0, *shape], [1, *strides]
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)


def random_state(seed: int) -> Dict[str, torch.Tensor]:
    random_ = random.Random(seed)
    state: Dict[str, torch.Tensor] = {}
    for buffer in range(random_.randrange(1, 4)):
        size = random_.choice((7, 64, 200, 5000))
        dtypes = BYTES if random_.random() < 0.6 else [random_.choice(DTYPES)]
        data = bytes(random_.choices((0, 1), k=size) if torch.bool in dtypes else random_.randbytes(size))
        storage = torch.UntypedStorage(size)
        torch.empty(0, dtype=torch.uint8).set_(storage).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        for number in range(random_.randrange(1, 8)):
            dtype = random_.choice(dtypes)
            tensor = view_of(random_, storage, dtype)
            if dtype.is_floating_point and random_.random() < 0.2:
                tensor = torch.nn.Parameter(tensor, requires_grad=random_.random() < 0.5)
            if dtype.is_complex and random_.random() < 0.3:
                tensor = tensor.conj()
            state[f"{buffer}.{number}"] = tensor
    return dict(random_.sample(list(state.items()), len(state)))


def elements(tensor: torch.Tensor) -> bytes:
    """Returns the elements' bytes, which tell NaNs apart."""
    plain = tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format).flatten()
    return bytes(plain.view(torch.uint8).tolist()) if plain.numel() else b""


def used(tensor: torch.Tensor) -> "Tuple[int, int]":
    """Returns the addresses [begin, end) that a tensor uses."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size() if tensor.numel() else begin


def overlapping(state: Dict[str, torch.Tensor]) -> "Iterator[Tuple[str, str]]":
    for a in state:
        for b in state:
            (begin, end), (other, other_end) = used(state[a]), used(state[b])
            if a != b and begin < other_end and other < end:
                yield a, b


def assert_equal(loaded: Dict[str, torch.Tensor], state: Dict[str, torch.Tensor]) -> None:
    assert list(loaded) == list(state)
    for name, tensor in state.items():
        back = loaded[name]
        assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride()), name
        assert (type(back), back.requires_grad, back.is_conj()) == (type(tensor), tensor.requires_grad, tensor.is_conj()), name
        assert elements(back) == elements(tensor), name
    for a, b in overlapping(state):
        saved, read = (each[b].data_ptr() - each[a].data_ptr() for each in (state, loaded))
        assert read == saved, f"{a} and {b} lie {read} bytes apart, and {saved} when they were saved"


@pytest.mark.parametrize("seed", range(300))
def test_views_come_back_as_torch_gives_them_back(seed: int, tmp_path: pathlib.Path) -> None:
    state = random_state(seed)
    # torch does not load what it has saved of a storage that ends within an element.
    if all(tensor.untyped_storage().nbytes() % tensor.element_size() == 0 for tensor in state.values()):
        assert_equal(torch.load(io.BytesIO(saved(state)), weights_only=True), state)
    for views in ("compact", "keep"):
        data = b"".join(archive_writer.image(state, views).stream())
        assert_equal(torch.load(io.BytesIO(data), weights_only=True), state)
        write_checkpoint(tmp_path, views, 1, {"m.pt": data})
        with ckptd.open_root(tmp_path).open(views) as checkpoint:
            assert_equal(checkpoint.load("m.pt"), state)
            target = {name: torch.zeros_like(tensor) for name, tensor in state.items() if not tensor.is_conj()}
            if len(target) == len(state):
                checkpoint.load("m.pt", into=target)
                assert all(elements(target[name]) == elements(tensor) for name, tensor in state.items())


def test_views_of_several_dtypes_at_odd_offsets_keep_their_values() -> None:
    buffer = torch.arange(4096, dtype=torch.int32).to(torch.uint8)
    state = {"head": buffer[1:4], "numbers": buffer[4:8].view(torch.uint16), "tail": buffer[8:12]}
    data = b"".join(archive_writer.image(state).stream())
    assert len(data) < 4096
    assert_equal(torch.load(io.BytesIO(data), weights_only=True), state)


@pytest.mark.parametrize("views", ["compact", "keep"])
def test_storage_that_ends_within_an_element_can_be_loaded(views: str) -> None:
    buffer = torch.arange(4 * 100 + 3).to(torch.uint8)
    state = {"numbers": buffer[:400].view(torch.float32), "storage": torch.UntypedStorage(7)}
    data = b"".join(archive_writer.image(state, views).stream())
    back = torch.load(io.BytesIO(data), weights_only=True)
    assert elements(back["numbers"]) == elements(state["numbers"])
    assert bytes(back["storage"]) == bytes(state["storage"])


def test_empty_views_far_in_a_buffer_are_no_damage(tmp_path: pathlib.Path) -> None:
    state = {"none": torch.zeros(100_000)[90_000:90_000], "some": torch.ones(3)}
    write_checkpoint(tmp_path, "a", 1, {"m.pt": b"".join(archive_writer.image(state).stream())})
    with ckptd.open_root(tmp_path).open() as checkpoint:
        target = {"none": torch.zeros(0), "some": torch.zeros(3)}
        checkpoint.load("m.pt", into=target)
    assert torch.equal(target["some"], state["some"])


@pytest.mark.parametrize("views", ["compact", "keep"])
def test_nan_in_a_view_is_found_whatever_other_views_its_storage_has(views: str) -> None:
    numbers = torch.tensor([1.0, float("nan"), 2.0, 3.0]).to(torch.float8_e4m3fn)
    state = {"bytes": numbers.view(torch.uint8)[:2], "numbers": numbers}
    image = archive_writer.image(state, views, counts_non_finite=True)
    list(archive_writer.Image.stream(image))  # Writes the whole image.
    assert [(found.name, found.nans) for found in finite.find("m.pt", state, image)] == [("numbers", 1)]


def test_bytes_that_are_no_numbers_are_not_taken_for_nans() -> None:
    buffer = torch.full((64,), 0xFF, dtype=torch.uint8)
    buffer[:4] = 0
    state = {"numbers": buffer[:4].view(torch.float8_e4m3fn), "bytes": buffer}
    image = archive_writer.image(state, counts_non_finite=True)
    list(archive_writer.Image.stream(image))  # Writes the whole image.
    assert finite.find("m.pt", state, image) == []
