"""`ckptctl convert dcp-to-torch`, `torch-to-dcp` and `dcp-to-safetensors` against torch's own converters."""

import collections
import json
import os
import pathlib
import pickle

import dcp_states as states
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from harness import ckptctl

STATES = {
    "one dimension": (4, "states.sharded_state(1)"),
    "two dimensions": (4, "states.sharded_state(1, states.init_device_mesh('cpu', (2, 2)))"),
    "uneven": (3, "states.sharded_state(1)"),
    "ddp": (2, "states.ddp_state(1)"),
}


def convert(command, source, destination, *options):
    done = ckptctl("convert", command, str(source), str(destination), *options, "--output=json", check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(command, source, destination, *options, status=4):
    """Expects a refusal that leaves nothing behind, and returns its message."""
    before = sorted(pathlib.Path(destination).parent.rglob("*"))
    done = ckptctl("convert", command, str(source), str(destination), *options, check=False)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert sorted(pathlib.Path(destination).parent.rglob("*")) == before
    return done.stderr


def saved(state, path):
    dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


def change_metadata(path, change):
    metadata = FileSystemReader(path).read_metadata()
    change(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("writer", ["Writer", "FileSystemWriter"])
@pytest.mark.parametrize("name", STATES)
def test_dcp_to_torch_gives_the_state_dict_that_torch_gives(launch, root, tmp_path, name, writer):
    world_size, state = STATES[name]
    path = os.path.join(root, "step-1")
    launch(world_size).do(f"dcp.save({state}, storage_writer={writer}({path!r}))")
    report = convert("dcp-to-torch", path, tmp_path / "ours.pt")
    assert (report["verified_bytes"] > 0) == (writer == "Writer")
    dcp_to_torch_save(path, tmp_path / "torch.pt")
    wanted = torch.load(tmp_path / "torch.pt", weights_only=False)
    found = torch.load(tmp_path / "ours.pt", weights_only=name != "ddp")
    assert states.differences(wanted, found) == []
    assert list(wanted) == list(found)


def test_dcp_to_torch_keeps_tensors_of_every_kind(tmp_path):
    state = states.plain_state(1)
    del state["m"]["conjugate"]  # Refused: see below.
    path = saved(state, tmp_path / "in")
    convert("dcp-to-torch", path, tmp_path / "ours.pt")
    dcp_to_torch_save(path, tmp_path / "torch.pt")
    wanted = torch.load(tmp_path / "torch.pt", weights_only=False)
    assert states.differences(wanted, torch.load(tmp_path / "ours.pt", weights_only=True)) == []


NESTED = {
    "model": collections.OrderedDict(w=torch.arange(12.0).reshape(3, 4).t(), b=torch.nn.Parameter(torch.ones(2))),
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0)}, 1: {"list": [torch.ones(2), {"deep": [torch.zeros(1)]}, 7]}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": [0, 1]}],
    },
    "counts": collections.Counter(a=1),
    "default": collections.defaultdict(int, b=2),
    "view": torch.arange(100)[10:20:3],
    "tuple": (torch.ones(3), "x"),
    "none": None,
    "flag": True,
    "numbers": [1, 2],
    "empty list": [],
    "a.b": "dots",
}


def test_torch_to_dcp_says_of_each_entry_what_torch_says(tmp_path):
    torch.save(NESTED, tmp_path / "in.pt")
    report = convert("torch-to-dcp", tmp_path / "in.pt", tmp_path / "ours")
    torch_save_to_dcp(tmp_path / "in.pt", tmp_path / "torch")
    ours, wanted = (FileSystemReader(tmp_path / side).read_metadata() for side in ("ours", "torch"))
    assert ours.state_dict_metadata == wanted.state_dict_metadata
    assert list(ours.state_dict_metadata) == list(wanted.state_dict_metadata)
    assert ours.planner_data == wanted.planner_data
    assert ours.storage_data.keys() == wanted.storage_data.keys()
    assert (report["tensors"], report["left_out"]) == (6, [])
    for side in ("ours", "torch"):
        dcp_to_torch_save(tmp_path / side, tmp_path / f"{side}.pt")
    one, other = (torch.load(tmp_path / f"{side}.pt", weights_only=False) for side in ("ours", "torch"))
    assert states.differences(other, one) == []


