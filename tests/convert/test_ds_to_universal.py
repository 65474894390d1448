"""`ckptctl convert ds-to-universal` compared with DeepSpeed's own ds_to_universal.py, and with the whole tensors that
the checkpoints were cut from.
"""

from __future__ import annotations

import parallel_models
import pytest
import torch
from class_stand_ins import stand_ins
from parallel_models import EMBEDDING, names_of, whole
from universal_conversion import convert, convert_upstream, parameter, refused, same, same_trees
from zero1_states import contents
from zero_checkpoints import CLASSES, STATES, ZeroModel, optimizer_file, write_tag

MODEL = ZeroModel(
    groups=[{"embed.weight": [13, 6], "fc.weight": [7, 5]}, {"norm.weight": [1], "conv": [5, 3, 2]}],
    frozen={"base.weight": [3, 7]},
    shared={"head.weight": "embed.weight"},
    buffers={"mean": torch.tensor([0.5, 1.25], dtype=torch.bfloat16), "count": torch.tensor(7)},
)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_data_parallel_ranks_become_what_deepspeed_makes_of_them(stage, ranks, tmp_path):
    tag = write_tag(tmp_path / "in", MODEL, stage, ranks)
    before = contents(tag)
    (tmp_path / "a").mkdir()
    report = convert(tag, tmp_path / "a/ours", "--inject_missing_state")
    assert (report["stage"], report["dp"], report["tp"], report["pp"]) == (stage, ranks, 1, 1)
    assert (tmp_path / "a/latest_universal").read_text() == "ours"
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["latest_universal", "ours"]
    convert_upstream(tag, tmp_path / "theirs")
    same_trees(tmp_path / "a/ours", tmp_path / "theirs")
    for name in MODEL.shapes():
        found = parameter(tmp_path / "a/ours", name, "exp_avg_sq")
        found = found if stage == 3 else found["param"]
        same(found.flatten(), MODEL.tensor(name, "exp_avg_sq").flatten(), name)
    assert contents(tag) == before


@pytest.mark.parametrize(("stage", "dp", "tp", "pp"), [(1, 2, 2, 1), (2, 3, 2, 2), (1, 1, 1, 2), (3, 3, 2, 1)])
def test_tensor_and_pipeline_parallel_slices_are_merged_by_every_pattern(stage, dp, tp, pp, tmp_path):
    tag = parallel_models.write(tmp_path / "in", stage, dp, tp, pp)
    report = convert(tag, tmp_path / "ours")
    assert (report["dp"], report["tp"], report["pp"], report["unused_patterns"]) == (dp, tp, pp, [])
    for name in {name for at in range(pp) for name in names_of(at)}:
        for state in STATES:
            found = parameter(tmp_path / "ours", name, state)
            expected = whole(name, state)
            if name.endswith("dense.bias"):
                expected = sum(parallel_models.around(expected, tp)) / tp
            same(found["param"], expected, f"{name} {state}")
    assert parameter(tmp_path / "ours", EMBEDDING, "fp32")["vocab_tensor"]
    convert_upstream(tag, tmp_path / "theirs")
    same_trees(tmp_path / "ours", tmp_path / "theirs")


@pytest.mark.parametrize("shape", [(3, -1), ((8, 8, 8), -1)])
def test_sub_parameters_of_older_versions_are_equal(shape, tmp_path):
    pattern = {"patterns": ["qkv"], "shape": shape, "partition_dim": 0}
    info = {"universal_checkpoint_version": 0.2, "parameter_with_sub_params": [pattern]}
    tag = tmp_path
    for rank in range(2):
        given = {"qkv": {state: torch.randn(12, 3) for state in STATES}}
        model = ZeroModel(groups=[{"qkv": [12, 3]}], given=given)
        tag = write_tag(tmp_path / "in", model, 2, 2, mp=rank, more={"universal_checkpoint_info": info})
    convert(tag, tmp_path / "ours")
    convert_upstream(tag, tmp_path / "theirs")
    same_trees(tmp_path / "ours", tmp_path / "theirs")


def test_parameter_without_dimensions_becomes_one_that_deepspeed_loads(tmp_path):
    whole = ZeroModel(groups=[{"scale": [], "bias": [3]}])
    convert(write_tag(tmp_path / "in", whole, 2, 2), tmp_path / "out", "--inject_missing_state")
    same(parameter(tmp_path / "out", "scale", "fp32")["param"], whole.tensor("scale", "fp32").reshape(1), "scale")


