"""`check=ckptd.Finite()`: NaNs and infinities are found while a state is copied, and named by tensor."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any, Iterator

import ckptd
import pytest
import torch

INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with ckptd.LocalDaemon(str(tmp_path_factory.mktemp("daemon")), pool_bytes=256 << 20) as running:
        yield running


@pytest.fixture
def run(daemon: Any, tmp_path: pathlib.Path) -> Any:
    return ckptd.connect(daemon.endpoint).run(str(tmp_path), rank=0, world_size=1)


def refused(run: Any, state: Any, **options: Any) -> ckptd.NonFinite:
    with pytest.raises(ckptd.NonFinite) as caught:
        run.save("step_1", files={"model.pt": state}, check=ckptd.Finite("refuse"), **options)
    return caught.value


def test_finite_state_is_saved_without_a_word(run: Any) -> None:
    state = {
        "w": torch.randn(1000, 1000),
        "ids": torch.full((5,), -1),  # All bits set, but no floating-point number.
        "limits": torch.tensor([torch.finfo(torch.float32).max, 1e-45, -0.0]),
        "none": torch.empty(0),
        "step": 7,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.save("step_1", files={"model.pt": state, "raw": b"\xff" * 4096}, check=ckptd.Finite()).wait()
    assert torch.equal(run.open("step_1").load("model.pt")["w"], state["w"])


def test_refusal_names_each_tensor_and_counts_both_kinds(run: Any) -> None:
    state = {"model": {"w": torch.zeros(100), "b": torch.zeros(3)}, "moments": [torch.zeros(9), torch.zeros(2, 2)]}
    state["model"]["w"][[3, 50]] = NAN
    state["model"]["w"][99] = -INF
    state["moments"][1][0, 1] = INF
    error = refused(run, state)
    assert error.reason == "NON_FINITE"
    assert error.details["tensors"] == (
        ckptd.NonFiniteTensor("model.pt", "model.w", 2, 1, 100),
        ckptd.NonFiniteTensor("model.pt", "moments.1", 0, 1, 4),
    )
    assert "model.w in model.pt (2 NaN, 1 Inf of 100), moments.1 in model.pt (1 Inf of 4)" in str(error)
    assert run.list() == [], "a refused save leaves no checkpoint"


def test_warning_saves_all_the_same(run: Any) -> None:
    with pytest.warns(ckptd.NonFiniteWarning, match=r"step_1 has numbers that are not finite: loss in model.pt"):
        run.save("step_1", files={"model.pt": {"loss": torch.tensor(NAN)}}, check=ckptd.Finite()).wait()
    assert run.open("step_1").load("model.pt")["loss"].isnan()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    ],
)
def test_every_floating_dtype_is_checked(run: Any, dtype: torch.dtype) -> None:
    good = torch.linspace(-100, 100, 10_000).to(dtype)
    run.save("good", files={"model.pt": {"w": good}}, check=ckptd.Finite("refuse")).wait()
    bad = torch.linspace(-100, 100, 10_000)
    bad[9_999] = NAN
    error = refused(run, {"w": bad.to(dtype)})
    assert error.details["tensors"][0].nans == 1


@pytest.mark.parametrize("at", [0, 1, 1_234_567, 8_388_607, 8_388_608, 12_345_677])
def test_one_nan_is_found_wherever_it_is(run: Any, at: int) -> None:
    """The threads of a copy divide the bytes; none may be missed or counted twice at their borders."""
    odd = torch.zeros(12_345_678)[1:]  # Begins within a cache line.
    odd[at - 1 if at else 0] = NAN
    tensor = refused(run, {"before": torch.zeros(3), "w": odd}).details["tensors"][0]
    assert (tensor.name, tensor.nans) == ("w", 1)


def test_unused_bytes_of_a_storage_do_not_count(run: Any) -> None:
    """views="keep" saves what no tensor uses, too."""
    storage = torch.full((1000,), NAN)
    storage[:900] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.save("step_1", files={"model.pt": {"w": storage[:900]}}, views="keep", check=ckptd.Finite()).wait()


def test_views_and_strides_are_checked_as_their_tensors_see_them(run: Any) -> None:
    storage = torch.zeros(10, 10)
    storage[0, 1] = NAN
    error = refused(run, {"column": storage[:, 0], "whole": storage.t()})
    assert [tensor.name for tensor in error.details["tensors"]] == ["whole"]


def test_part_is_checked_when_it_is_sealed(run: Any) -> None:
    with pytest.raises(ckptd.NonFinite, match="w in b.pt"):
        with run.begin("step_1", files={"a.pt": {"w": torch.zeros(3)}}, check=ckptd.Finite("refuse")) as part:
            part.add("b.pt", {"w": torch.tensor([INF])})
    assert run.list() == []


def test_named_values_are_checked(run: Any) -> None:
    error = refused(run, ckptd.Torch([torch.tensor([NAN])]))
    assert error.details["tensors"][0].name == "0"


def test_checked_without_shared_memory(daemon: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTD_TRANSPORT", "grpc")
    remote = ckptd.connect(daemon.endpoint).run(str(tmp_path), rank=0, world_size=1)
    assert refused(remote, {"w": torch.tensor([0.0, NAN])}).details["tensors"][0].nans == 1


def test_refusal_on_one_rank_ends_the_save_on_all(trainers: Any, root: str) -> None:
    ranks = trainers("a", 2)
    for rank, value in zip(ranks, ("0.0", "float('nan')")):
        rank.start(
            f"run.save('step_1', files={{f'r{{rank}}.pt': torch.tensor({value})}}, check=ckptd.Finite('refuse')).wait(timeout=60)"
        )
    good, bad = ranks
    assert bad.result_failing().kind == "NonFinite"
    error = good.result_failing()
    assert error.kind == "CheckpointFailed" and "not finite" in error.message
    assert good.do("run.list()") == []


@pytest.mark.parametrize("wrong", ["ignore", "", None])
def test_unknown_action_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="it must be one of warn, refuse"):
        ckptd.Finite(wrong)


def test_check_must_be_a_check(run: Any) -> None:
    with pytest.raises(TypeError, match=r"it must be a ckptd.Finite\(\), or None"):
        run.save("step_1", files={"a.pt": torch.zeros(1)}, check=True)


def test_shards_of_distributed_tensors_are_checked(run: Any) -> None:
    """A DTensor has no memory of its own: its shard on this rank counts."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        values = torch.zeros(100)
        values[3] = NAN
        weight = distribute_tensor(values, init_device_mesh("cpu", (1,)), [Shard(0)])
        found = refused(run, {"w": weight}).details["tensors"]
    finally:
        destroy_process_group()
    assert found == (ckptd.NonFiniteTensor("model.pt", "w", 1, 0, 100),)


