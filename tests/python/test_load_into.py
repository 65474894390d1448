"""load(into=) fills existing tensors, and compares everything before it changes anything."""

from __future__ import annotations

import copy
import pathlib
from typing import Any, Dict

import ckptd
import pytest
import torch
from checkpoint_files import CHUNK, flip, saved, write_checkpoint


def training_state(seed: int) -> Dict[str, Any]:
    """A model and its AdamW after a step, as trainers save them."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.LayerNorm(200), torch.nn.Linear(200, 7))
    optimizer = torch.optim.AdamW(model.parameters(), lr=seed / 10)
    model(torch.randn(4, 300)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": seed, "rng": torch.get_rng_state()}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def load(root: pathlib.Path, into: Any, **options: Any) -> Any:
    with ckptd.open_root(root).open() as checkpoint:
        return checkpoint.load("m.pt", into=into, **options)


def test_training_state_is_loaded_into_existing_tensors(tmp_path: pathlib.Path) -> None:
    was, into = training_state(1), training_state(2)
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved(was)})
    places = {name: tensor.data_ptr() for name, tensor in into["model"].items()}
    assert not equal(was, into)
    assert load(tmp_path, into) is into
    assert equal(was, into) and into["step"] == 1 and into["optimizer"]["param_groups"][0]["lr"] == 0.1
    assert {name: tensor.data_ptr() for name, tensor in into["model"].items()} == places


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(lambda: torch.zeros(4, 300).t(), id="of another stride"),
        pytest.param(lambda: torch.zeros(300, 8)[:, ::2], id="with gaps"),
        pytest.param(lambda: torch.nn.Parameter(torch.zeros(300, 4)), id="a parameter"),
    ],
)
@pytest.mark.parametrize(
    "was",
    [
        pytest.param(lambda: torch.randn(300, 4), id="contiguous"),
        pytest.param(lambda: torch.randn(4, 300).t(), id="transposed"),
        pytest.param(lambda: torch.randn(900, 4)[1::3], id="a slice"),
        pytest.param(lambda: torch.randn(300, 1).expand(300, 4), id="expanded"),
    ],
)
def test_tensors_of_any_memory_layout_are_saved_as_torch_save_does(tmp_path: pathlib.Path, was: Any, there: Any) -> None:
    value, into = was(), there()
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved([value, value[7:9]])})
    rest = torch.zeros(2, 4)
    load(tmp_path, [into, rest])
    assert torch.equal(into, value) and torch.equal(rest, value[7:9])


def test_every_type_and_the_odd_shapes(tmp_path: pathlib.Path) -> None:
    state = {
        str(dtype): torch.arange(5).to(dtype)
        for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64)
    }
    state.update(scalar=torch.tensor(2.5), empty=torch.zeros(0, 3), large=torch.randn(3 * CHUNK))
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved(state)})
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load(tmp_path, into)
    assert equal(into, state)


def test_tensors_of_one_storage_are_loaded_into_separate_tensors(tmp_path: pathlib.Path) -> None:
    one = torch.arange(100_000, dtype=torch.float32)
    was = {"all": one, "again": one, "middle": one[1000:60_000], "empty": one[:0]}
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved(was)})
    into = {name: torch.zeros_like(tensor) for name, tensor in was.items()}
    with ckptd.open_root(tmp_path).open("a") as checkpoint:
        checkpoint.load("m.pt", into=into)
    assert equal(into, was)


def test_tied_weights_stay_tied(tmp_path: pathlib.Path) -> None:
    weight = torch.randn(50, 20)
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"embed": weight, "head": weight})})
    there = torch.zeros(50, 20)
    into = load(tmp_path, {"embed": there, "head": there})
    assert torch.equal(there, weight) and into["head"] is there


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda s: s["model"].pop("0.bias"), "model.0.bias: was saved, and the target does not have it"),
        (lambda s: s["model"].update(new=torch.zeros(1)), "model.new: was not saved"),
        (lambda s: s["model"].update({"0.bias": torch.zeros(201)}), r"model.0.bias: \(200,\) was saved, and the target has \(201,\)"),
        (lambda s: s["model"].update({"0.bias": torch.zeros(200).half()}), "model.0.bias: torch.float32 was saved, and the target has torch.float16"),
        (lambda s: s["model"].update({"0.bias": 3}), "model.0.bias: a tensor was saved, and the target has a int"),
        (lambda s: s.update(step=torch.tensor(1)), "step: int was saved, and the target has a tensor"),
        (lambda s: s["optimizer"]["param_groups"].append({}), "optimizer.param_groups: 1 elements were saved, and the target has 2"),
        (lambda s: s["model"].update({"0.bias": torch.zeros(200, device="meta")}), "meta device"),
    ],
)
def test_mismatch_is_named_and_nothing_is_changed(tmp_path: pathlib.Path, change: Any, says: str) -> None:
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved(training_state(1))})
    into = training_state(2)
    change(into)
    before = copy.deepcopy(into)
    with pytest.raises(ckptd.Refused, match=says) as caught:
        load(tmp_path, into)
    assert caught.value.reason == "STATE_MISMATCH" and "m.pt of a" in str(caught.value)
    tensors = {k: v for k, v in into["model"].items() if not (isinstance(v, torch.Tensor) and v.is_meta)}
    assert equal(tensors, {k: before["model"][k] for k in tensors}) and equal(into["optimizer"], before["optimizer"])
    assert into["step"] == before["step"] or isinstance(into["step"], torch.Tensor)


def test_many_differences_are_cut_and_counted(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({str(i): torch.zeros(1) for i in range(30)})})
    with pytest.raises(ckptd.Refused, match="and 22 more"):
        load(tmp_path, {})


def test_a_wrong_bit_is_corrupt_and_names_the_chunk(tmp_path: pathlib.Path) -> None:
    folder = write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"w": torch.randn(4 * CHUNK)})})
    flip(folder / "m.pt", 5 * CHUNK + 17)
    with pytest.raises(ckptd.Corrupt) as caught:
        load(tmp_path, {"w": torch.zeros(4 * CHUNK)})
    assert caught.value.details["chunk"] == 5


def test_backward_notices_that_a_weight_was_loaded_meanwhile(tmp_path: pathlib.Path) -> None:
    weight = torch.nn.Parameter(torch.randn(5))
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"w": torch.zeros(5)})})
    loss = (weight * weight).sum()
    load(tmp_path, {"w": weight})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_load_into_needs_no_extra_memory(tmp_path: pathlib.Path) -> None:
    import subprocess
    import sys

    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"w": torch.ones(64 << 20)})})  # 256 MiB
    code = f"""
