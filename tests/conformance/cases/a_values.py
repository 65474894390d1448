"""Values, dtypes, layouts and objects, as torch.save and torch.load keep them."""

from __future__ import annotations

import argparse
import collections
import copy
import enum
import pathlib
from typing import Any

import numpy
import torch
from conformance.case import FAILURE, bits_of, bytes_of, case, expect, expect_same, share_memory, train

AREA = "Values"


def round_trip(writer: Any, reader: Any, folder: pathlib.Path, state: Any, **options: Any) -> Any:
    writer.save(folder / "runs/step-1", state)
    return reader.load(folder / "runs/step-1", **options)


def keeps(writer: Any, reader: Any, folder: pathlib.Path, state: Any, **options: Any) -> None:
    expect_same(round_trip(writer, reader, folder, state, **options), state)


@case(AREA, "torch")
def every_dtype(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Tensors of every dtype come back bit by bit."""
    state = {}
    for name in ("float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64 complex128 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool").split():
        dtype = getattr(torch, name)
        raw = torch.arange(64, dtype=torch.uint8)
        state[name] = raw % 2 == 0 if dtype == torch.bool else raw.view(dtype)
    keeps(writer, reader, folder, state)


@case(AREA, "torch")
def nan_payloads_and_signed_zeros(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """NaNs keep their payload, zeros their sign, infinities and denormals their value."""
    raw = torch.tensor([0x7FC00001, 0x7F800001, -0x80000000, 0x7F800000, 1], dtype=torch.int32)
    keeps(writer, reader, folder, {"x": raw.view(torch.float32)})


@case(AREA, "torch")
def empty_and_scalar_tensors(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Tensors without an element, with a dimension of 0, and without a dimension keep their shape."""
    keeps(writer, reader, folder, {"none": torch.empty(0), "rows": torch.empty(0, 7), "scalar": torch.tensor(3.5), "one": torch.ones(1, 1, 1)})


@case(AREA, "torch", "pytorch/pytorch#53419", "pytorch/pytorch#1995", "pytorch/pytorch#33101")
def small_view_of_a_large_tensor(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A slice of a large tensor takes the room of the slice, not of the tensor."""
    large = torch.randn(1_000_000)
    got = round_trip(writer, reader, folder, {"x": large[:10]})
    expect_same(got["x"], large[:10])
    size = bytes_of(folder / "runs/step-1")
    expect(size < 100_000, f"the checkpoint has {size} bytes for 10 elements")


@case(AREA, "torch", "pytorch/pytorch#95278")
def chunks_of_one_tensor(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """All chunks of a tensor take the room of the tensor once."""
    whole = torch.randn(100_000)
    got = round_trip(writer, reader, folder, {"chunks": list(torch.chunk(whole, 10))})
    expect_same(got["chunks"], list(torch.chunk(whole, 10)))
    size = bytes_of(folder / "runs/step-1")
    expect(size < 450_000, f"the checkpoint has {size} bytes for 400,000 bytes of tensors")


@case(AREA, "torch")
def overlapping_views_share_memory(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Two views that overlap still do: a change of one shows in the other."""
    base = torch.arange(100.0)
    got = round_trip(writer, reader, folder, {"a": base[10:50], "b": base[30:80]})
    got["a"][25] = -1.0
    expect(got["b"][5].item() == -1.0, "the views do not share memory any more")


@case(AREA, "torch", reason="a storage of a `.pt` has one dtype; torch refuses the state in the same words")
def views_of_several_dtypes(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Views of one buffer in several dtypes, at odd offsets, come back with their values."""
    buffer = torch.arange(64, dtype=torch.uint8)
    keeps(writer, reader, folder, {"bytes": buffer[1:9], "halves": buffer[2:34].view(torch.float16), "ints": buffer[4:36].view(torch.int32)[1:3]})


@case(AREA, "torch")
def strided_tensors(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Transposed, sliced with a step, flipped and channels-last tensors come back with their values."""
    x = torch.arange(120.0).reshape(2, 3, 4, 5)
    state = {
        "transposed": x.transpose(1, 3),
        "stepped": x[:, :, ::2, 1::2],
        "flipped": x.flip(0),
        "channels_last": x.to(memory_format=torch.channels_last),
        "diagonal": torch.arange(16.0).reshape(4, 4).diagonal(),
    }
    got = round_trip(writer, reader, folder, state)
    expect_same(got, state)
    expect(got["channels_last"].stride() == state["channels_last"].stride(), "channels_last has other strides")


@case(AREA, "torch")
def expanded_tensor(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A tensor that was expanded takes the room of what was expanded."""
    x = torch.tensor([1.5, 2.5]).unsqueeze(1).expand(2, 100_000)
    expect_same(round_trip(writer, reader, folder, {"x": x}), {"x": x})
    expect(bytes_of(folder / "runs/step-1") < 100_000, "the expanded tensor was written in full")


@case(AREA, "torch")
def conjugated_view(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A tensor that is conjugated lazily comes back with the values that one sees."""
    z = torch.randn(8, dtype=torch.complex64)
    got = round_trip(writer, reader, folder, {"conj": z.conj()})
    expect(torch.equal(got["conj"].resolve_conj(), z.conj().resolve_conj()), "it has other values")


@case(AREA, "torch")
def negated_view(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A tensor that is negated lazily comes back with the values that one sees."""
    z = torch.randn(8, dtype=torch.complex64)
    got = round_trip(writer, reader, folder, {"imag": z.conj().imag})
    expect(torch.equal(got["imag"].resolve_neg(), z.conj().imag.resolve_neg()), "it has other values")


@case(AREA, "torch")
def sparse_tensors(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Sparse tensors keep their layout and values."""
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    keeps(writer, reader, folder, {"coo": dense.to_sparse(), "csr": dense.to_sparse_csr()})


@case(AREA, "torch")
def quantized_tensor(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A quantized tensor keeps its scale, zero point and integers."""
    keeps(writer, reader, folder, {"q": torch.quantize_per_tensor(torch.randn(10), 0.1, 3, torch.quint8)})


@case(AREA, "torch", "deepspeedai/DeepSpeed#1896", "deepspeedai/DeepSpeed#3824")
def tied_parameters(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Parameters that are tied stay one tensor, and are written once."""
    embedding = torch.nn.Embedding(1000, 64)
    state = {"embedding.weight": embedding.weight, "head.weight": embedding.weight}
    got = round_trip(writer, reader, folder, state)
    expect_same(got, state)
    expect(share_memory(list(got.values())), "the two weights are two tensors now")
    expect(bytes_of(folder / "runs/step-1") < 300_000, "the weight was written twice")


@case(AREA, "torch")
def frozen_and_trained_parameters(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Parameters stay parameters, and keep requires_grad."""
    keeps(writer, reader, folder, {"trained": torch.nn.Parameter(torch.randn(3)), "frozen": torch.nn.Parameter(torch.randn(3), requires_grad=False)})


@case(AREA, "torch")
def attributes_of_tensors(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Attributes that a program has given a parameter, such as Megatron's, come back."""
    weight = torch.nn.Parameter(torch.randn(3))
    weight.tensor_model_parallel = True
    weight.scale = torch.tensor([2.0])
    got = round_trip(writer, reader, folder, {"w": weight}, weights_only=False)["w"]
    expect_same(got, weight)
    expect(getattr(got, "tensor_model_parallel", None) is True, "the attribute is gone")
    expect_same(getattr(got, "scale", None), weight.scale, "the attribute")


NUMPY = (
    "NumPy rebuilds its types from what the file says, unchecked, so by default no file may use them; the error names the "
    "`safe_globals=` that allow it"
)


@case(AREA, "torch", "nerfstudio-project/nerfstudio#3702", "deepmodeling/deepmd-kit#4147", reason=NUMPY)
def numpy_scalar(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A NumPy scalar, such as a best loss, comes back without a switch that lets files run code."""
    keeps(writer, reader, folder, {"best": numpy.float64(0.25), "step": numpy.int64(7)})


@case(AREA, "torch", reason=NUMPY)
def numpy_array(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A NumPy array comes back without a switch that lets files run code."""
    keeps(writer, reader, folder, {"curve": numpy.arange(10, dtype=numpy.float32)})


class Phase(enum.Enum):
    WARMUP = 1


@case(AREA, "torch")
def plain_objects(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Numbers, strings, bytes, None, tuples, sets, ordered and default dictionaries, counters keep their types."""
    state = {
        "int": 2**80, "float": float("nan"), "text": "größe\n\0", "bytes": b"\0\xff", "none": None, "flag": True, "complex": 1 + 2j,
        "tuple": (1, (2, 3)), "set": {1, 2}, "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        "counter": collections.Counter("abca"), "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cpu"),
    }  # fmt: skip
    keeps(writer, reader, folder, state)


@case(AREA, "torch")
def odd_keys(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Keys that are numbers, tuples, empty, long, with dots and slashes come back in their order."""
    keeps(writer, reader, folder, {1: torch.ones(1), (2, "x"): torch.ones(2), "": torch.ones(3), "a.b/c": torch.ones(4), "k" * 10_000: 5, None: 6})


@case(AREA, "torch")
def program_options(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The options of a program (argparse.Namespace) in a checkpoint come back where the reader trusts the file."""
    keeps(writer, reader, folder, {"args": argparse.Namespace(lr=0.1, layers=[1, 2]), "w": torch.ones(2)}, weights_only=False)


@case(AREA, "torch")
def program_options_are_refused_by_default(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A class that torch does not know is refused by default, with the class named, before anything runs."""
    writer.save(folder / "runs/step-1", {"args": argparse.Namespace(lr=0.1)})
    try:
        reader.load(folder / "runs/step-1")
    except FAILURE as error:
        expect("Namespace" in str(error), f"the error does not name the class: {error}")
    else:
        expect(False, "it was loaded")


@case(AREA, "torch")
def enum_and_own_class(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An enum of the program's own comes back where the reader trusts the file."""
    keeps(writer, reader, folder, {"phase": Phase.WARMUP}, weights_only=False)


@case(AREA, "torch")
def lists_of_tensors_that_repeat(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """One tensor at several places of the state stays one object; equal ones stay several."""
    one, other = torch.ones(4), torch.ones(4)
    got = round_trip(writer, reader, folder, {"list": [one, one, other], "again": one})
    expect(got["list"][0] is got["list"][1] is got["again"], "one tensor has become several")
    expect(got["list"][2] is not got["list"][0] and not share_memory([got["list"][0], got["list"][2]]), "two tensors have become one")


@case(AREA, "torch")
def optimizer_state(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An optimizer goes on after a restore as it would have without one."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    train(model, optimizer, 3)
    state = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, 3)
    got = round_trip(writer, reader, folder, state)
    other = torch.nn.Linear(8, 8)
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=1.0)
    other.load_state_dict(got["model"])
    other_optimizer.load_state_dict(got["optimizer"])
    train(other, other_optimizer, 3)
    expect_same(dict(other.state_dict()), dict(model.state_dict()), "the model after three more steps")


@case(AREA, "torch")
def scheduler_scaler_and_generators(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Schedulers, gradient scalers and the states of random generators go on where they were."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)],
        milestones=[5],
    )
    generator = torch.Generator().manual_seed(7)
    state = {
        "scheduler": scheduler.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "torch": torch.get_rng_state(),
        "generator": generator.get_state(),
        "numpy": numpy.random.get_state()[1],
    }
    want = torch.rand(4, generator=generator)
    got = round_trip(writer, reader, folder, state, weights_only=False)
    other = torch.Generator()
    other.set_state(got["generator"])
    expect_same(torch.rand(4, generator=other), want, "the next random numbers")
    expect_same(got["scheduler"]["last_epoch"], state["scheduler"]["last_epoch"])
    scheduler.load_state_dict(got["scheduler"])


@case(AREA, "torch")
def average_of_weights(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The averaged model of torch.optim.swa_utils (EMA) comes back with its count."""
    model = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(3, 3), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    model.update_parameters(torch.nn.Linear(3, 3))
    model.update_parameters(torch.nn.Linear(3, 3))
    got = round_trip(writer, reader, folder, model.state_dict())
    expect_same(dict(got), dict(model.state_dict()))
    expect(int(got["n_averaged"]) == 2, "the count is gone")


@case(AREA, "torch")
def module_metadata(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A state dict keeps its _metadata, by which modules know the version of their layout."""
    state = torch.nn.BatchNorm1d(3).state_dict()
    got = round_trip(writer, reader, folder, state)
    expect(type(got) is collections.OrderedDict, f"it is a {type(got).__name__}")
    expect(getattr(got, "_metadata", None) == state._metadata, "_metadata is gone")


@case(AREA, "torch")
def saved_again_over_a_larger_one(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A smaller state that is saved to the same name leaves nothing of the larger one."""
    writer.save(folder / "runs/best", {"x": torch.ones(100_000)})
    writer.save(folder / "runs/best", {"x": torch.zeros(10)})
    expect_same(reader.load(folder / "runs/best"), {"x": torch.zeros(10)})
    expect(bytes_of(folder / "runs/best") < 50_000, "bytes of the larger one are left")


@case(AREA, "torch")
def onto_the_meta_device(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """map_location="meta" gives shapes without data."""
    got = round_trip(writer, reader, folder, {"x": torch.ones(3, 4)}, map_location="meta")
    expect(got["x"].is_meta and got["x"].shape == (3, 4), "it is no meta tensor of the shape")


@case(AREA, "torch")
def ten_thousand_small_tensors(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A state of ten thousand small tensors is saved in seconds and comes back whole."""
    keeps(writer, reader, folder, {f"layer.{i}.bias": torch.full((3,), float(i)) for i in range(10_000)})


@case(AREA, "torch")
def state_that_refers_to_itself(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A list that contains itself, as pickle allows, comes back so."""
    loop: Any = [torch.ones(2)]
    loop.append(loop)
    got = round_trip(writer, reader, folder, {"loop": loop})["loop"]
    expect(got[1] is got and bits_of(got[0]) == bits_of(loop[0]), "the loop is another one")


@case(AREA, "torch")
def file_that_runs_code(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A file that would run a program when it is unpickled is refused by default, and runs nothing."""

    class Evil:
        def __reduce__(self) -> Any:
            import os

            return os.system, (f"touch {folder}/ran",)

    writer.save(folder / "runs/step-1", {"x": Evil()})
    try:
        reader.load(folder / "runs/step-1")
    except FAILURE:
        pass
    else:
        expect(False, "it was loaded")
    expect(not (folder / "ran").exists(), "its program ran")


@case(AREA, "torch")
def weights_of_an_adapter(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The weights of an adapter (LoRA) alone load into a model that has more, with strict=False."""
    model = torch.nn.ModuleDict({"base": torch.nn.Linear(4, 4), "lora_a": torch.nn.Linear(4, 2, bias=False)})
    adapter = {name: tensor for name, tensor in model.state_dict().items() if "lora" in name}
    got = round_trip(writer, reader, folder, adapter)
    other = torch.nn.ModuleDict({"base": torch.nn.Linear(4, 4), "lora_a": torch.nn.Linear(4, 2, bias=False)})
    base = other["base"].weight.detach().clone()
    result = other.load_state_dict(got, strict=False)
    expect(sorted(result.missing_keys) == ["base.bias", "base.weight"] and not result.unexpected_keys, f"{result}")
    expect_same(other["lora_a"].weight.detach(), model["lora_a"].weight.detach(), "the adapter")
    expect_same(other["base"].weight.detach(), base, "the base")


@case(AREA, "torch")
def compiled_model(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The state of a compiled model keeps its names, with the prefix that torch.compile gives them."""
    model = torch.compile(torch.nn.Linear(3, 3))
    keeps(writer, reader, folder, {name: tensor.detach() for name, tensor in model.state_dict().items()})


@case(AREA, "torch")
def mapped_into_memory(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """mmap=True gives the same values."""
    state = {"w": torch.arange(100_000.0)}
    expect_same(round_trip(writer, reader, folder, state, mmap=True), state)


@case(AREA, "torch")
def half_precision_copy_of_a_model(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A bfloat16 copy beside float32 master weights: both come back in their own precision."""
    master = torch.nn.Linear(16, 16)
    half = copy.deepcopy(master).to(torch.bfloat16)
    keeps(writer, reader, folder, {"master": dict(master.state_dict()), "half": dict(half.state_dict())})
