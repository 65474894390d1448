"""The Python functions that recover the weights of a ZeRO checkpoint, by the names and parameters of DeepSpeed's."""

from __future__ import annotations

import pathlib

import pytest
import torch
from ckptd import errors
from ckptd.deepspeed import (
    CannotConvert,
    NoCheckpoint,
    convert_zero_checkpoint_to_fp32_state_dict,
    convert_zero_checkpoint_to_state_dict,
    get_fp32_state_dict_from_zero_checkpoint,
    load_state_dict_from_zero_checkpoint,
)
from safetensors.torch import load_file
from zero_checkpoints import ZeroModel, same_tensors, write_tag

WHOLE = ZeroModel(
    groups=[{"weight": [5, 3], "bias": [5], "empty": [0, 3]}],
    frozen={"base": [4, 4]},
    shared={"tied": "weight"},
    buffers={"mean": torch.tensor([1.5, 2.5], dtype=torch.bfloat16), "mask": torch.tensor([True, False])},
)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_state_dict_has_every_weight_and_shares_tied_ones(stage, tmp_path):
    write_tag(tmp_path, WHOLE, stage, 3)
    found = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    same_tensors(found, WHOLE.weights())
    assert found["tied"] is found["weight"]
    without = get_fp32_state_dict_from_zero_checkpoint(tmp_path, "global_step17", exclude_frozen_parameters=True)
    same_tensors(without, WHOLE.weights(exclude_frozen=True))


def test_lazy_state_dict_reads_a_weight_when_asked(tmp_path):
    tag = write_tag(tmp_path, WHOLE, 3, 2)
    lazy = get_fp32_state_dict_from_zero_checkpoint(tmp_path, lazy_mode=True)
    assert [(value.shape, value.dtype) for value in lazy.values()] == [
        (tensor.shape, tensor.dtype) for tensor in WHOLE.weights().values()
    ]
    same_tensors({name: value.contiguous() for name, value in lazy.items()}, WHOLE.weights())
    for path in tag.glob("*_optim_states.pt"):
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(errors.Corrupt, match="too early"):
        lazy["weight"].contiguous()


def test_model_is_loaded_and_returned(tmp_path):
    write_tag(tmp_path, ZeroModel(groups=[{"weight": [5, 3], "bias": [5]}]), 2, 2)
    model = torch.nn.Linear(3, 5)
    assert load_state_dict_from_zero_checkpoint(model, tmp_path) is model
    same_tensors(dict(model.state_dict()), ZeroModel(groups=[{"weight": [5, 3], "bias": [5]}]).weights())


def test_files_have_the_type_and_format_asked_for(tmp_path):
    write_tag(tmp_path / "in", WHOLE, 2, 2)
    convert_zero_checkpoint_to_fp32_state_dict(tmp_path / "in", tmp_path / "new/out", max_shard_size=None)
    found = torch.load(tmp_path / "new/out/pytorch_model.bin", weights_only=True)
    same_tensors(found, {n: t.float() if t.is_floating_point() else t for n, t in WHOLE.weights().items()})
    convert_zero_checkpoint_to_state_dict(
        tmp_path / "in", tmp_path / "half", torch.bfloat16, max_shard_size=100, safe_serialization=True
    )
    assert (tmp_path / "half/model.safetensors.index.json").exists()
    halves = {name: tensor for path in (tmp_path / "half").glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert {tensor.dtype for tensor in halves.values()} == {torch.bfloat16, torch.bool}


def test_errors_are_those_of_deepspeed_too(tmp_path):
    with pytest.raises(NoCheckpoint) as missing:
        get_fp32_state_dict_from_zero_checkpoint(tmp_path / "none")
    assert isinstance(missing.value, FileNotFoundError) and missing.value.reason == "ENOENT"
    with pytest.raises(FileNotFoundError):
        get_fp32_state_dict_from_zero_checkpoint(tmp_path, "no-tag")
    tag = write_tag(tmp_path / "in", WHOLE, 2, 2)
    with pytest.raises(ValueError, match="bfloat16"):
        convert_zero_checkpoint_to_state_dict(tmp_path / "in", tmp_path / "out", "int8")
    (tag / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CannotConvert, match="is of 2 data-parallel ranks") as incomplete:
        get_fp32_state_dict_from_zero_checkpoint(tmp_path / "in")
    assert isinstance(incomplete.value, ValueError) and incomplete.value.reason == "INCOMPLETE_CHECKPOINT"


def test_example_of_the_documents_runs(tmp_path):
    page = (pathlib.Path(__file__).parents[2] / "docs/convert.md").read_text()
    source = page.partition("<!-- fragment: recover,")[2].partition("```python\n")[2].partition("```")[0]
    write_tag(tmp_path / "opt", WHOLE, 2, 2, tag="global_step1000")
    names = {"model": torch.nn.Linear(3, 5)}
    exec(compile(source.replace("/data/", f"{tmp_path}/"), "convert.md", "exec"), names)
    same_tensors(names["state"], WHOLE.weights())
    same_tensors(dict(names["model"].state_dict()), {name: WHOLE.weights()[name] for name in ("weight", "bias")})
    assert (tmp_path / "opt-bf16/model.safetensors").exists()