def test_checkpoint_that_went_through_torch_save_is_loaded_by_ranks_that_shard_it(launch, root, tmp_path):
    before, after = os.path.join(root, "step-1"), str(tmp_path / "after")
    launch(4).do(f"dcp.save(states.sharded_state(1), storage_writer=Writer({before!r}))")
    convert("dcp-to-torch", before, tmp_path / "whole.pt")
    convert("torch-to-dcp", tmp_path / "whole.pt", after)
    found = launch(3).do(
        "wanted = states.sharded_state(1)\ninto = states.emptied(wanted)\n"
        f"dcp.load(into, storage_reader=Reader({after!r}))\nstates.differences(wanted, into)"
    )
    assert found == [[]] * 3


def test_torch_to_dcp_names_what_a_distributed_checkpoint_has_no_place_for(tmp_path):
    tensor = torch.ones(2)
    tensor.note = "of a program"
    torch.save({"w": tensor, "state": {}, "list": [{}, 1]}, tmp_path / "in.pt")
    report = convert("torch-to-dcp", tmp_path / "in.pt", tmp_path / "out")
    assert report["left_out"] == ["state (an empty dict)", "list.0 (an empty dict)", "w (attributes of the tensor)"]
    text = ckptctl("convert", "torch-to-dcp", str(tmp_path / "in.pt"), str(tmp_path / "again")).stdout
    assert "left out: state (an empty dict)\n" in text
    assert f"from  {tmp_path / 'in.pt'}\n" in text


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": 1}, "a.b": 2}, "two entries of the state dict get the name a.b"),
        ({"a": {(1, 2): 3}}, "a has the key a tuple"),
        ([1, 2], "and no dict of state"),
        ({"w": torch.ones(3, dtype=torch.complex64).conj()}, "w: it is a view that torch computes"),
    ],
)
def test_torch_to_dcp_refuses_what_would_be_lost(tmp_path, state, message):
    torch.save(state, tmp_path / "in.pt")
    error = refused("torch-to-dcp", tmp_path / "in.pt", tmp_path / "out")
    assert message in error and error.endswith("[CANNOT_CONVERT]\n")


def test_dcp_to_safetensors_has_the_tensors_under_the_prefix(launch, root, tmp_path):
    path = os.path.join(root, "step-1")
    launch(4).do(f"state = states.sharded_state(1)\ndcp.save(state, storage_writer=Writer({path!r}))")
    report = convert("dcp-to-safetensors", path, tmp_path / "out", "--prefix=model.")
    dcp_to_torch_save(path, tmp_path / "torch.pt")
    wanted = torch.load(tmp_path / "torch.pt", weights_only=False)["model"]
    assert report["files"] == ["model.safetensors"] and report["left_out"] == []
    assert states.differences(wanted, safetensors.torch.load_file(tmp_path / "out/model.safetensors")) == []


