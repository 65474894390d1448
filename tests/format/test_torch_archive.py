"""The C++ reader reads what torch.save writes, and torch.load reads what the C++ writer writes, bit for bit.
"""

from __future__ import annotations

import collections
import io
import os
import pathlib
import pickle
import random
import sys
import types
import warnings
import zipfile
from typing import Any, Callable, Dict, Iterator

import numpy
import pytest
import torch
from shown import STORAGE_DTYPES, Shower
from tensor_files import Refused, Tool

NEW_DTYPES = [d for d in torch.storage._new_dtypes() if d.itemsize]
VALUES: Dict[str, Callable[[], Any]] = {}


def value(make: Callable[[], Any]) -> Callable[[], Any]:
    VALUES[make.__name__] = make
    return make


def some(dtype: torch.dtype, count: int = 24) -> torch.Tensor:
    """Returns a tensor of any dtype whose bytes differ from place to place."""
    raw = torch.arange(1, count * dtype.itemsize + 1, dtype=torch.int64).to(torch.uint8)
    return raw.to(torch.bool) if dtype is torch.bool else raw.view(dtype)


@value
def plain_values() -> Any:
    numbers = [0, 1, -1, 255, 256, 65535, 65536, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**70, -(2**300)]
    floats = [0.0, -0.0, 1.5, float("inf"), float("nan"), 5e-324]
    texts = ["", "ü", "日本", "\ud800", "x" * 100_000, "a\nb\0"]
    return [None, True, False, numbers, floats, texts, b"", b"\0\xff", bytes(range(256))]


@value
def containers() -> Any:
    shared = [1, 2]
    nested: Any = None
    for _ in range(90):
        nested = [nested]
    return {
        "list": list(range(3001)),
        "tuple": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "dict": {i: str(i) for i in range(2001)},
        "keys": {1: 1, "1": 2, 1.5: 3, None: 4, (1, "x"): 5, b"k": 6, torch.float32: 7, torch.Size([2]): 8},
        "sets": [set(), {1, 2, "x"}, frozenset([3])],
        "shared": [shared, shared, (shared,)],
        "nested": nested,
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    }


@value
def carried() -> Any:
    counter = collections.Counter("abca")
    default = collections.defaultdict(list, {"a": [1]})
    return [
        1 + 2j,
        bytearray(b"xyz"),
        range(1, 9, 2),
        counter,
        default,
        collections.defaultdict(int),
        collections.deque([1, 2], 5),
        torch.device("cpu"),
        torch.device("cuda", 1),
        torch.Size([2, 3]),
        torch.Size([]),
        torch.bfloat16,
        torch.float8_e5m2,
    ]


@value
def every_dtype() -> Any:
    tensors = {str(dtype): some(dtype) for dtype in [*STORAGE_DTYPES, *NEW_DTYPES] if not str(dtype).startswith("torch.q")}
    tensors.update({k + " 0-dim": t[3] for k, t in tensors.items()})
    return tensors


@value
def views() -> Any:
    base = some(torch.float32, 48)
    flat = base.reshape(2, 3, 4, 2)
    return {
        "base": base,
        "slice": base[5:17],
        "every third": base[1::3],
        "transposed": base.reshape(6, 8).t(),
        "permuted": flat.permute(3, 1, 0, 2),
        "channels_last": flat.to(memory_format=torch.channels_last),
        "expanded": base[:1].expand(1000, 1000),
        "expanded column": base.reshape(48, 1).expand(48, 5),
        "overlapping": base.as_strided((5, 4), (1, 2), 3),
        "empty": torch.empty(0),
        "empty shape": torch.empty(3, 0, 2),
        "empty view": base[4:4],
        "0-dim": torch.tensor(7),
        "0-dim view": base[9],
        "one": base[7:8].reshape(1, 1, 1),
        "other": some(torch.float32, 3),
    }


@value
def autograd() -> Any:
    weight = torch.nn.Parameter(some(torch.float32, 6).reshape(2, 3))
    frozen = torch.nn.Parameter(some(torch.int32, 4), requires_grad=False)
    tagged = torch.nn.Parameter(some(torch.float16, 4))
    tagged.tensor_model_parallel = True
    tagged.partition = (0, [1])
    tensor = some(torch.float64, 2)
    tensor.note = {"a": weight}
    unsigned = torch.nn.Parameter(some(torch.uint16, 4), requires_grad=False)
    return [weight, weight, frozen, tagged, tensor, unsigned, torch.ones(3, requires_grad=True)]


@value
def bits() -> Any:
    number = some(torch.complex64, 4)
    return [number, number.conj(), some(torch.complex64, 4).conj().imag, some(torch.complex128, 4).conj()[1:3]]


@value
def training_state() -> Any:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Embedding(5, 8))
    model[0].weight.data.normal_()
    model.append(model[0])
    optimizer = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters()}], amsgrad=True)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5, 5])
    model[1](model[0](torch.randn(4, 8))).sum().backward()
    optimizer.step()
    scheduler.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 0},
        "rng": [torch.get_rng_state(), random.Random(1).getstate()],
    }


