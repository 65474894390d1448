"""`ckptctl convert zero-to-fp32` compared with the whole tensors that the checkpoints were cut from, also where
DeepSpeed's own zero_to_fp32.py is wrong.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest
import torch
from harness import ckptctl
from safetensors.torch import load_file
from zero1_states import contents
from zero_checkpoints import ZeroModel, model_file, optimizer_file, same_tensors, write_tag

ONE_GROUP = [{"embed.weight": [13, 6], "fc.weight": [7, 5], "fc.bias": [7], "scalar": []}]
TWO_GROUPS = [*ONE_GROUP, {"norm.weight": [1], "norm.bias": [3], "conv.weight": [5, 3, 2]}]
BUFFERS = {
    "running_mean": torch.tensor([0.5, 1.25], dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "mask": torch.tensor([[True, False], [False, True], [True, True]]).t(),
}


def model(**options: Any) -> ZeroModel:
    return ZeroModel(**{"groups": TWO_GROUPS, "buffers": BUFFERS, **options})


def convert(save_dir: pathlib.Path, out: pathlib.Path, *options: str) -> Any:
    return json.loads(ckptctl("convert", "zero-to-fp32", str(save_dir), str(out), "--output=json", *options).stdout)


def load(out: pathlib.Path) -> dict[str, torch.Tensor]:
    """All files of an output, merged in the order of their names."""
    loaded: dict[str, torch.Tensor] = {}
    for path in sorted(out.glob("*.bin")):
        loaded.update(torch.load(path, weights_only=True))
    for path in sorted(out.glob("*.safetensors")):
        loaded.update(load_file(path))
    return loaded


def as_type(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}


def in_order(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors does not keep the order of names."""
    return dict(sorted(weights.items()))


def refused(reason: str, save_dir: pathlib.Path, out: pathlib.Path, *options: str) -> str:
    """The one line of a refusal, which writes nothing and changes nothing."""
    before = contents(save_dir)
    done = ckptctl("convert", "zero-to-fp32", str(save_dir), str(out), *options, check=False)
    assert done.returncode in (1, 2, 4) and done.stdout == "", done.stdout
    assert done.stderr.endswith(f"[{reason}]\n") and done.stderr.count("\n") == 1, done.stderr
    assert contents(save_dir) == before and not [path for path in out.parent.iterdir() if path.name.startswith(".")]
    return done.stderr


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gathers_every_weight_bit_for_bit(stage, ranks, tmp_path):
    whole = model(frozen={"base.weight": [3, 7], "base.bias": [5]}, shared={"head.weight": "embed.weight"})
    tag = write_tag(tmp_path / "in", whole, stage, ranks, prefix="bf16_" if stage < 3 else "")
    before = contents(tmp_path / "in")
    report = convert(tmp_path / "in", tmp_path / "out")
    assert (report["stage"], report["ranks"]) == (stage, ranks) and report["input"] == str(tag)
    expected = as_type(whole.weights(), torch.float32)
    found = torch.load(tmp_path / "out/pytorch_model.bin", weights_only=True)
    same_tensors(found, expected)
    assert found["head.weight"].data_ptr() == found["embed.weight"].data_ptr()
    convert(tmp_path / "in", tmp_path / "safe", "--safe_serialization")
    same_tensors(in_order(load(tmp_path / "safe")), in_order(expected))
    assert contents(tmp_path / "in") == before


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_excludes_frozen_parameters_on_request(stage, tmp_path):
    whole = model(frozen={"base.weight": [3, 7]})
    write_tag(tmp_path / "in", whole, stage, 2)
    convert(tmp_path / "in", tmp_path / "out", "--exclude_frozen_parameters")
    same_tensors(load(tmp_path / "out"), as_type(whole.weights(exclude_frozen=True), torch.float32))


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("float16", torch.float16)])
@pytest.mark.parametrize("flag", [(), ("--safe_serialization",)])
def test_casts_weights_as_torch_does(name, dtype, flag, tmp_path):
    random = torch.Generator().manual_seed(3)
    wide = torch.randn(1000, 700, generator=random) * torch.logspace(-12, 9, 700)
    given = {"wide": {"fp32": wide, "exp_avg": wide, "exp_avg_sq": wide}}
    whole = model(groups=[{"wide": [1000, 700], "odd": [3]}], frozen={"base": [5]}, given=given)
    write_tag(tmp_path / "in", whole, 2, 2)
    convert(tmp_path / "in", tmp_path / "out", f"--dtype={name}", *flag)
    same_tensors(in_order(load(tmp_path / "out")), in_order(as_type(whole.weights(), dtype)))