def test_dcp_to_safetensors_names_the_values_that_it_leaves_out(tmp_path):
    path = saved({"model": {"w": torch.ones(2)}, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "in")
    report = convert("dcp-to-safetensors", path, tmp_path / "out")
    assert report["left_out"] == ["epoch", "optimizer.lr"]
    assert list(safetensors.torch.load_file(tmp_path / "out/model.safetensors")) == ["model.w"]


def test_dcp_to_safetensors_splits_files_and_casts(tmp_path):
    weights = {f"w{i}": torch.linspace(-3, i, 1000).reshape(100, 10) for i in range(5)} | {"ids": torch.arange(6)}
    path = saved(weights, tmp_path / "in")
    report = convert("dcp-to-safetensors", path, tmp_path / "out", "--max-shard-size=4500", "--dtype=bfloat16")
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert set(report["files"]) == {*index["weight_map"].values(), "model.safetensors.index.json"}
    assert len(set(index["weight_map"].values())) == 3
    found = {name: safetensors.torch.load_file(tmp_path / "out" / file)[name] for name, file in index["weight_map"].items()}
    wanted = {name: weight.to(torch.bfloat16) if weight.is_floating_point() else weight for name, weight in weights.items()}
    assert states.differences(wanted, found) == []


def test_prefix_without_tensors_is_refused_with_those_that_there_are(tmp_path):
    path = saved({"model": {"w": torch.ones(2)}, "optimizer": {"m": torch.ones(2)}}, tmp_path / "in")
    error = refused("dcp-to-safetensors", path, tmp_path / "out", "--prefix=mdl.")
    assert "no tensor's name begins with the prefix \"mdl.\"; names begin with model., optimizer." in error
    error = refused("dcp-to-safetensors", path, tmp_path / "out", "--prefix=model.w")
    assert "is the whole name of a tensor" in error


def drop_chunk(metadata):
    metadata.state_dict_metadata["w"].chunks.clear()


def move_chunk(metadata):
    metadata.state_dict_metadata["w"].chunks[0] = ChunkStorageMetadata(torch.Size([5, 0]), torch.Size([4, 3]))


def forget_place(metadata):
    metadata.storage_data = {key: place for key, place in metadata.storage_data.items() if key.fqn != "w"}


def compress(metadata):
    for place in metadata.storage_data.values():
        place.transform_descriptors = ["stream_transform_zstd"]


def other_shape(metadata):
    metadata.state_dict_metadata["w"].size = torch.Size([8, 3])


def huge_shape(metadata):
    metadata.state_dict_metadata["w"].size = torch.Size([2**40, 2**40])


def shared_path(metadata):
    metadata.planner_data["v"] = ("w",)


def path_through_a_tensor(metadata):
    metadata.planner_data["v"] = ("w", "v")


def outside(metadata):
    for place in metadata.storage_data.values():
        place.relative_path = "../in/__0_0.distcp"


def beyond_the_end(metadata):
    for place in metadata.storage_data.values():
        place.offset += 10**6


@pytest.mark.parametrize(
    ("change", "message", "status"),
    [
        (drop_chunk, "w: no chunk has its element 0", 4),
        (move_chunk, ".metadata: it does not say in which file w's chunk at [5, 0] is", 1),
        (forget_place, ".metadata: it does not say in which file w's chunk at [0, 0] is", 1),
        (compress, "transform_descriptors", 4),
        (other_shape, "w: no chunk has its element 12", 4),
        (huge_shape, ".metadata: w has the shape [1099511627776, 1099511627776]", 1),
        (shared_path, "v: another entry has its path", 4),
        (path_through_a_tensor, "v: its path in the state dict meets the path of another entry", 4),
        (outside, "__0_0.distcp", 4),
        (beyond_the_end, "__0_0.distcp at 10", 1),
    ],
)
def test_checkpoint_that_does_not_fit_its_metadata_is_refused(tmp_path, change, message, status):
    path = saved({"w": torch.ones(4, 3), "v": 1}, tmp_path / "in")
    change_metadata(path, change)
    assert message in refused("dcp-to-torch", path, tmp_path / "out.pt", status=status)


def test_chunk_of_another_dtype_is_refused(tmp_path):
    path = saved({"w": torch.ones(4, 3)}, tmp_path / "in")
    other = saved({"w": torch.ones(4, 3, dtype=torch.int32)}, tmp_path / "other")
    (path / "__0_0.distcp").write_bytes((other / "__0_0.distcp").read_bytes())
    error = refused("dcp-to-torch", path, tmp_path / "out.pt")
    assert "should be a tensor float32[4, 3], and __0_0.distcp has a tensor int32[4, 3] at 0" in error


def test_save_that_has_not_ended_is_refused(tmp_path):
    path = saved({"w": torch.ones(4, 3)}, tmp_path / "in")
    (path / ".metadata").unlink()
    assert "there is no .metadata" in refused("dcp-to-safetensors", path, tmp_path / "out")


def test_metadata_that_would_run_code_is_refused_by_name(tmp_path):
    path = saved({"w": torch.ones(4, 3)}, tmp_path / "in")
    (path / ".metadata").write_bytes(b"\x80\x02cos\nsystem\nX\x01\x00\x00\x00a\x85R.")
    error = refused("dcp-to-torch", path, tmp_path / "out.pt")
    assert "os.system" in error and error.endswith("[UNSAFE_PICKLE]\n")


def test_output_that_exists_is_left_alone(tmp_path):
    path = saved({"w": torch.ones(4, 3)}, tmp_path / "in")
    (tmp_path / "out").write_text("mine")
    for command in ("dcp-to-torch", "dcp-to-safetensors"):
        assert "[OUTPUT_NOT_EMPTY]" in refused(command, path, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"
    (tmp_path / "dir").mkdir()
    assert "the output dir exists" in refused("dcp-to-torch", path, tmp_path / "dir")
    assert "[OUTPUT_IS_INPUT]" in refused("dcp-to-torch", path, path / "out.pt")


def test_dry_run_checks_and_writes_nothing(tmp_path):
    path = saved({"w": torch.ones(4, 3)}, tmp_path / "in")
    torch.save({"w": torch.ones(4, 3)}, tmp_path / "in.pt")
    for command, source in (("dcp-to-torch", path), ("dcp-to-safetensors", path), ("torch-to-dcp", tmp_path / "in.pt")):
        assert convert(command, source, tmp_path / "out", "--dry-run")["tensors"] == 1
        assert not (tmp_path / "out").exists()
