"""States whose tensors lie in a buffer that holds the file."""

import collections
import dataclasses
import functools
import io
from typing import Any, NamedTuple, Optional, Tuple

import pytest
import torch
from checkpoint_files import BytesFile
from ckptd import errors
from ckptd._torch.reading.archive_records import Records, records_of
from ckptd._torch.reading.mapped_state import map_tensors


def saved(value: Any) -> Tuple[Any, bytearray, Records]:
    """Saves a value; returns it loaded to the meta device, the file, and where its storages lie."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    meta = torch.load(file, map_location="meta", weights_only=False)
    return meta, bytearray(file.getvalue()), records_of(BytesFile(file.getvalue()))


def over_saved(value: Any) -> Optional[Any]:
    return map_tensors(*saved(value))


def test_every_kind_of_tensor_has_its_bytes_and_no_other_memory():
    state = {
        "f": torch.randn(3, 5),
        "bf": torch.randn(7).bfloat16(),
        "i": torch.arange(11),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "view": torch.arange(20.0)[5:15],
        "strided": torch.arange(12.0).reshape(3, 4).t(),
        "nested": [{"a": (torch.ones(2), 1, "x", None)}],
    }
    meta, image, records = saved(state)
    loaded = map_tensors(meta, image, records)
    assert loaded is not None
    for name in ("f", "bf", "i", "scalar", "empty", "view", "strided"):
        assert torch.equal(loaded[name], state[name]), name
        assert loaded[name].stride() == state[name].stride(), name
    assert torch.equal(loaded["nested"][0]["a"][0], torch.ones(2))
    assert loaded["nested"][0]["a"][1:] == (1, "x", None)
    view = torch.frombuffer(image, dtype=torch.uint8)
    first, last = view.data_ptr(), view.data_ptr() + view.numel()
    assert all(first <= loaded[name].data_ptr() < last for name in ("f", "bf", "i", "scalar", "view", "strided"))


def test_mapped_tensors_of_one_storage_share_memory():
    weight = torch.nn.Parameter(torch.randn(4, 4))
    loaded = over_saved({"a": weight, "b": weight, "row": weight.detach()[1], "other": torch.ones(4)})
    assert loaded is not None
    assert isinstance(loaded["a"], torch.nn.Parameter) and loaded["a"].requires_grad
    with torch.no_grad():
        loaded["a"][1].fill_(9)
    assert loaded["b"][1].tolist() == [9] * 4
    assert loaded["row"].tolist() == [9] * 4
    assert loaded["other"].untyped_storage().data_ptr() != loaded["a"].untyped_storage().data_ptr()


def test_containers_stay_what_they_are():
    model = torch.nn.BatchNorm1d(3)
    loaded = over_saved({"model": model.state_dict(), "same": [torch.ones(1)]})
    assert loaded is not None
    assert type(loaded["model"]).__name__ == "OrderedDict"
    assert loaded["model"]._metadata == model.state_dict()._metadata
    torch.nn.BatchNorm1d(3).load_state_dict(loaded["model"])


class Odd:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@dataclasses.dataclass
class Settings:
    tensor: torch.Tensor


class Subclass(torch.Tensor):
    pass


class Named(str):
    """A str that may have attributes."""


class Mapping(dict):
    """A dict that may have attributes."""


class Point(NamedTuple):
    tensor: torch.Tensor


def makes_nothing(tensor: torch.Tensor) -> None:
    return None


def named() -> Named:
    name = Named("x")
    name.tensor = torch.ones(2)
    return name


def mapping() -> Mapping:
    made = Mapping(a=1)
    made.tensor = torch.ones(2)
    return made


def inside_itself() -> Any:
    value: Any = ([],)
    value[0].append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        Odd(torch.ones(2)),
        torch.ones(2).to_sparse(),
        {torch.ones(1)},
        frozenset([(1, torch.ones(1))]),
        {torch.ones(1): 1},
        {("x", torch.ones(1)): 1},
        Slotted(torch.ones(2)),
        Settings(torch.ones(2)),
        torch.ones(2).as_subclass(Subclass),
        Point(torch.ones(2)),
        collections.deque([torch.ones(2)]),
        collections.defaultdict(functools.partial(makes_nothing, torch.ones(2)), a=1),
        torch.arange(3.0).storage(),
        torch.arange(3.0).untyped_storage(),
        torch.empty(0, device="meta"),
        torch.randn(3, dtype=torch.complex64).conj(),
        named(),
        mapping(),
        inside_itself(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_state_that_cannot_be_mapped_returns_none(value):
    assert over_saved({"x": value}) is None


def test_file_that_is_shorter_than_it_says_is_corrupt():
    meta, image, records = saved({"x": torch.ones(1000)})
    with pytest.raises(errors.Corrupt, match="beyond its end"):
        map_tensors(meta, image[:2000], records)