@pytest.mark.parametrize("ranks", [2, 3])
def test_skips_alignment_paddings_between_parameters(ranks, tmp_path):
    whole = model()
    paddings = [[(-numel) % 4 for numel in (78, 35, 7, 1)], [3, 1, 2]]
    write_tag(tmp_path / "in", whole, 2, ranks, paddings=paddings)
    convert(tmp_path / "in", tmp_path / "out")
    same_tensors(load(tmp_path / "out"), as_type(whole.weights(), torch.float32))


def test_partitions_that_are_all_padding_are_empty(tmp_path):
    whole = ZeroModel(groups=[{"tiny": [3]}])
    write_tag(tmp_path / "in", whole, 1, 6)
    convert(tmp_path / "in", tmp_path / "out")
    same_tensors(load(tmp_path / "out"), whole.weights())


@pytest.mark.parametrize("flag", [(), ("--safe_serialization",)])
@pytest.mark.parametrize("size", ["200", "0.4KB", "1GB", "none"])
def test_shards_as_huggingface_does(size, flag, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    whole = model(shared={"head.weight": "embed.weight"})
    write_tag(tmp_path / "in", whole, 3, 2)
    report = convert(tmp_path / "in", tmp_path / "out", f"--max_shard_size={size}", *flag)
    stem, extension = ("model", ".safetensors") if flag else ("pytorch_model", ".bin")
    weights = {name: tensor.clone() for name, tensor in whole.weights().items()}
    if not flag:
        weights["head.weight"] = weights["embed.weight"]
    limit: Any = {"200": 200, "none": 10**12}.get(size, size)
    split = hub.split_torch_state_dict_into_shards(
        weights, filename_pattern=stem + "{suffix}" + extension, max_shard_size=limit
    )
    index = tmp_path / "out" / f"{stem}{extension}.index.json"
    assert set(report["files"]) == {path.name for path in (tmp_path / "out").iterdir()}
    assert index.exists() == split.is_sharded
    if split.is_sharded:
        expected = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        assert index.read_text() == json.dumps(expected, indent=2, sort_keys=True) + "\n"
    for file, names in split.filename_to_tensors.items():
        path = tmp_path / "out" / file
        found = load_file(path) if flag else torch.load(path, weights_only=True)
        same_tensors(in_order(found), in_order({name: weights[name] for name in names}))


def test_tag_is_latest_or_given_or_the_directory_itself(tmp_path):
    old, new = model(seed=1), model(seed=2)
    write_tag(tmp_path / "in", old, 2, 2, tag="old")
    tag = write_tag(tmp_path / "in", new, 2, 2, tag="new")
    convert(tmp_path / "in", tmp_path / "in/latest_weights")  # Beside the tag is not in the tag.
    same_tensors(load(tmp_path / "in/latest_weights"), new.weights())
    convert(tmp_path / "in", tmp_path / "old", "-t", "old")
    same_tensors(load(tmp_path / "old"), old.weights())
    convert(tag, tmp_path / "new")
    same_tensors(load(tmp_path / "new"), new.weights())
    assert "other" in refused("ENOENT", tmp_path / "in", tmp_path / "out", "--tag=other")


def test_plan_names_the_bytes_of_each_weight(tmp_path):
    whole = model(frozen={"base.weight": [3, 7]})
    tag = write_tag(tmp_path / "in", whole, 3, 3)
    plan = json.loads(ckptctl("convert", "zero-to-fp32", str(tmp_path / "in"), "--plan").stdout)
    assert plan["input"] == str(tag) and plan["stage"] == 3
    found = {}
    for weight in plan["weights"]:
        data = b"".join((tag / plan["files"][file]).read_bytes()[at : at + size] for file, at, size in weight["ranges"])
        dtype = getattr(torch, weight["dtype"])
        found[weight["name"]] = torch.frombuffer(bytearray(data), dtype=dtype).reshape(weight["shape"])
    assert [weight["kind"] for weight in plan["weights"]] == ["buffer"] * 3 + ["frozen"] + ["trained"] * 7
    same_tensors(as_type(found, torch.float32), as_type(whole.weights(), torch.float32))


def test_dry_run_writes_nothing_and_tells_the_same(tmp_path):
    write_tag(tmp_path / "in", model(), 2, 2)
    said = convert(tmp_path / "in", tmp_path / "out", "--dry-run")
    assert said["dry_run"] and not (tmp_path / "out").exists()
    done = convert(tmp_path / "in", tmp_path / "out", "--debug")
    assert (done["bytes"], done["files"]) == (said["bytes"], said["files"])


# ---- Refusals ----


def test_missing_rank_is_refused_with_its_name(tmp_path):
    tag = write_tag(tmp_path / "in", model(), 2, 3)
    (tag / optimizer_file(1, 0)).unlink()
    assert optimizer_file(1, 0) in refused("INCOMPLETE_CHECKPOINT", tmp_path / "in", tmp_path / "out")
    (tag / optimizer_file(2, 0)).unlink()
    assert "is of 3 data-parallel ranks, and there are 1" in refused(
        "INCOMPLETE_CHECKPOINT", tmp_path / "in", tmp_path / "out"
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_missing_model_state_is_refused(stage, tmp_path):
    tag = write_tag(tmp_path / "in", model(), stage, 2)
    (tag / model_file(stage, 0, 0)).unlink()
    assert "model_states.pt" in refused("INCOMPLETE_CHECKPOINT", tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("stage", [1, 3])
def test_files_of_two_saves_are_refused(stage, tmp_path):
    tag = write_tag(tmp_path / "in", model(), stage, 2)
    other = write_tag(tmp_path / "other", model(groups=ONE_GROUP), stage, 2)
    (tag / optimizer_file(1, 0)).write_bytes((other / optimizer_file(1, 0)).read_bytes())
    assert "not of one save" in refused("CANNOT_CONVERT", tmp_path / "in", tmp_path / "out")
    (tag / model_file(stage, 0, 0)).write_bytes((other / model_file(stage, 0, 0)).read_bytes())
    for rank in range(2):
        (tag / optimizer_file(rank, 0)).rename(tag / optimizer_file(rank, 0, "bf16_"))
    write_tag(tmp_path / "in", model(), stage, 2)
    assert "two saves are mixed" in refused("CANNOT_CONVERT", tmp_path / "in", tmp_path / "out")


def test_parallelism_that_is_not_data_parallel_is_refused(tmp_path):
    tag = write_tag(tmp_path / "in", model(), 2, 2)
    write_tag(tmp_path / "in", model(), 2, 2, mp=1)
    assert "ds-to-universal" in refused("CANNOT_CONVERT", tmp_path / "in", tmp_path / "out")
    (tag / "layer_00-model_00-model_states.pt").touch()
    assert "pipeline" in refused("CANNOT_CONVERT", tmp_path / "in", tmp_path / "out")


def test_pickle_that_would_run_code_is_refused(tmp_path):
    class Harm:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/harmed",)

    write_tag(tmp_path / "in", model(), 2, 2, more={"client": Harm()})
    assert "posix.system" in refused("UNSAFE_PICKLE", tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "harmed").exists()


def test_output_in_the_tag_or_not_empty_is_refused(tmp_path):
    tag = write_tag(tmp_path / "in", model(), 2, 2)
    refused("OUTPUT_IS_INPUT", tmp_path / "in", tag / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").touch()
    refused("OUTPUT_NOT_EMPTY", tmp_path / "in", tmp_path / "out")


def test_wrong_arguments_are_refused(tmp_path):
    write_tag(tmp_path / "in", model(), 2, 2)
    assert "5GB" in refused("INVALID_ARGUMENT", tmp_path / "in", tmp_path / "out", "--max_shard_size=many")
    assert "bfloat16" in refused("INVALID_ARGUMENT", tmp_path / "in", tmp_path / "out", "--dtype=int8")