def test_tensors_without_dense_numbers_are_left_out(run: Any) -> None:
    state = {
        "meta": torch.empty(3, device="meta"),
        "sparse": torch.tensor([[0.0, 1.0]]).to_sparse(),
        "w": torch.tensor([NAN]),
    }
    assert [tensor.name for tensor in refused(run, state).details["tensors"]] == ["w"]


# ---- suspect checkpoints


def save_suspect(run: Any, tag: str, **options: Any) -> ckptd.Save:
    state = {"model": {"w": torch.tensor([1.0, NAN])}}
    with pytest.warns(ckptd.NonFiniteWarning, match="it is saved as suspect"):
        return run.save(tag, files={"model.pt": state}, check=ckptd.Finite("suspect"), **options)


def save_good(run: Any, tag: str, **options: Any) -> ckptd.Save:
    return run.save(tag, files={"model.pt": {"w": torch.ones(2)}}, check=ckptd.Finite("suspect"), **options)


def test_suspect_checkpoint_is_committed_and_never_offered_unasked(run: Any) -> None:
    save_good(run, "good", pointers={"latest": "good"}, metrics={"loss": 2.0}).wait()
    save_suspect(run, "bad", pointers={"latest": "bad"}, metrics={"loss": 1.0}).wait()
    assert [(info.tag, info.suspect) for info in run.list()] == [
        ("bad", "numbers that are not finite: model.w in model.pt (1 NaN of 2)"),
        ("good", ""),
    ]
    assert run.latest().tag == "good"
    assert run.best("loss").tag == "good"
    assert (pathlib.Path(run.root) / "latest").read_text() == "good"
    with run.open() as latest:
        assert (latest.tag, [passed.tag for passed in latest.passed_over]) == ("good", ["bad"])
    assert run.open("bad").load("model.pt")["model"]["w"][1].isnan(), "it is opened by its tag"
    with run.resume() as resumed:
        assert (resumed.tag, [passed.tag for passed in resumed.passed_over]) == ("good", ["bad"])


