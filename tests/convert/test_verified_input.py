"""Every converter compares a committed checkpoint with its manifest before it reads it."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Callable, Iterator

import ckptd
import ckptd.deepspeed
import pytest
import torch
import torch.distributed.checkpoint as dcp
import zero1_states
import zero_checkpoints
from harness import Daemon, ckptctl

MODEL = zero_checkpoints.ZeroModel(groups=[{"fc.weight": [70, 50], "fc.bias": [70]}])
Arguments = Callable[[pathlib.Path, pathlib.Path], list[str]]


def deepspeed_tag(folder: pathlib.Path) -> pathlib.Path:
    return zero_checkpoints.write_tag(folder, MODEL, 2, 2)


def nxd_tag(folder: pathlib.Path) -> pathlib.Path:
    return zero1_states.write_tag(folder / "tag", {(0, 0): zero1_states.full_state(shapes={0: [50, 70]})}, 2)


def dcp_checkpoint(folder: pathlib.Path) -> pathlib.Path:
    dcp.save({"w": torch.ones(40, 3), "step": 7}, checkpoint_id=folder, no_dist=True)
    return folder


def torch_file(folder: pathlib.Path) -> pathlib.Path:
    (folder / "model").mkdir(parents=True)
    torch.save({"w": torch.ones(40, 3)}, folder / "model/state_rank_0.pt")
    return folder


CONVERTERS: dict[str, tuple[Callable[[pathlib.Path], pathlib.Path], Arguments]] = {
    "zero-to-fp32": (deepspeed_tag, lambda tag, out: ["zero-to-fp32", str(tag), str(out)]),
    "zero-to-fp32 --plan": (deepspeed_tag, lambda tag, out: ["zero-to-fp32", str(tag), "--plan"]),
    "ds-to-universal": (
        deepspeed_tag,
        lambda tag, out: [
            "ds-to-universal",
            "--inject_missing_state",
            f"--input_folder={tag}",
            f"--output_folder={out}",
        ],
    ),
    "nxd-zero": (
        nxd_tag,
        lambda tag, out: ["nxd-zero", f"--input_dir={tag}", f"--output_dir={out}", "--convert_to_sharded", "--dp_size=3"],
    ),
    "dcp-to-torch": (dcp_checkpoint, lambda tag, out: ["dcp-to-torch", str(tag), str(out)]),
    "dcp-to-safetensors": (dcp_checkpoint, lambda tag, out: ["dcp-to-safetensors", str(tag), str(out)]),
    "torch-to-dcp": (torch_file, lambda tag, out: ["torch-to-dcp", str(tag / "model/state_rank_0.pt"), str(out)]),
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(str(tmp_path_factory.mktemp("daemon")))
    yield made
    made.close()


@pytest.fixture
def commit(daemon: Daemon, tmp_path: pathlib.Path) -> Callable[[pathlib.Path], pathlib.Path]:
    """Saves the files of a tag with ckptd, and returns the committed directory."""

    def commit(tag: pathlib.Path) -> pathlib.Path:
        files = {str(p.relative_to(tag)): p.read_bytes() for p in tag.rglob("*") if p.is_file()}
        run = ckptd.connect(daemon.endpoint).run(str(tmp_path / "root"), rank=0, world_size=1)
        run.save("tag", files=files).wait("committed")
        return tmp_path / "root/tag"

    return commit


def convert(name: str, tag: pathlib.Path, out: pathlib.Path, *options: str) -> Any:
    return ckptctl("convert", *CONVERTERS[name][1](tag, out), *options, check=False)


def flip_last_byte(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("name", CONVERTERS)
def test_converter_verifies_each_byte_of_committed_checkpoint(name, commit, tmp_path):
    tag = commit(CONVERTERS[name][0](tmp_path / "in"))
    done = convert(name, tag, tmp_path / "whole", "--output=json")
    assert done.returncode == 0, done.stderr
    files = [p for p in tag.rglob("*") if p.is_file() and ".ckptd" not in p.parts]
    assert json.loads(done.stdout)["verified_bytes"] == sum(p.stat().st_size for p in files)
    for path in (p for p in files if p.stat().st_size):
        flip_last_byte(path)
        done = convert(name, tag, tmp_path / "out")
        assert done.returncode == 1 and done.stdout == "", done.stdout
        assert done.stderr.endswith("[CORRUPT_FILE]\n") and path.name in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()
        flip_last_byte(path)


@pytest.mark.parametrize("name", [name for name in CONVERTERS if not name.startswith("dcp-")])
def test_converter_refuses_files_of_another_save_in_committed_checkpoint(name, commit, tmp_path):
    tag = commit(CONVERTERS[name][0](tmp_path / "in"))
    shard = next(p for p in tag.rglob("*rank*.pt") if ".ckptd" not in p.parts)
    stray = shard.with_name(shard.name.replace("rank_0", "rank_7", 1))
    stray.write_bytes(shard.read_bytes())
    done = convert(name, tag, tmp_path / "out")
    assert done.returncode == 4 and done.stderr.endswith("[MIXED_CHECKPOINT]\n"), done.stderr
    assert stray.name in done.stderr


@pytest.mark.parametrize("name", CONVERTERS)
def test_converter_refuses_checkpoint_with_damaged_manifest(name, commit, tmp_path):
    tag = commit(CONVERTERS[name][0](tmp_path / "in"))
    flip_last_byte(tag / ".ckptd/manifest")
    done = convert(name, tag, tmp_path / "out")
    assert done.returncode == 1 and done.stderr.endswith("[CORRUPT_MANIFEST]\n"), done.stderr


@pytest.mark.parametrize("name", [name for name in CONVERTERS if "plan" not in name])
def test_converter_reports_foreign_checkpoint_as_not_verified(name, tmp_path):
    done = convert(name, CONVERTERS[name][0](tmp_path / "in"), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "not verified" in done.stdout


def test_state_dict_from_damaged_checkpoint_is_refused(commit, tmp_path):
    tag = commit(deepspeed_tag(tmp_path / "in"))
    whole = ckptd.deepspeed.get_fp32_state_dict_from_zero_checkpoint(tag)
    zero_checkpoints.same_tensors(whole, MODEL.weights())
    flip_last_byte(tag / zero_checkpoints.optimizer_file(1, 0))
    with pytest.raises(ckptd.errors.Corrupt, match="optim_states.pt"):
        ckptd.deepspeed.get_fp32_state_dict_from_zero_checkpoint(tag)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("name", ["zero-to-fp32", "ds-to-universal"])
def test_foreign_files_of_two_steps_are_refused(name, stage, tmp_path):
    tag = zero_checkpoints.write_tag(tmp_path / "in", MODEL, stage, 2)
    other = zero_checkpoints.write_tag(tmp_path / "other", MODEL, stage, 2, more={"global_steps": 18})
    if stage == 3:
        model_file = zero_checkpoints.model_file(3, 1, 0)
        (tag / model_file).write_bytes((other / model_file).read_bytes())
        done = convert(name, tag, tmp_path / "out")
        assert "is of global step 18" in done.stderr and done.stderr.endswith("[CANNOT_CONVERT]\n"), done.stderr
    zero_checkpoints.write_tag(tmp_path / "in", MODEL, stage, 2, more={"dp_world_size": 4})
    done = convert(name, tag, tmp_path / "out")
    assert "4 data-parallel ranks" in done.stderr and done.stderr.endswith("[INCOMPLETE_CHECKPOINT]\n"), done.stderr


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("name", ["zero-to-fp32", "ds-to-universal"])
def test_optimizer_states_of_two_steps_are_refused(name, stage, tmp_path, monkeypatch):
    tag = zero_checkpoints.write_tag(tmp_path / "in", MODEL, stage, 2)
    tensor = zero_checkpoints.torch.tensor
    monkeypatch.setattr(zero_checkpoints.torch, "tensor", lambda value: tensor(18.0 if value == 17.0 else value))
    other = zero_checkpoints.write_tag(tmp_path / "other", MODEL, stage, 2)
    shard = zero_checkpoints.optimizer_file(1, 0)
    (tag / shard).write_bytes((other / shard).read_bytes())
    done = convert(name, tag, tmp_path / "out")
    assert "step" in done.stderr and done.stderr.endswith("[CANNOT_CONVERT]\n"), done.stderr


@pytest.mark.parametrize("missing", [False, True], ids=["damaged", "without its manifest"])
def test_weight_that_is_read_later_is_verified_then(
    commit: Callable[[pathlib.Path], pathlib.Path], tmp_path: pathlib.Path, missing: bool
) -> None:
    tag = commit(deepspeed_tag(tmp_path / "in"))
    lazy = ckptd.deepspeed.get_fp32_state_dict_from_zero_checkpoint(tag, lazy_mode=True)
    for path in tag.glob("*_optim_states.pt"):
        data = bytearray(path.read_bytes())
        data[len(data) // 3 :: 64] = bytes(len(data[len(data) // 3 :: 64]))
        path.write_bytes(data)
    with pytest.raises(ckptd.Corrupt):
        for weight in lazy.values():
            weight.contiguous()
    if missing:
        (tag / ".ckptd/manifest").unlink()
        with pytest.raises(ckptd.CkptdError):
            ckptd.deepspeed.get_fp32_state_dict_from_zero_checkpoint(tag)


def test_checkpoint_of_deepspeed_is_recovered_with_a_warning(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    tag = deepspeed_tag(tmp_path)
    ckptd.deepspeed.get_fp32_state_dict_from_zero_checkpoint(tag)
    assert f"{tag} is not a checkpoint of ckptd" in caplog.text
