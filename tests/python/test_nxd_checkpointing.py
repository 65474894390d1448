"""NxD's older functions: names and layout of the files, the parameters, and what is refused."""

import inspect
import os

import ckptd
import nxd_job
import pytest
import torch
from ckptd._torch.writing.deferred_tensors import DeferredTensors
from ckptd.nxd import Topology, _names, _parts, _states, checkpointing
from ckptd.nxd._process import process
from nxd_trees import read_as_torch_xla, torch_save, write, xser_as_torch_xla

STATE = {"model": {"x": torch.arange(3.0), "n": torch.arange(2)}, "list": [torch.ones(1)], "step": 3}


@pytest.fixture
def where(monkeypatch):
    """Sets this process's coordinates."""

    def set_topology(topology):
        monkeypatch.setattr(process, "topology", lambda: topology)

    set_topology(Topology(tp_rank=1, tp_size=2, dp_rank=3, dp_size=4, rank=7, world_size=8))
    return set_topology


def test_parameters_are_those_of_nxd():
    assert list(inspect.signature(checkpointing.save).parameters) == [
        "checkpoint",
        "output_dir",
        "save_serially",
        "save_xser",
        "down_cast_bf16",
        "master_dp_only",
    ]
    assert list(inspect.signature(checkpointing.load).parameters) == [
        "chkpt_path",
        "model",
        "model_or_optimizer",
        "model_key",
        "load_xser",
        "sharded",
        "strict",
        "master_dp_only",
        "weights_only",
    ]


def test_names_are_those_of_nxd():
    topology = Topology(tp_rank=1, tp_size=2, pp_rank=0, dp_rank=3, dp_size=4)
    assert checkpointing._name(topology, False, True) == "tp_rank_01_pp_rank_00/checkpoint.pt"
    assert checkpointing._name(topology, False, False) == "tp_rank_01_pp_rank_00_dp_rank_03/checkpoint.pt"
    assert checkpointing._name(topology, True, True) == "tp_rank_01_pp_rank_00"
    assert _names.tensor("tp_rank_01_pp_rank_00", 0) == "tp_rank_01_pp_rank_00.tensors/tensor_0.pt"


def save_files(root, state, use_xser):
    name = "tp_rank_01_pp_rank_00" if use_xser else "tp_rank_01_pp_rank_00/checkpoint.pt"
    plain = _states.to_plain(state, DeferredTensors())
    for path, value in _parts.files_of_any_state(name, plain, DeferredTensors(), use_xser):
        write(root, path, value)


def test_files_are_read_by_torch_and_torch_xla(tmp_path):
    save_files(tmp_path / "plain", STATE, False)
    read = torch.load(tmp_path / "plain/tp_rank_01_pp_rank_00/checkpoint.pt", weights_only=True)
    assert nxd_job.differences(read, STATE) == []
    save_files(tmp_path / "xser", STATE, True)
    assert nxd_job.differences(read_as_torch_xla(tmp_path / "xser", "tp_rank_01_pp_rank_00"), STATE) == []


@pytest.mark.parametrize("load_xser", [False, True])
@pytest.mark.parametrize("master_dp_only", [False, True])
def test_state_that_nxd_has_saved_is_loaded(tmp_path, where, load_xser, master_dp_only):
    name = "tp_rank_01_pp_rank_00" if master_dp_only else "tp_rank_01_pp_rank_00_dp_rank_03"
    if load_xser:
        xser_as_torch_xla(tmp_path / "t", name, STATE, info=False)
    else:
        torch_save(tmp_path / "t", f"{name}/checkpoint.pt", STATE)
    options = {"load_xser": load_xser, "master_dp_only": master_dp_only}
    assert nxd_job.differences(checkpointing.load(tmp_path / "t", **options), STATE) == []
    with pytest.raises(ckptd.NotFound, match="tp_rank_01_pp_rank_00.*was it saved without this, or with another topology") as caught:
        checkpointing.load(tmp_path / "t", load_xser=load_xser, master_dp_only=not master_dp_only)
    assert isinstance(caught.value, FileNotFoundError)


def test_target_is_filled_from_a_part_or_the_whole_and_the_rest_is_returned(tmp_path, where):
    torch_save(tmp_path, "t/tp_rank_01_pp_rank_00/checkpoint.pt", STATE)
    model = torch.nn.Module()
    model.x, model.n = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, dtype=torch.long), False)
    left = checkpointing.load(tmp_path / "t", model)
    assert torch.equal(model.x, STATE["model"]["x"]) and list(left) == ["list", "step"]
    del model.n
    with pytest.raises(RuntimeError, match="Unexpected key"):
        checkpointing.load(tmp_path / "t", model_or_optimizer=model)
    assert checkpointing.load(tmp_path / "t", model_or_optimizer=model, strict=False) == {**left}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    torch_save(tmp_path, "o/tp_rank_01_pp_rank_00/checkpoint.pt", {**optimizer.state_dict(), "more": 1})
    optimizer.param_groups[0]["lr"] = 0.1
    assert checkpointing.load(tmp_path / "o", model_or_optimizer=optimizer, model_key=None) is None
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_down_cast_turns_float32_alone_into_bfloat16_and_keeps_tied_tensors():
    tied = torch.ones(2)
    state = {"a": tied, "b": [tied, torch.ones(1, dtype=torch.float64)], "c": torch.ones(1, dtype=torch.int32), "d": "x"}
    cast = _states.to_bfloat16(state)
    assert cast["a"].dtype == torch.bfloat16 and cast["b"][0] is cast["a"] and cast["d"] == "x"
    assert cast["b"][1].dtype == torch.float64 and cast["c"].dtype == torch.int32 and tied.dtype == torch.float32


def test_parts_that_the_names_cannot_tell_apart_are_refused(tmp_path, where):
    experts = Topology(dp_rank=1, dp_size=2, ep_rank=1, ep_size=2, edp_rank=0, edp_size=1, rank=1, world_size=2)
    for topology, master_dp_only in ((experts, True), (Topology(cp_rank=1, cp_size=2, rank=1, world_size=2), False)):
        where(topology)
        with pytest.raises(ValueError, match="all parts but one would be lost"):
            checkpointing.save(STATE, tmp_path / "t", master_dp_only=master_dp_only)
    with pytest.raises(ValueError, match="it must be a directory's name"):
        checkpointing.save(STATE, tmp_path / "a b")
    with pytest.raises(ckptd.Refused, match='the directory is "s3://bucket", which names no checkpoint'):
        checkpointing.save(STATE, "s3://bucket")
    with pytest.raises(ckptd.Refused, match="gs://bucket/t"):
        checkpointing.load("gs://bucket/t")
    assert os.listdir(tmp_path) == []