@value
def arrays() -> Any:
    array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    return {"array": array, "fortran": numpy.asfortranarray(array), "scalar": numpy.float64(2.5), "int": numpy.int64(3)}


@value
def other_layouts() -> Any:
    coo = torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3), check_invariants=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr = coo.to_sparse_csr()
    return {"coo": coo.coalesce(), "csr": csr, "meta": torch.empty(3, 4, device="meta")}


@value
def quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.tensor([-1.0, 0.0, 2.0]), 0.1, 10, torch.quint8)


@value
def storages() -> Any:
    tensor = some(torch.float32, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typed = tensor.storage()
    return [tensor, typed, some(torch.uint8, 5).untyped_storage(), some(torch.uint16, 5)]


@value
def bare_tensor() -> Any:
    return some(torch.bfloat16, 6).reshape(2, 3)


class Stub:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__


@value
def references() -> Any:
    reference = sys.modules["torch_xla.utils.serialization"].TensorReference
    internal = sys.modules["neuronx_distributed.trainer.checkpoint"]._InternalTensorReference
    shared = reference(tid=7)
    return {
        "weight": reference(tid=0),
        "tied": [shared, shared],
        "lr": internal(tid=3, shape=[2, 3], dtype=torch.bfloat16, expert_model_parallel=False),
        "lr 2": internal(tid=4, shape=torch.Size([2]), dtype=torch.float32, expert_model_parallel=True),
    }


@pytest.fixture(scope="module", autouse=True)
def modules_of_others() -> Iterator[None]:
    """Stand-ins for classes that exist only on machines with Neuron."""
    names = {
        "torch_xla": [],
        "torch_xla.utils": [],
        "torch_xla.utils.serialization": ["TensorReference"],
        "neuronx_distributed": [],
        "neuronx_distributed.trainer": [],
        "neuronx_distributed.trainer.checkpoint": ["_InternalTensorReference"],
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, classes in names.items():
            module = types.ModuleType(name)
            for cls in classes:
                setattr(module, cls, type(cls, (Stub,), {"__module__": name, "__hash__": object.__hash__}))
            patch.setitem(sys.modules, name, module)
        yield


def expected(obj: Any) -> Any:
    shower = Shower()
    return shower.show(obj), shower.storages


def check_shown(shown: Any, path: pathlib.Path, obj: Any) -> None:
    root, storages = expected(obj)
    assert shown["root"] == root
    content = path.read_bytes()
    assert len(shown["storages"]) == len(storages)
    for found, held in zip(shown["storages"], storages):
        assert content[found["offset"] : found["offset"] + found["bytes"]] == held
        assert found["location"] == "cpu"


def load(path: pathlib.Path, mmap: bool, weights_only: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, mmap=mmap, weights_only=weights_only)


# Protocol 5 stores arrays in another way: see the next test.
@pytest.mark.parametrize("name,protocol", [(n, p) for n in VALUES for p in (2, 4, 5) if (n, p) != ("arrays", 5)])
def test_reads_every_value_that_torch_saves(name: str, protocol: int, tool: Tool, tmp_path: pathlib.Path) -> None:
    obj, path = VALUES[name](), tmp_path / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(obj, path, pickle_protocol=protocol)
    shown = tool("show", path)
    assert shown["name"] == "model"
    check_shown(shown, path, obj)


def test_carries_arrays_of_protocol_5(tool: Tool, tmp_path: pathlib.Path) -> None:
    obj, old, new = VALUES["arrays"](), tmp_path / "old.pt", tmp_path / "new.pt"
    torch.save(obj, old, pickle_protocol=5)
    tool("rewrite", old, new)
    for name, array in load(new, False, False).items():
        assert numpy.array_equal(array, obj[name]) and array.dtype == obj[name].dtype


# torch does not load these with weights_only: its list of allowed classes is shorter.
NEEDS_ALL = {"carried", "arrays", "references", "containers"}


@pytest.mark.parametrize("name", VALUES)
def test_torch_loads_written_archive_bit_for_bit(name: str, tool: Tool, tmp_path: pathlib.Path) -> None:
    obj, old, new = VALUES[name](), tmp_path / "old.pt", tmp_path / "new.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(obj, old)
    tool("rewrite", old, new)
    want = expected(load(old, False, False))
    for mmap in (False, True):
        for weights_only in {False, name not in NEEDS_ALL}:
            assert expected(load(new, mmap, weights_only)) == want
    # Our own reader reads it, too.
    again = tool("show", new)
    assert (again["root"], again["name"]) == (tool("show", old)["root"], "archive")
    check_shown(again, new, obj)


def test_pickle_of_state_dict_equals_that_of_torch(tool: Tool, tmp_path: pathlib.Path) -> None:
    old, new = tmp_path / "old.pt", tmp_path / "new.pt"
    torch.save({"a": torch.ones(2), "b": [torch.zeros(3, dtype=torch.uint16), 1, None]}, old)
    tool("rewrite", old, new)
    with zipfile.ZipFile(old) as before, zipfile.ZipFile(new) as after:
        assert after.read("archive/data.pkl") == before.read("old/data.pkl")
        assert [n.partition("/")[2] for n in after.namelist()] == [n.partition("/")[2] for n in before.namelist()]


def test_archive_with_checksums_passes_python_zipfile_and_unzip(tool: Tool, tmp_path: pathlib.Path) -> None:
    old, new = tmp_path / "old.pt", tmp_path / "new.pt"
    torch.save(VALUES["views"](), old)
    tool("rewrite", old, new, "checksums")
    with zipfile.ZipFile(new) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) > 5
    tool("rewrite", old, new)  # Without checksums zipfile fails and torch does not.
    with zipfile.ZipFile(new) as archive:
        assert archive.testzip() == "archive/data/0"
    load(new, True, True)


@pytest.mark.parametrize("alignment", [1, 64, 4096])
def test_reads_files_of_older_and_other_layouts(alignment: int, tool: Tool, tmp_path: pathlib.Path) -> None:
    obj, path = VALUES["training_state"](), tmp_path / "model.pt"
    before = torch.utils.serialization.config.save.storage_alignment
    try:
        torch.utils.serialization.config.save.storage_alignment = max(alignment, 2)
        buffer = io.BytesIO()
        torch.save(obj, buffer)
    finally:
        torch.utils.serialization.config.save.storage_alignment = before
    path.write_bytes(buffer.getvalue())
    assert tool("show", path)["name"] == "archive"
    check_shown(tool("show", path), path, obj)
    # The layout of torch before 2.1: no byteorder, and no records that begin with a dot. The file is repacked
    # by a program that does not align records.
    with zipfile.ZipFile(buffer) as full, zipfile.ZipFile(path, "w") as bare:
        for name in full.namelist():
            if "/." not in name and not name.endswith("byteorder"):
                bare.writestr(name, full.read(name))
    check_shown(tool("show", path), path, obj)


def test_reads_storages_beyond_4_gib(tool: Tool, tmp_path: pathlib.Path) -> None:
    """All bytes are holes: neither file takes disk space."""
    old, new = tmp_path / "archive.pt", tmp_path / "new.pt"
    sizes = [2**32 - 2, 2**32 - 1, 2**32, 5 * 2**30, 8, 0]
    with torch.serialization.skip_data():
        torch.save([torch.empty(n, dtype=torch.uint8) for n in sizes], old)
    shown = tool("show", old)
    assert [s["bytes"] for s in shown["storages"]] == sizes
    reader = torch._C.PyTorchFileReader(str(old))
    assert [s["offset"] for s in shown["storages"]] == [reader.get_record_offset(f"data/{i}") for i in range(6)]
    tool("rewrite", old, new, "holes")
    assert os.stat(new).st_size == os.stat(old).st_size
    assert [s["offset"] for s in tool("show", new)["storages"]] == [s["offset"] for s in shown["storages"]]
    loaded = torch.load(new, mmap=True, weights_only=True)
    assert [t.numel() for t in loaded] == sizes
    with zipfile.ZipFile(new) as archive:
        assert archive.getinfo("archive/data/3").file_size == 5 * 2**30


class Bomb:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_that_calls_a_function_is_refused_by_name(protocol: int, tool: Tool, tmp_path: pathlib.Path) -> None:
    path, mark = tmp_path / "model.pt", tmp_path / "mark"
    bomb = {"weight": [1, Bomb(os.system, f"touch {mark}")]}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(bomb, protocol))
        archive.writestr("model/version", "3\n")
    for command in (["show", path], ["rewrite", path, tmp_path / "new.pt"]):
        with pytest.raises(Refused, match="FAILED_PRECONDITION UNSAFE_PICKLE: .*model.pt.* the pickle asks for posix.system, which"):
            tool(*command)
    assert not mark.exists() and not (tmp_path / "new.pt").exists()


def test_storage_that_ends_within_an_element_is_padded(tool: Tool, tmp_path: pathlib.Path) -> None:
    obj, old, new = some(torch.uint8, 10)[:8].view(torch.float32), tmp_path / "old.pt", tmp_path / "new.pt"
    torch.save(obj, old)
    with pytest.raises(RuntimeError, match="does not match expected size"):
        load(old, False, True)
    tool("rewrite", old, new)
    assert load(new, False, True).tolist() == obj.tolist()


def test_legacy_file_is_refused_with_advice(tool: Tool, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(Refused, match="UNIMPLEMENTED UNSUPPORTED_ARCHIVE: .* torch before 1.6 .* save it again"):
        tool("show", path)


def test_torchscript_file_is_refused_as_such(tool: Tool, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), path)
    with pytest.raises(Refused, match="UNSUPPORTED_ARCHIVE: .* torch.jit.save"):
        tool("show", path)
