"""Universal checkpoints and the weights of AutoEP's experts, compared with what DeepSpeed's own ds_to_universal.py makes,
and with the whole tensors that they were cut from.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
from expert_models import DENSE, OF_EXPERT, PREFIX, Mixture, write
from harness import ckptctl
from universal_conversion import convert, convert_upstream, parameter, refused, same, same_trees
from zero_checkpoints import STATES, optimizer_file

placed = pytest.importorskip("deepspeed.checkpoint.autoep_affine")


def described(mixture: Mixture) -> Mixture:
    """With the places of the experts, as DeepSpeed 0.19.8 describes them."""
    placement = placed.make_autoep_placement_descriptor(mixture.experts, mixture.of_rank)
    maps = {
        f"{PREFIX}.{name}": placed.autoep_placement_to_affine_map(placement, [mixture.experts, *shape]).to_dict()
        for name, shape in OF_EXPERT.items()
    }
    mixture.more = {"expert_placement": placement, "affine_maps": {"version": 1, "params": maps}}
    return mixture


def whole_experts(mixture: Mixture, out: Any) -> None:
    for name in OF_EXPERT:
        for state in STATES:
            found = parameter(out, f"{PREFIX}.{name}", state)
            same(found["param"], mixture.whole(name, state), f"{name} {state}")
            assert (found["is_expert_param"], found["ep_num_experts"], found["cat_dim"]) == (True, mixture.experts, 0)


IN_ORDER = [
    Mixture([[0, 1], [2, 3]]),
    Mixture([[0, 1], [2, 3]], replicas=2),
    Mixture([[0, 1], [2, 3]], replicas=3, data_first=True),
    Mixture([[0, 1, 2, 3]], replicas=2),
    described(Mixture([[0, 1], [2, 3]], replicas=2)),
]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("mixture", IN_ORDER, ids=range(len(IN_ORDER)))
def test_experts_become_what_deepspeed_makes_of_them(mixture, stage, tmp_path):
    tag = write(tmp_path / "in", mixture, stage)
    assert convert(tag, tmp_path / "ours")["dp"] == mixture.ranks
    whole_experts(mixture, tmp_path / "ours")
    convert_upstream(tag, tmp_path / "theirs")
    same_trees(tmp_path / "ours", tmp_path / "theirs", rewritten=True)


ELSEWHERE = [
    described(Mixture([[3, 1], [0, 2]], replicas=2)),
    described(Mixture([[2], [0, 3, 1]])),
    described(Mixture([[0, 1, 2], [2, 3]], replicas=2)),
]


@pytest.mark.parametrize("mixture", ELSEWHERE, ids=range(len(ELSEWHERE)))
def test_experts_in_other_places_are_found_there(mixture, tmp_path):
    tag = write(tmp_path / "in", mixture, 3)
    convert(tag, tmp_path / "ours")
    whole_experts(mixture, tmp_path / "ours")
    convert_upstream(tag, tmp_path / "theirs")
    same_trees(tmp_path / "ours", tmp_path / "theirs", rewritten=True)
    # At stages 1 and 2, DeepSpeed overlooks the places, and joins the experts in the order of the ranks.
    convert(write(tmp_path / "in2", mixture, 2), tmp_path / "ours2")
    whole_experts(mixture, tmp_path / "ours2")


def recovered(tag: pathlib.Path, out: pathlib.Path) -> dict[str, torch.Tensor]:
    ckptctl("convert", "zero-to-fp32", str(tag), str(out))
    found: dict[str, torch.Tensor] = torch.load(out / "pytorch_model.bin", weights_only=True)
    return found


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("mixture", [*IN_ORDER, *ELSEWHERE], ids=range(len(IN_ORDER) + len(ELSEWHERE)))
def test_weights_of_experts_are_recovered_whole(mixture, stage, tmp_path):
    found = recovered(write(tmp_path / "in", mixture, stage), tmp_path / "out")
    for name in OF_EXPERT:
        same(found.pop(f"{PREFIX}.{name}"), mixture.whole(name, "fp32"), name)
    same(found, DENSE.weights(), "the rest")


def test_weights_of_experts_at_stage_3_are_refused_or_whole(tmp_path):
    tag = write(tmp_path / "in", IN_ORDER[0], 3)
    done = ckptctl("convert", "zero-to-fp32", str(tag), str(tmp_path / "out"), check=False)
    assert done.returncode != 0 and "2 expert-parallel ranks; only ds-to-universal" in done.stderr
    whole = recovered(write(tmp_path / "in2", IN_ORDER[3], 3), tmp_path / "out")
    same(whole[f"{PREFIX}.w1"], IN_ORDER[3].whole("w1", "fp32"), "w1")


def test_weights_of_experts_with_a_rank_missing_are_refused(tmp_path):
    tag = write(tmp_path / "in", IN_ORDER[1], 2)
    (tag / optimizer_file(3, 0)).unlink()
    done = ckptctl("convert", "zero-to-fp32", str(tag), str(tmp_path / "out"), check=False)
    assert done.returncode != 0 and done.stderr.endswith("[INCOMPLETE_CHECKPOINT]\n"), done.stderr


def layer_of(model: dict[str, Any]) -> dict[str, Any]:
    return model["ds_autoep_layers"][0]



def other_map(model: dict[str, Any], zero: dict[str, Any]) -> None:
    maps = layer_of(model)["affine_maps"]["params"]
    maps[f"{PREFIX}.w3"] = placed.autoep_placement_to_affine_map(
        placed.make_autoep_placement_descriptor(4, [[1, 0], [2, 3]]), [4, 5, 3]
    ).to_dict()


def placement(**change: Any) -> Any:
    def change_it(model: dict[str, Any], zero: dict[str, Any]) -> None:
        layer_of(model)["expert_placement"] = {**layer_of(model)["expert_placement"], **change}

    return change_it


def of_ranks(*experts: list[int]) -> list[dict[str, Any]]:
    return [{"rank": rank, "experts": of_rank} for rank, of_rank in enumerate(experts)]


def without_w2(model: dict[str, Any], zero: dict[str, Any]) -> None:
    for group in (*model["param_shapes"], *zero.get("param_slice_mappings", [])):
        group.pop(f"{PREFIX}.w2", None)


def frozen(model: dict[str, Any], zero: dict[str, Any]) -> None:
    for group in zero["param_slice_mappings"]:
        group.pop(f"{PREFIX}.w2", None)


@pytest.mark.parametrize(
    ("stage", "change", "words"),
    [
        (2, lambda m, z: layer_of(m).update(ep_size=3), "3"),
        (2, lambda m, z: layer_of(m).update(num_experts=1 << 40), "num_experts is 1099511627776"),
        (2, lambda m, z: m.update(ds_autoep_layers={}), "ds_autoep_layers is"),
        (2, lambda m, z: m.update(ds_autoep_layers=[layer_of(m)] * 2), "twice"),
        (2, lambda m, z: layer_of(m).pop("expert_key_prefix"), "expert_key_prefix is missing"),
        (2, lambda m, z: layer_of(m)["affine_maps"]["params"].pop(f"{PREFIX}.w3"), "the map of layers.0.experts.w3"),
        (2, other_map, "another one than expert_placement"),
        (2, placement(version=2), "version 2"),
        (2, placement(ranks=of_ranks([0, 1], [2, 2])), "twice"),
        (2, placement(ranks=of_ranks([0, 1], [2, 4])), "the expert 4 of 4"),
        (2, placement(ranks=of_ranks([0, 1], [2])), "places 3 of 4"),
        (2, placement(ranks=of_ranks([0], [1, 2, 3])), "expert-parallel rank 0 has it as"),
        (2, placement(ranks=[{"rank": 2, "experts": []}] * 2), "rank 2 of 2"),
        (2, without_w2, "w2, and param_shapes has none"),
        (2, frozen, "w2, and the optimizer's state has none"),
        (2, lambda m, z: m["ds_config"].update(use_data_before_expert_parallelism=1), "use_data_before"),
        (3, lambda m, z: layer_of(m).update(checkpoint_format="per_expert_files"), "checkpoint_format"),
        (3, lambda m, z: layer_of(m).update(checkpoint_format_version=2), "checkpoint_format_version"),
        (3, lambda m, z: layer_of(m).update(ep_rank=2), "ep_rank is 2 of 2"),
        (3, lambda m, z: layer_of(m).update(ep_rank=0), "comes where"),
        (3, lambda m, z: z.pop("ds_zero_partition_groups"), "comes where"),
        (3, lambda m, z: z["ds_zero_partition_groups"][1].update(partition_rank=5), "rank 5 of 2"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(stage, change, words, tmp_path):
    tag = write(tmp_path / "in", described(Mixture([[0, 1], [2, 3]], replicas=2)), stage, change)
    assert words in refused("CANNOT_CONVERT", tag, tmp_path / "out")


def test_ranks_that_contradict_each_other_are_refused(tmp_path):
    def place_elsewhere(model, zero):
        layer = layer_of(model)
        if layer["ep_rank"] == 1:
            layer["expert_placement"] = placed.make_autoep_placement_descriptor(4, [[1, 0], [2, 3]])

    tag = write(tmp_path / "in", described(Mixture([[0, 1], [2, 3]])), 3, place_elsewhere)
    assert "differently" in refused("CANNOT_CONVERT", tag, tmp_path / "out")