import resource, torch, ckptd
into = {{"w": torch.zeros(64 << 20)}}
into["w"].fill_(2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ckptd.open_root({str(tmp_path)!r}).open() as checkpoint:
    checkpoint.load("m.pt", into=into)
assert into["w"].eq(1).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 0.5 * (256 << 20)


@pytest.mark.parametrize("old", [True, False], ids=["legacy file", "torch that tells no offsets"])
def test_load_into_copies_if_torch_gives_no_offsets(
    tmp_path: pathlib.Path, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    was, into = training_state(1), training_state(2)
    content = saved(was)
    if old:
        buffer = io.BytesIO()
        torch.save(was, buffer, _use_new_zipfile_serialization=False)
        content = buffer.getvalue()
    else:
        monkeypatch.setattr("ckptd._torch.reading.load_into.offset_of", lambda saved: None)
    write_checkpoint(tmp_path, "a", 1, {"m.pt": content})
    load(tmp_path, into)
    assert equal(was, into)


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({torch.full((2,), 3.0)}, id="in a set"),
        pytest.param({"list": [1, {torch.full((2,), 3.0)}]}, id="in a set in a list"),
    ],
)
def test_tensors_in_values_that_are_set_have_their_bytes(tmp_path: pathlib.Path, extra: Any) -> None:
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"w": torch.ones(3), "extra": extra, "n": 7})})
    into: Any = {"w": torch.zeros(3), "extra": {"list": [0, 0]} if isinstance(extra, dict) else None, "n": 0}
    with ckptd.open_root(tmp_path).open() as checkpoint:
        checkpoint.load("m.pt", into=into)
    found = into["extra"]["list"][1] if isinstance(extra, dict) else into["extra"]
    assert [tensor.tolist() for tensor in found] == [[3.0, 3.0]]
    assert into["w"].tolist() == [1, 1, 1] and into["n"] == 7


@pytest.mark.parametrize(
    "rename, word",
    [
        (lambda name: f"_orig_mod.{name}", '"_orig_mod." in the saved names, which torch.compile puts there'),
        (lambda name: f"module.{name}", '"module." in the saved names, which DistributedDataParallel'),
        (lambda name: f"model.{name}", '"model." in the saved names: save'),
        (lambda name: name.replace("layers.0.", "layers.0._orig_mod."), '"_orig_mod." in the saved names'),
    ],
)
def test_names_that_differ_by_a_prefix_alone_are_refused_with_the_prefix(tmp_path: pathlib.Path, rename: Any, word: str) -> None:
    plain = {"layers.0.weight": torch.ones(2), "layers.1.weight": torch.ones(2), "head.bias": torch.ones(1)}
    wrapped = {rename(name): tensor for name, tensor in plain.items()}
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved({"model": wrapped, "step": 1})})
    with pytest.raises(ckptd.Refused) as caught:
        load(tmp_path, {"model": plain, "step": 0})
    assert word in str(caught.value) and "was not saved" in str(caught.value)
    write_checkpoint(tmp_path, "b", 2, {"m.pt": saved(plain)})
    with pytest.raises(ckptd.Refused, match="in the names to fill"):
        load(tmp_path, wrapped)
    with pytest.raises(ckptd.Refused) as caught:
        load(tmp_path, {**wrapped, "more": torch.ones(1)})
    assert "differ only by" not in str(caught.value)
