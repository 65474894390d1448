"""ckptd.deepspeed reads, for another number of ranks than saved, what DeepSpeed would have in the files of that number."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ckptd import errors
from ckptd.deepspeed._resharding import reshard
from ckptd.deepspeed._saved_parts import Files
from class_stand_ins import stand_ins
from zero_checkpoints import CLASSES, FlatGroup, ZeroModel, model_file, model_state, optimizer_file, partition_of, write_tag

MODEL = ZeroModel(
    groups=[{"embed.weight": [13, 6], "fc.weight": [7, 5]}, {"norm.weight": [1], "conv": [5, 3, 2]}],
    frozen={"base.weight": [3, 7], "scale": [1]},
    shared={"head.weight": "embed.weight"},
    buffers={"mean": torch.tensor([0.5, 1.25], dtype=torch.bfloat16), "count": torch.tensor(7)},
)
PADDINGS = [[2, 0], [3, 0]]


def fake_engine(model: ZeroModel, stage: int, rank: int, ranks: int, paddings: "list[list[int]] | None" = None) -> Any:
    """An engine, as far as loading asks it: where its parameters are in its flat tensors."""
    if stage == 3:
        sizes = [sum(partition_of(model.tensor(name, "fp32"), 0, ranks).numel() for name in group) for group in model.groups]
        flats = {"fp32_partitioned_groups_flat": [torch.zeros(size) for size in sizes], "partition_count": ranks}
        flats["sub_group_to_group_id"] = {number: number for number in range(len(model.groups))}
    else:
        flat_groups = flat_groups_of(model, ranks, paddings)
        flats = {"single_partition_of_fp32_groups": [torch.zeros(group.partition) for group in flat_groups]}
        flats["round_robin_bit16_padding"] = [group.paddings for group in flat_groups]
        flats["groups_padding"] = [group.padding(rank) for group in flat_groups]
        flats["_param_slice_mappings"] = [group.slices(rank) for group in flat_groups]
        flats["partition_count"] = [ranks] * len(model.groups)
    return SimpleNamespace(
        optimizer=SimpleNamespace(dp_process_group=SimpleNamespace(rank=rank, size=ranks), **flats),
        has_moe_layers=False,
        zero_optimization=lambda: True,
        zero_elastic_checkpoint=lambda: False,
        zero_optimization_partition_weights=lambda: stage == 3,
        _get_ckpt_name=lambda *at: "/".join((*at, model_file(stage, rank, 0))),
        _get_zero_ckpt_name=lambda *at: "/".join((*at, optimizer_file(rank, 0))),
        _get_zero_param_shapes=lambda: model_state(model, stage, rank, ranks)["param_shapes"],
    )


def flat_groups_of(model: ZeroModel, ranks: int, paddings: "list[list[int]] | None") -> list[FlatGroup]:
    after = paddings or [[0] * len(group) for group in model.groups]
    return [
        FlatGroup({name: math.prod(shape) for name, shape in group.items()}, ranks, gaps)
        for group, gaps in zip(model.groups, after)
    ]


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: group.rank)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: group.size)


def loaded(tag: pathlib.Path, engine: Any, **arguments: Any) -> Any:
    asked = {"load_dir": str(tag.parent), "tag": tag.name, "load_optimizer_states": True, "load_module_only": False}
    with stand_ins(*CLASSES):
        return reshard.reshard(engine, {**asked, **arguments}, Files(str(tag), None))


def saved_value(tag: pathlib.Path, name: str) -> Any:
    with stand_ins(*CLASSES):
        return torch.load(tag / name, weights_only=False)


def same(found: Any, wanted: Any, where: str = "") -> None:
    """Asserts that two states are equal, bit for bit."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted), where
        for key in wanted:
            same(found[key], wanted[key], f"{where}[{key!r}]")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), where
        for number, (one, other) in enumerate(zip(found, wanted)):
            same(one, other, f"{where}[{number}]")
    elif isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype and torch.equal(found, wanted), where
    elif hasattr(wanted, "__dict__") and not isinstance(wanted, int):
        same(vars(found), vars(wanted), where)
    else:
        assert found == wanted, where


NUMBERS = [(2, 4), (4, 2), (4, 3), (1, 5), (3, 1)]


@pytest.mark.parametrize(("before", "after"), NUMBERS)
def test_each_rank_gets_the_files_of_stage_3_that_it_would_have_saved(before: int, after: int, tmp_path: pathlib.Path) -> None:
    tag = write_tag(tmp_path / "before", MODEL, 3, before)
    wanted = write_tag(tmp_path / "after", MODEL, 3, after)
    for rank in range(after):
        values, model_files = loaded(tag, fake_engine(MODEL, 3, rank, after))
        assert model_files == [model_file(3, rank % before, 0)]
        same(values.pop(model_files[0]), saved_value(wanted, model_file(3, rank, 0)))
        same(values.pop(optimizer_file(rank, 0)), saved_value(wanted, optimizer_file(rank, 0)))
        assert values == {}


