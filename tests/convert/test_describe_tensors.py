"""`ckptctl describe --tensors`: the tensors in a checkpoint's files, whatever has written them."""

import json

import ckptd
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import zero1_states
from harness import Daemon, ckptctl

STATE = {
    "model": {"weight": torch.rand(3, 4), "bias": torch.zeros(0)},
    "optimizer": {0: {"exp_avg": torch.rand(3, 4, dtype=torch.bfloat16)}},
    "list": [1, (torch.tensor(5), "x")],
    "step": 7,
}
NAMES = {
    "model.weight": ("float32", [3, 4], 48),
    "model.bias": ("float32", [0], 0),
    "optimizer.0.exp_avg": ("bfloat16", [3, 4], 24),
    "list.1.0": ("int64", [], 8),
}


def described(path, status=0):
    done = ckptctl("describe", "--tensors", str(path), "--output=json", check=False)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def by_name(found):
    return {each["name"]: (each["dtype"], each["shape"], each["bytes"]) for each in found["tensors"]}


def test_file_of_torch_save_is_listed(tmp_path):
    (tmp_path / "step_1").mkdir()
    torch.save(STATE, tmp_path / "step_1/no_suffix")
    (tmp_path / "step_1/note.txt").write_text("no tensors")
    found = described(tmp_path / "step_1")
    assert by_name(found) == NAMES
    assert {each["file"] for each in found["tensors"]} == {"no_suffix"}
    assert (found["elements"], found["bytes"], found["unread"]) == (25, 80, [])


def test_distributed_checkpoint_is_listed_once(tmp_path):
    dcp.save({**STATE, "list": [torch.tensor(5)]}, checkpoint_id=tmp_path / "step_1", no_dist=True)
    found = described(tmp_path / "step_1")
    assert by_name(found) == {"list.0" if name == "list.1.0" else name: what for name, what in NAMES.items()}


def test_safetensors_are_listed(tmp_path):
    (tmp_path / "step_1/sub").mkdir(parents=True)
    safetensors.torch.save_file({"a": torch.rand(2, 3)}, tmp_path / "step_1/sub/model.safetensors")
    found = described(tmp_path / "step_1")
    assert [(each["name"], each["file"]) for each in found["tensors"]] == [("a", "sub/model.safetensors")]


def test_tag_of_nxd_with_a_file_for_each_tensor_is_listed(tmp_path):
    state = zero1_states.full_state(shapes={0: [50, 70]})
    tag = zero1_states.write_tag(tmp_path / "tag", {(0, 0): state}, 2, xser=True)
    found = described(tag)
    references = [each for each in found["tensors"] if each["dtype"] is None]
    assert references and all(each["name"].rpartition(".")[2].startswith("tensor_") for each in references)
    in_files = [each for each in found["tensors"] if each["dtype"] is not None and "tensor_" in each["file"]]
    assert len(in_files) == len(references)


def test_file_that_cannot_be_read_is_named_and_the_others_are_listed(tmp_path):
    (tmp_path / "step_1").mkdir()
    torch.save(STATE, tmp_path / "step_1/good.pt")
    (tmp_path / "step_1/bad.pt").write_bytes(b"PK\x03\x04 and nothing more")
    found = described(tmp_path / "step_1", status=1)
    assert by_name(found) == NAMES
    assert len(found["unread"]) == 1 and found["unread"][0].startswith("bad.pt: ")
    text = ckptctl("describe", "--tensors", str(tmp_path / "step_1"), check=False).stdout
    assert "cannot be read: bad.pt: " in text and "model.weight" in text


@pytest.fixture
def daemon(tmp_path_factory):
    made = Daemon(str(tmp_path_factory.mktemp("daemon")))
    yield made
    made.close()


def test_checkpoint_is_found_by_the_names_that_describe_takes(daemon, tmp_path):
    run = ckptd.connect(daemon.endpoint).run(str(tmp_path), rank=0, world_size=1)
    torch.save(STATE, tmp_path / "state.pt")
    run.save("step_1", files={"state.pt": (tmp_path / "state.pt").read_bytes()}).wait("committed")
    for name in (f"{tmp_path}/step_1", f"{tmp_path}/latest", "step_1", "latest"):
        done = ckptctl("describe", "--tensors", name, "--output=json", endpoint=daemon.endpoint)
        found = json.loads(done.stdout)
        assert (by_name(found), found["path"]) == (NAMES, f"{tmp_path}/step_1")
    missing = ckptctl("describe", "--tensors", f"{tmp_path}/step_9", endpoint=daemon.endpoint, check=False)
    assert missing.returncode != 0 and "step_9" in missing.stderr
