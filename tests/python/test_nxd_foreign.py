"""Reading checkpoints of every layout that releases of NxD write, in files that torch makes here; and NxD's
latest.
"""

import collections
import errno
import logging
import os
import sys
import types

import ckptd
import ckptd.nxd as nxd
import nxd_job
import pytest
import torch
from ckptd.nxd import Topology, _foreign, _loading, _load_latest, _pickles, _sources
from nxd_trees import frameworks, load_rank, save_rank, torch_save, xser_as_torch_xla

ALONE = Topology(rank=0, world_size=1)
MODEL = "model/dp_rank_00_tp_rank_00_pp_rank_00.pt"
OPTIM = "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt"


def model_state():
    return dict(nxd_job.Model(4, ALONE).state_dict())


def loads(root):
    model = nxd_job.Model(0, ALONE)
    load_rank(root, "t", ALONE, model=model)
    return nxd_job.model_differences(model, 4, ALONE)


def test_plain_with_ordered_dicts_and_metadata(tmp_path):
    torch_save(tmp_path, f"t/{MODEL}", nxd_job.Model(4, ALONE).state_dict())
    assert loads(tmp_path) == []


def test_plain_of_torchs_older_file_format(tmp_path):
    os.makedirs(tmp_path / "t/model")
    torch.save(model_state(), tmp_path / "t" / MODEL, _use_new_zipfile_serialization=False)
    assert loads(tmp_path) == []


def test_xser(tmp_path):
    xser_as_torch_xla(tmp_path / "t", MODEL, model_state())
    assert loads(tmp_path) == []


def test_xser_without_info(tmp_path):
    xser_as_torch_xla(tmp_path / "t", MODEL, model_state(), info=False)
    assert loads(tmp_path) == []


def test_xser_with_tensors_inline_beside_references(tmp_path):
    """A root as NxD's converter leaves it."""
    state = model_state()
    torch_save(tmp_path, f"t/{MODEL}", state)
    os.mkdir(tmp_path / f"t/{MODEL}.tensors")
    assert loads(tmp_path) == []
    mixed = tmp_path / "mixed"
    with frameworks() as (reference, _):
        some = dict(state)
        some["scale"] = reference(0)
        torch_save(mixed, f"t/{MODEL}", some)
    torch_save(mixed, f"t/{MODEL}.tensors/tensor_0.pt", state["scale"])
    assert loads(mixed) == []


def test_tensor_in_a_list_that_nxd_left_as_an_internal_reference_is_repaired(tmp_path):
    state = {"state": {}, "param_groups": [{"lr": torch.tensor(0.25), "params": [0]}]}
    xser_as_torch_xla(tmp_path / "t", OPTIM, state, list_bug=True)
    raw = _sources.Foreign(str(tmp_path), "t").load(OPTIM, _sources.Classes())
    assert type(raw["param_groups"][0]["lr"]) is _pickles.InternalTensorReference
    target = {}
    load_rank(tmp_path, "t", ALONE, optimizer=target)
    assert nxd_job.differences(target, state) == []


def test_tensor_under_two_names_stays_one_object(tmp_path):
    with frameworks() as (reference, _):
        torch_save(tmp_path, f"t/{MODEL}", {"a": reference(0), "b": reference(0)})
    torch_save(tmp_path, f"t/{MODEL}.tensors/tensor_0.pt", torch.ones(3))
    target = {}
    load_rank(tmp_path, "t", ALONE, model=target)
    assert target["a"] is target["b"]


def test_tensors_that_all_experts_share_may_be_with_the_first(tmp_path):
    where = Topology(dp_rank=1, dp_size=2, ep_rank=1, ep_size=2, edp_rank=0, edp_size=1, rank=1, world_size=2)
    name = "model/dp_rank_00_ep_rank_{}_tp_rank_00_pp_rank_00.pt"
    for ep in ("00", "01"):
        xser_as_torch_xla(tmp_path / "t", name.format(ep), {"shared": torch.ones(2), "own": torch.full((2,), float(ep))})
    os.remove(tmp_path / "t" / f"{name.format('01')}.tensors/tensor_0.pt")
    target = {}
    load_rank(tmp_path, "t", where, model=target)
    assert torch.equal(target["shared"], torch.ones(2)) and torch.equal(target["own"], torch.ones(2))