def without_padding(state: Any, group: FlatGroup, rank: int) -> dict[str, list[float]]:
    """Returns the elements of the parameters in a flat tensor: the test writes other padding than DeepSpeed."""
    return {name: state[at.start : at.start + at.numel].tolist() for name, at in group.slices(rank).items()}


@pytest.mark.parametrize("gaps", [(None, None), (PADDINGS, PADDINGS), (None, PADDINGS), (PADDINGS, None)])
@pytest.mark.parametrize(("before", "after"), NUMBERS)
@pytest.mark.parametrize("stage", [1, 2])
def test_each_rank_gets_the_files_of_stages_1_and_2_that_it_would_have_saved(
    stage: int, before: int, after: int, gaps: Any, tmp_path: pathlib.Path
) -> None:
    tag = write_tag(tmp_path / "before", MODEL, stage, before, paddings=gaps[0])
    wanted = write_tag(tmp_path / "after", MODEL, stage, after, paddings=gaps[1])
    for rank in range(after):
        values, model_files = loaded(tag, fake_engine(MODEL, stage, rank, after, gaps[1]))
        assert model_files == []
        same(values[model_file(stage, 0, 0)], saved_value(wanted, model_file(stage, 0, 0)))
        found = values[optimizer_file(rank, 0)]["optimizer_state_dict"]
        other = saved_value(wanted, optimizer_file(rank, 0))["optimizer_state_dict"]
        for number, group in enumerate(flat_groups_of(MODEL, after, gaps[1])):
            for key in ("exp_avg", "exp_avg_sq"):
                states = [each["base_optimizer_state"]["state"][number].pop(key) for each in (found, other)]
                assert states[0].shape == states[1].shape
                same(*[without_padding(state, group, rank) for state in states])
            flats = [each["single_partition_of_fp32_groups"][number] for each in (found, other)]
            same(*[without_padding(flat, group, rank) for flat in flats])
        for each in (found, other):
            del each["single_partition_of_fp32_groups"]
            each.pop("param_alignment_paddings", None)
        same(found, other)


def test_number_of_sub_groups_may_be_another(tmp_path: pathlib.Path) -> None:
    whole = {name: shape for group in MODEL.groups for name, shape in group.items()}
    one = dataclasses.replace(MODEL, groups=[whole])
    several = dataclasses.replace(MODEL, groups=[{name: shape} for name, shape in whole.items()])
    for before, after in ((one, several), (several, one)):
        tag = write_tag(tmp_path / str(len(before.groups)), before, 3, 2)
        wanted = write_tag(tmp_path / f"{len(after.groups)} wanted", after, 3, 3)
        groups = saved_value(tag, optimizer_file(0, 0))["optimizer_state_dict"]["optimizer_state_dict"]["param_groups"]
        engine = fake_engine(after, 3, 1, 3)
        engine.optimizer.sub_group_to_group_id = {number: number % len(groups) for number in range(len(after.groups))}
        found = loaded(tag, engine).values[optimizer_file(1, 0)]["optimizer_state_dict"]
        other = saved_value(wanted, optimizer_file(1, 0))["optimizer_state_dict"]
        same(found["fp32_flat_groups"], other["fp32_flat_groups"])
        numbers = [number for group in found["optimizer_state_dict"]["param_groups"] for number in group["params"]]
        assert sorted(numbers) == list(range(len(after.groups)))
        # As torch numbers them: first those of the first group.
        order = sorted(engine.optimizer.sub_group_to_group_id, key=lambda n: (n % len(groups), n))
        states = found["optimizer_state_dict"]["state"]
        same([states[order.index(n)] for n in range(len(order))], list(other["optimizer_state_dict"]["state"].values()))


def test_parameter_of_another_shape_is_refused_by_its_name(tmp_path: pathlib.Path) -> None:
    tag = write_tag(tmp_path, MODEL, 2, 2)
    other = dataclasses.replace(MODEL, groups=[{**MODEL.groups[0], "fc.weight": [5, 7]}, MODEL.groups[1]])
    with pytest.raises(errors.Refused, match=r"fc\.weight has the shape \[7, 5\] there, and \[5, 7\] here") as caught:
        loaded(tag, fake_engine(other, 2, 0, 3))
    assert caught.value.reason == "STATE_MISMATCH"
    more = dataclasses.replace(MODEL, groups=[{**MODEL.groups[0], "new": [2]}, MODEL.groups[1]])
    with pytest.raises(errors.Refused, match="new is not there, and .2. here"):
        loaded(tag, fake_engine(more, 2, 0, 3))


def test_file_that_is_too_short_is_corrupt(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    with pytest.raises(errors.Corrupt, match="too early"):
        Files(str(tmp_path), None).read([("file", 8, 4)], [memoryview(bytearray(4))])


def test_as_many_ranks_and_weights_alone_are_left_to_deepspeed(tmp_path: pathlib.Path) -> None:
    tag = write_tag(tmp_path, MODEL, 2, 2)
    assert loaded(tag, fake_engine(MODEL, 2, 1, 2)) is None
    assert loaded(tag, fake_engine(MODEL, 2, 1, 3), load_module_only=True) is None
    assert loaded(tag, fake_engine(MODEL, 2, 1, 3), load_optimizer_states=False) is None
