"""Saves of tensors on a GPU have the values that the calls saw, whatever the training does meanwhile."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict

import ckptd
import pytest
import torch
from ckptd._memory import copies
from ckptd._torch.gpu import pinning
from harness.stand_in_devices import await_pinning

STAGES = ("blocking", "overlap")
MANY = 16 << 20  # Elements; their copy takes longer than the call.


def clones(state: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}


def assert_equal(saved: Dict[str, Any], expected: Dict[str, Any]) -> None:
    assert saved.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert saved[name].dtype == value.dtype and torch.equal(saved[name].cpu(), value.cpu()), name
        else:
            assert saved[name] == value


def load(run: ckptd.Run, tag: str, **options: Any) -> Any:
    with run.open(tag) as checkpoint:
        return checkpoint.load("model.pt", **options)


def varied_state() -> Dict[str, Any]:
    base = torch.randn(1 << 20, device="cuda")
    return {
        "float32": base,
        "view": base[1000:2000],
        "strided": torch.randn(300, 500, device="cuda").t(),
        "bfloat16": torch.randn(1 << 20, device="cuda", dtype=torch.bfloat16),
        "odd": torch.randint(0, 100, (12345,), device="cuda", dtype=torch.int8),
        "none": torch.empty(0, device="cuda"),
        "scalar": torch.tensor(3.5, device="cuda"),
        "conjugate": torch.randn(1000, device="cuda", dtype=torch.complex64).conj(),
        "parameter": torch.nn.Parameter(torch.randn(1000, device="cuda")).detach(),
        "on_cpu": torch.arange(1000),
        "step": 7,
    }


@pytest.mark.parametrize("stage", STAGES)
def test_every_kind_of_tensor(run: ckptd.Run, stage: Any) -> None:
    state = varied_state()
    for tag in ("a", "b"):  # The second one into pinned memory.
        run.save(tag, files={"model.pt": state}, stage=stage).wait(timeout=60)
        assert_equal(load(run, tag), state)


@pytest.mark.parametrize("stage", STAGES)
def test_values_are_those_of_work_queued_before_the_save(run: ckptd.Run, stage: Any) -> None:
    weight = torch.zeros(MANY, device="cuda")
    for tag in ("a", "b"):
        before = float(weight[0])
        for _ in range(200):
            weight += 1
        save = run.save(tag, files={"model.pt": {"weight": weight}}, stage=stage)
        save.staged()
        weight.zero_()
        save.wait(timeout=60)
        assert_equal(load(run, tag), {"weight": torch.full((MANY,), before + 200)})


@pytest.mark.parametrize("stage", STAGES)
def test_values_of_the_stream_that_saves(run: ckptd.Run, stage: Any) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        weight = torch.ones(MANY, device="cuda")
        for _ in range(200):
            weight += 1
        run.save("t", files={"model.pt": {"weight": weight}}, stage=stage).wait(timeout=60)
    assert_equal(load(run, "t"), {"weight": torch.full((MANY,), 201.0)})


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
def test_optimizer_steps_while_the_state_is_copied(run: ckptd.Run, make: Callable[..., Any]) -> None:
    layers = [torch.nn.Parameter(torch.randn(MANY // 8, device="cuda")) for _ in range(8)]
    optimizer = make(layers, lr=0.1)
    for round_ in range(4):
        for layer in layers:
            layer.grad = torch.randn_like(layer)
        state = {str(i): layer.detach() for i, layer in enumerate(layers)}
        expected = clones(state)
        save = run.save(f"t{round_}", files={"model.pt": state}, stage="overlap")
        for _ in range(3):
            optimizer.step()
        save.wait(timeout=60)
        assert_equal(load(run, f"t{round_}"), expected)
        assert not torch.equal(state["0"], expected["0"])


def test_replayed_graph_waits_for_the_copy(run: ckptd.Run) -> None:
    weight = torch.zeros(MANY, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weight.add_(1)
    for round_ in range(3):
        expected = weight.clone()
        save = run.save(f"t{round_}", files={"model.pt": {"weight": weight}}, stage="overlap")
        graph.replay()
        save.wait(timeout=60)
        assert_equal(load(run, f"t{round_}"), {"weight": expected})


def test_early_change_is_an_error_and_no_checkpoint(run: ckptd.Run) -> None:
    weight = torch.ones(MANY, device="cuda")
    run.save("before", files={"model.pt": {"weight": weight}}, stage="overlap").wait(timeout=60)
    torch.cuda._sleep(1_000_000_000)  # Half a second in which the copy cannot begin.
    save = run.save("t", files={"model.pt": {"weight": weight}}, stage="overlap")
    weight.add_(1)
    with pytest.raises(ckptd.CheckpointFailed, match=r"float32\[16777216\] on cuda:0.*was changed"):
        save.wait(timeout=60)
    assert [info.tag for info in run.list()] == ["before"]
    run.save("after", files={"model.pt": {"weight": weight}}, stage="overlap").wait(timeout=60)
    assert_equal(load(run, "after"), {"weight": weight})


def test_memory_is_pinned(run: ckptd.Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.save("t", files={"model.pt": {"weight": torch.ones(MANY, device="cuda")}}).wait(timeout=60)
        await_pinning()
    assert pinning.pinned_bytes() >= 4 * MANY and not copies.in_flight()


@pytest.mark.parametrize("stage", STAGES)
def test_memory_that_is_not_pinned(run: ckptd.Run, stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTD_PINNED_BYTES", "0")
    state = varied_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.save("t", files={"model.pt": state}, stage=stage).wait(timeout=60)
    assert_equal(load(run, "t"), state)


@pytest.mark.parametrize("from_memory", [True, False], ids=["memory", "disk"])
def test_restores(run: ckptd.Run, from_memory: bool) -> None:
    state = varied_state()
    del state["conjugate"]
    state["large"] = torch.randn(48 << 20, device="cuda")  # It takes several of the buffers.
    run.save("t", files={"model.pt": state}).wait(timeout=60)
    target = {name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0 for name, value in state.items()}
    opened = run.open("t") if from_memory else ckptd.open_root(run.root).open("t")
    with opened as checkpoint:
        checkpoint.load("model.pt", into=target)
        fresh = checkpoint.load("model.pt", map_location="cuda")
    del target["view"], fresh["view"]
    expected = {name: value for name, value in state.items() if name != "view"}
    assert_equal(target, expected)
    assert_equal(fresh, expected)
    assert fresh["large"].device == fresh["on_cpu"].device == torch.device("cuda", 0)