def test_missing_tensor_is_named_and_nothing_is_changed(tmp_path):
    xser_as_torch_xla(tmp_path / "t", MODEL, model_state())
    os.remove(tmp_path / f"t/{MODEL}.tensors/tensor_3.pt")
    model = nxd_job.Model(0, ALONE)
    with pytest.raises(ckptd.NotFound, match="tensor_3.pt") as caught:
        load_rank(tmp_path, "t", ALONE, model=model)
    assert caught.value.reason == "UNKNOWN_FILE"
    assert nxd_job.model_differences(model, 0, ALONE) == []


def test_missing_part_is_named_with_the_files_that_exist(tmp_path):
    torch_save(tmp_path, f"t/{MODEL}", {})
    torch_save(tmp_path, "t/model/dp_rank_00_tp_rank_01_pp_rank_00.pt", {})
    with pytest.raises(ckptd.NotFound, match="tp_rank_02.*in that folder it has .*tp_rank_00.*tp_rank_01"):
        load_rank(tmp_path, "t", Topology(tp_rank=2, tp_size=4), model={})
    with pytest.raises(ckptd.NotFound, match="scheduler.pt") as caught:
        load_rank(tmp_path, "t", ALONE, scheduler=nxd_job.Scheduler(0))
    assert isinstance(caught.value, FileNotFoundError) and caught.value.errno == errno.ENOENT  # As with NxD.
    assert "scheduler.pt" in str(caught.value) and caught.value.reason == "UNKNOWN_FILE"
    assert load_rank(tmp_path, "t", ALONE, model={}) is None  # No user content.