def test_states_of_other_optimizers_are_converted_too(tmp_path):
    tag = write_tag(tmp_path / "in", MODEL, 2, 2)
    for rank in range(2):
        path = tag / optimizer_file(rank, 0)
        with stand_ins(*CLASSES):
            saved = torch.load(path, weights_only=False)
            for state in saved["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
                state["momentum_buffer"] = state.pop("exp_avg")
                del state["exp_avg_sq"]
            torch.save(saved, path)
    convert(tag, tmp_path / "out", "--inject_missing_state")
    found = parameter(tmp_path / "out", "conv", "momentum_buffer")["param"]
    same(found, MODEL.tensor("conv", "exp_avg"), "conv")


def test_dry_run_writes_nothing(tmp_path):
    tag = parallel_models.write(tmp_path / "in", 1, 2, 2, 1)
    said = convert(tag, tmp_path / "out", "--dry-run")
    assert said["dry_run"] and sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    done = convert(tag, tmp_path / "out", "--num_extract_workers=8", "--num_merge_workers=2", "--keep_temp_folder")
    assert (done["files"], done["bytes"]) == (said["files"], said["bytes"])


# ---- Refusals ----


def test_state_of_the_program_is_required_unless_injected(tmp_path):
    tag = write_tag(tmp_path / "in", MODEL, 2, 2)
    assert "--inject_missing_state" in refused("CANNOT_CONVERT", tag, tmp_path / "out")


def test_patterns_that_match_nothing_are_refused_unless_not_strict(tmp_path):
    info = {**parallel_models.info(2), "tp_replicated_parameter_patterns": ["nothing", r"l\d+\.norm\.weight"]}
    tag = parallel_models.write(tmp_path / "in", 1, 2, 2, 1, info)
    assert "matches: nothing" in refused("CANNOT_CONVERT", tag, tmp_path / "out")
    assert convert(tag, tmp_path / "out", "--no_strict")["unused_patterns"] == ["nothing"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tp_replicated_parameter_patterns": [r"l\d+\.norm\.weight", r"l\d+\.fc\.bias"]}, "shape|differs"),
        ({"tp_replicated_parameter_patterns": [r"l\d+\.norm\.weight", r".*norm.*"]}, "matches"),
        ({"parameter_with_row_parallelism_patterns": [r"l\d+\.(dense\.weight|fc\.bias)"]}, "dimension 1"),
        ({"tp_replicated_parameter_patterns": [r"(?=l)l\d+\.norm\.weight"]}, "references and look-around"),
        ({"affine_map": {"version": 1, "params": {"x": {}}}}, "affine_map"),
        ({"sub_param_shard_widths": {r"l\d+\.qkv\.weight": [[5, 3], [2, 2], [3, 2]]}}, "do not add up"),
    ],
)
def test_rules_that_do_not_fit_are_refused(change, words, tmp_path):
    info = {**parallel_models.info(2), **change}
    tag = parallel_models.write(tmp_path / "in", 1, 1, 2, 1, info)
    said = refused("CANNOT_CONVERT", tag, tmp_path / "out")
    assert any(word in said for word in words.split("|")) or "have it as" in said


def test_replicas_that_differ_are_refused(tmp_path):
    info = {"tp_replicated_parameter_patterns": ["x"]}
    tag = tmp_path
    for rank in range(2):
        model = ZeroModel(groups=[{"x": [5]}], seed=rank)
        tag = write_tag(tmp_path / "in", model, 1, 2, mp=rank, more={"universal_checkpoint_info": info})
    assert "differs between the tensor-parallel ranks 0 and 1" in refused("CANNOT_CONVERT", tag, tmp_path / "out")


def test_missing_rank_and_mixed_saves_are_refused(tmp_path):
    tag = parallel_models.write(tmp_path / "in", 1, 2, 2, 1)
    (tag / optimizer_file(1, 1)).unlink()
    assert optimizer_file(1, 1) in refused("INCOMPLETE_CHECKPOINT", tag, tmp_path / "out")
    other = write_tag(tmp_path / "other", ZeroModel(groups=[{"x": [4]}, {"y": [9]}]), 2, 2)
    tag = write_tag(tmp_path / "more", MODEL, 2, 2)
    (tag / optimizer_file(1, 0)).write_bytes((other / optimizer_file(1, 0)).read_bytes())
    refused("CANNOT_CONVERT", tag, tmp_path / "out", "--inject_missing_state")


@pytest.mark.parametrize("name", ["../x", "a/b", ""])
def test_name_that_is_no_folder_is_refused(name, tmp_path):
    tag = write_tag(tmp_path / "in", ZeroModel(groups=[{name: [3]}]), 2, 1)
    assert "no folder" in refused("CANNOT_CONVERT", tag, tmp_path / "out", "--inject_missing_state")