def test_suspect_checkpoint_is_resumed_from_if_asked_for(run: Any) -> None:
    save_good(run, "good").wait()
    save_suspect(run, "bad").wait()
    assert run.restore(lambda checkpoint: checkpoint.tag, allow_suspect=True) == "bad"


def test_suspect_checkpoints_alone_are_refused_by_name(run: Any) -> None:
    save_suspect(run, "bad").wait()
    for refused_call in (run.resume, run.open, ckptd.open_root(run.root).open):
        with pytest.raises(ckptd.Refused, match="bad.*suspect") as caught:
            refused_call()
        assert caught.value.reason == "SUSPECT"


def test_suspect_save_does_not_replace_a_good_checkpoint_of_its_tag(run: Any) -> None:
    save_good(run, "step_1").wait()
    with pytest.raises(ckptd.CkptdError, match="does not replace the checkpoint of that tag") as caught:
        save_suspect(run, "step_1").wait()
    assert caught.value.reason == "SUSPECT"
    assert run.latest().suspect == ""


def test_root_without_a_daemon_passes_over_suspect_checkpoints(run: Any) -> None:
    save_good(run, "good").wait()
    save_suspect(run, "bad").wait()
    offline = ckptd.open_root(run.root)
    assert offline.latest().tag == "good"
    with offline.open(strict=True) as latest:
        assert [passed.suspect != "" for passed in latest.passed_over] == [True]


def test_every_list_has_the_metrics_of_each_checkpoint(daemon: Any, run: Any) -> None:
    for step, loss in ((1, 2.5), (2, 1.5)):
        run.save(f"step_{step}", files={"a": b""}, step=step, metrics={"loss": loss}).wait()
    reader = ckptd.connect(daemon.endpoint).open(run.root)
    for listed in (run.list(), reader.list(), ckptd.open_root(run.root).list()):
        assert [(info.tag, info.metrics) for info in listed] == [("step_2", {"loss": 1.5}), ("step_1", {"loss": 2.5})]


def test_long_names_are_cut_to_what_a_checkpoint_can_keep(run: Any) -> None:
    state = {"é" * 500: torch.tensor(NAN)}
    with pytest.warns(ckptd.NonFiniteWarning):
        run.save("bad", files={"model.pt": state}, check=ckptd.Finite("suspect")).wait()
    assert 290 < len(run.list()[0].suspect.encode()) <= 300


def test_rank_that_finds_a_nan_makes_the_checkpoint_of_all_suspect(trainers: Any, root: str) -> None:
    ranks = trainers("a", 2)
    for rank, value in zip(ranks, ("1.0", "float('nan')")):
        rank.start(
            f"run.save('s', files={{f'r{{rank}}.pt': {{'w': torch.tensor({value})}}}}, check=ckptd.Finite('suspect')).wait(timeout=60)"
        )
    for rank in ranks:
        rank.result()
    assert "r1.pt" in ckptd.open_root(root).list()[0].suspect