def test_torn_file_is_corrupt_and_names_itself(tmp_path):
    torch_save(tmp_path, f"t/{MODEL}", model_state())
    size = os.path.getsize(tmp_path / f"t/{MODEL}")
    for left in (0, 1, 100, size // 2, size - 1):
        os.truncate(tmp_path / f"t/{MODEL}", min(left, os.path.getsize(tmp_path / f"t/{MODEL}")))
        with pytest.raises(ckptd.Corrupt, match="cannot be read") as caught:
            load_rank(tmp_path, "t", ALONE, model={})
        assert MODEL in str(caught.value)
        os.remove(tmp_path / f"t/{MODEL}")
        torch_save(tmp_path, f"t/{MODEL}", model_state())


class Runs:
    """Pickles to a call that leaves a trace if it is made."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("name", [MODEL, OPTIM])
def test_states_that_name_anything_else_are_refused_and_nothing_runs(tmp_path, name):
    torch_save(tmp_path, f"t/{name}", {"a": Runs(tmp_path / "trace")})
    targets = {"model": {}} if name == MODEL else {"optimizer": {}}
    with pytest.raises(ckptd.Refused, match="posix.mkdir") as caught:
        load_rank(tmp_path, "t", ALONE, **targets)
    assert caught.value.reason == "UNSAFE_GLOBALS"
    assert not (tmp_path / "trace").exists()
    load_rank(tmp_path, "t", ALONE, allowed=_loading.AllowedClasses(_sources.Classes(anything=True)), **targets)
    assert (tmp_path / "trace").exists()


def test_plain_values_of_all_kinds_are_allowed(tmp_path):
    state = {
        "ordered": collections.OrderedDict(a=1),
        "size": torch.Size([2]),
        "type": torch.bfloat16,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "set": {1, 2},
        "bytes": b"\x00\xff",
        "half": torch.ones(3, dtype=torch.float16)[1:],
        "eight": torch.ones(4).to(torch.float8_e4m3fn),
        "big": 1 << 70,
    }
    torch_save(tmp_path, f"t/{OPTIM}", state)
    target = {}
    load_rank(tmp_path, "t", ALONE, optimizer=target)
    assert target.keys() == state.keys() and target["set"] == {1, 2} and target["type"] is torch.bfloat16


def test_sharded_state_is_not_taken_for_a_whole_one(tmp_path):
    for dp in range(2):
        save_rank(tmp_path, "t", Topology(dp_rank=dp, dp_size=2), optimizer={"s": torch.ones(1)}, zero1_optimizer=True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    with pytest.raises(ckptd.Refused, match="is sharded \\(ZeRO-1\\), but this optimizer is not"):
        load_rank(tmp_path, "t", ALONE, optimizer=optimizer)


def test_target_that_cannot_be_filled_is_a_runtime_error():
    with pytest.raises(RuntimeError, match="invalid optimizer object int"):
        _loading.check(_loading.LoadTargets(optimizer=3))
    with pytest.raises(RuntimeError, match="invalid model object str"):
        _loading.check(_loading.LoadTargets(model="x"))


# ---- which tags are there


def tag(root, name, done_ns=None, begun=True):
    os.makedirs(root / name)
    if begun:
        (root / name / "checkpoint").write_text("1")
    if done_ns is not None:
        (root / name / "done").write_text("1")
        os.utime(root / name / "done", ns=(done_ns, done_ns))


def found(root):
    return [f.tag for f in _foreign.finished(str(root))]


def test_latest_of_nxd_is_the_one_whose_done_is_newest(tmp_path):
    for name, time in (("step_100", 3_000), ("step_20", 1_000), ("step_3", 2_000)):
        tag(tmp_path, name, time)
    assert found(tmp_path) == ["step_20", "step_3", "step_100"]


def test_equal_times_are_in_the_order_of_names_on_every_rank(tmp_path):
    for name in ("b", "a", "c"):
        tag(tmp_path, name, 1_000)
    assert found(tmp_path) == ["a", "b", "c"]


def test_tags_without_done_files_and_hidden_folders_are_no_checkpoints(tmp_path):
    tag(tmp_path, "begun")
    tag(tmp_path, "half_deleted", begun=False)
    tag(tmp_path, ".hidden", 5)
    (tmp_path / "done").write_text("1")
    tag(tmp_path, "whole", 1)
    assert found(tmp_path) == ["whole"]
    assert not _foreign.may_be_loaded(str(tmp_path), "begun") and _foreign.may_be_loaded(str(tmp_path), "whole")
    assert not _foreign.may_be_loaded(str(tmp_path), "nowhere") and not _foreign.may_be_loaded(str(tmp_path), "done")
    os.symlink("nowhere", tmp_path / "half_deleted/checkpoint")  # It exists, wherever it points.
    assert not _foreign.may_be_loaded(str(tmp_path), "half_deleted")


def test_weights_that_nxds_converter_wrote_without_markers_are_loaded_by_their_name_alone(tmp_path):
    torch_save(tmp_path, f"pretrained_weight/{MODEL}", model_state())
    model = nxd_job.Model(0, ALONE)
    assert nxd.load_checkpoint(tmp_path, tag="pretrained_weight", model=model) is None
    assert nxd_job.model_differences(model, 4, ALONE) == []
    assert not nxd.has_checkpoint(tmp_path)
    with pytest.raises(nxd.NoCheckpoint, match="no checkpoint under directory"):
        nxd.load_checkpoint(tmp_path, model=model)
    (tmp_path / "pretrained_weight/checkpoint").write_text("1")  # Now it is an unfinished save.
    with pytest.raises(nxd.NoCheckpoint, match="it has no `done`"):
        nxd.load_checkpoint(tmp_path, tag="pretrained_weight", model=model)
    assert found(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["step 10", "epoch:1", "latest", "-1", ".x", "a/b", "größe", "x" * 250])
def test_tag_that_nxd_has_saved_is_loaded_by_its_name_whatever_its_characters(tmp_path, name):
    torch_save(tmp_path, f"{name}/{MODEL}", model_state())
    for marker in ("checkpoint", "done"):
        (tmp_path / name / marker).write_text("1")
    model = nxd_job.Model(0, ALONE)
    nxd.load_checkpoint(tmp_path, tag=name, model=model)
    assert nxd_job.model_differences(model, 4, ALONE) == []
    with pytest.raises(ValueError, match="it must be a directory's name"):
        nxd.save_checkpoint(tmp_path, name, model=model)


def test_missing_tag_is_also_what_nxd_raises(tmp_path):
    with pytest.raises(nxd.NoTag, match="no checkpoint step_1 under directory .*there is no such directory") as caught:
        nxd.load_checkpoint(tmp_path, tag="step_1", model={})
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, nxd.NoCheckpoint)
    assert caught.value.errno == errno.ENOENT and caught.value.tag == "step_1" and isinstance(caught.value, ckptd.NotFound)
    with pytest.raises(ValueError, match="tag is 5; it must be a string"):
        nxd.load_checkpoint(tmp_path, tag=5, model={})


def test_checkpoint_of_ckptd_is_not_foreign(tmp_path):
    tag(tmp_path, "ours", 1)
    os.makedirs(tmp_path / "ours/.ckptd")
    (tmp_path / "ours/.ckptd/manifest").write_bytes(b"")
    assert found(tmp_path) == [] and _foreign.any_finished(str(tmp_path))


def test_name_that_only_nxd_has_says_that_nxd_is_not_installed():
    with pytest.raises(AttributeError, match="initialize_parallel_model.*neuronx_distributed, which is not installed here"):
        _ = nxd.initialize_parallel_model
    assert not hasattr(nxd, "_private") and not hasattr(nxd, "neuronx_distributed_config")


def test_name_that_nxd_does_not_have_either_names_both(monkeypatch):
    fake = types.ModuleType("neuronx_distributed")
    fake.initialize_parallel_model = print
    monkeypatch.setitem(sys.modules, "neuronx_distributed", fake)
    assert nxd.initialize_parallel_model is print
    with pytest.raises(AttributeError, match="neither ckptd.nxd nor neuronx_distributed has an attribute 'initialise'"):
        _ = nxd.initialise


def test_import_error_of_an_installed_nxd_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "neuronx_distributed").mkdir()
    (tmp_path / "neuronx_distributed/__init__.py").write_text("import torch_xla_that_is_not_here")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "neuronx_distributed", raising=False)
    with pytest.raises(ModuleNotFoundError, match="torch_xla_that_is_not_here"):
        _ = nxd.initialize_parallel_model


def test_newer_tag_of_nxd_beside_ours_is_named_in_the_log(tmp_path, caplog):
    save_rank(tmp_path, "ours", ALONE, model={"a": torch.ones(1)})
    tag(tmp_path, "theirs", 2_000_000_000_000_000_000)
    os.makedirs(tmp_path / "ours/.ckptd")
    (tmp_path / "ours/.ckptd/manifest").write_bytes(b"")

    class Opened:
        """A fake of a checkpoint that ckptd committed."""

        tag = "ours"
        files = (MODEL,)
        info = types.SimpleNamespace(time=types.SimpleNamespace(timestamp=lambda: 1_900_000_000.0))

        def load(self, name, safe_globals, into):
            into["a"].fill_(1)

    target = {"a": torch.zeros(1)}
    job = types.SimpleNamespace(topology=ALONE)
    with caplog.at_level(logging.WARNING):
        _load_latest(str(tmp_path), job, Opened(), _loading.LoadTargets(model=target))
    assert "loading ours" in caplog.text and "NxD has written theirs" in caplog.text
    assert target["a"] == 1
