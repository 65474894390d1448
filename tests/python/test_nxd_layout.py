"""The files that a rank writes, read by torch, by torch_xla's loader as NxD uses it, and by ckptd.nxd."""

import io
import itertools
import os
import pickletools
import warnings
import zipfile
from argparse import Namespace
from dataclasses import replace

import ckptd
import numpy
import nxd_job
import pytest
import torch
from ckptd._torch.writing.deferred_tensors import DeferredTensors
from ckptd.nxd import Topology, _parts, _states
from ckptd.nxd._process import Settings
from nxd_trees import load_rank, read_as_torch_xla, save_rank

PAIR = [Topology(dp_rank=dp, dp_size=2, rank=dp, world_size=2) for dp in range(2)]


def save_all(root, ranks, **more):
    written = []
    for where in ranks:
        model = nxd_job.Model(3, where)
        optimizer = nxd_job.NeuronZero1Optimizer(model, 3, where)
        wanted = dict(model=model, optimizer=optimizer, scheduler=nxd_job.Scheduler(3), user_content={"step": 3})
        written.append(save_rank(root, "step_3", where, **{**wanted, **more}))
    return written


def test_plain_files_are_written_by_the_ranks_that_nxd_chooses(tmp_path):
    first, second = save_all(tmp_path, PAIR)
    assert first == [
        "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt",
        "model/dp_rank_00_tp_rank_00_pp_rank_00.pt",
        "scheduler.pt",
        "user_content.pt",
        "checkpoint",
        "done",
    ]
    assert second == ["optim/dp_rank_01_tp_rank_00_pp_rank_00.pt"]
    assert (tmp_path / "step_3/done").read_bytes() == (tmp_path / "step_3/checkpoint").read_bytes() == b"1"


def test_optimizer_without_zero1_is_written_by_one_replica(tmp_path):
    where = PAIR[1]
    names = save_rank(tmp_path, "t", where, optimizer=nxd_job.adamw(nxd_job.Model(3, where), 3))
    assert names == []
    names = save_rank(tmp_path, "t", PAIR[0], optimizer=nxd_job.adamw(nxd_job.Model(3, PAIR[0]), 3))
    assert names[0] == "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt"


def test_optimizer_dict_is_zero1_if_the_argument_says_so(tmp_path):
    names = save_rank(tmp_path, "t", PAIR[1], optimizer={"state": {}}, zero1_optimizer=True)
    assert names == ["optim/dp_rank_01_tp_rank_00_pp_rank_00.pt"]
    assert save_rank(tmp_path, "u", PAIR[1], optimizer={"state": {}}) == []


def test_nxd_optimizer_is_zero1_by_its_configuration():
    for enabled in (True, False):
        wrapped = type("NxDOptimizer", (), {"nxd_config": {"optimizer_config": {"zero_one_enabled": enabled}}})()
        assert _states.is_zero1(wrapped, False) is enabled


def test_replicas_share_the_tensors_of_xser_so_that_each_writes_about_as_much(tmp_path):
    first, second = save_all(tmp_path, PAIR, optimizer=None, use_xser=True)
    name = "model/dp_rank_00_tp_rank_00_pp_rank_00.pt"
    assert name in first and f"{name}.info.pt" in first and name not in second
    written = [{n for n in names if ".tensors/" in n} for names in (first, second)]
    count = len(nxd_job.Model(3, PAIR[0]).state_dict())
    assert written[0] | written[1] == {f"{name}.tensors/tensor_{tid}.pt" for tid in range(count)}
    assert not written[0] & written[1] and all(written)


def test_shares_are_the_same_on_all_replicas_and_balanced():
    tensors = [torch.zeros(n) for n in (5, 5, 9, 1, 1, 1, 8, 3, 3)]
    writers = _states.shares(tensors, 3)
    loads = [sum(t.numel() for t, w in zip(tensors, writers) if w == replica) for replica in range(3)]
    assert sum(loads) == 36 and max(loads) - min(loads) <= 3
    assert writers == _states.shares([t.clone() for t in tensors], 3)


@pytest.mark.parametrize("use_xser", [False, True])
def test_plain_torch_and_torch_xla_read_it(tmp_path, use_xser):
    save_all(tmp_path, PAIR, use_xser=use_xser)
    tag = tmp_path / "step_3"
    for where in PAIR:
        model = nxd_job.Model(3, where)
        expected = nxd_job.NeuronZero1Optimizer(model, 3, where).expected(3)
        for name, state in (
            ("model/dp_rank_00_tp_rank_00_pp_rank_00.pt", dict(model.state_dict())),
            (f"optim/dp_rank_{where.dp_rank:02d}_tp_rank_00_pp_rank_00.pt", expected),
        ):
            read = read_as_torch_xla(tag, name) if use_xser else torch.load(tag / name, weights_only=True)
            assert type(read) is dict  # As NxD writes every mapping.
            assert nxd_job.differences(read, state) == []


def test_xser_files_are_those_of_torch_xla(tmp_path):
    """Names, classes and numbers are those of NxD's own files."""
    state = {"a": torch.ones(2, dtype=torch.bfloat16), "n": {"b": torch.zeros(())}, "c": None, "l": [torch.ones(1)]}
    state["again"] = state["a"]
    save_rank(tmp_path, "t", Topology(rank=0, world_size=1), model=state, use_xser=True)
    name = "model/dp_rank_00_tp_rank_00_pp_rank_00.pt"
    pickled = zipfile.ZipFile(tmp_path / "t" / name).read("archive/data.pkl")
    names = [arg for op, arg, _ in pickletools.genops(pickled) if op.name == "GLOBAL"]
    assert names == ["torch_xla.utils.serialization TensorReference"]
    assert pickled[:2] == b"\x80\x02"
    read = read_as_torch_xla(tmp_path / "t", name)
    assert nxd_job.differences(read, {**state, "l": [torch.ones(1)]}) == []
    assert sorted(os.listdir(tmp_path / "t" / f"{name}.tensors")) == ["tensor_0.pt", "tensor_1.pt", "tensor_2.pt"]
    info = torch.load(tmp_path / "t" / f"{name}.info.pt", weights_only=True)
    assert info == {
        0: {"dtype": torch.bfloat16, "shape": torch.Size([2]), "expert_model_parallel": False},
        1: {"dtype": torch.float32, "shape": torch.Size([]), "expert_model_parallel": False},
        2: {"dtype": torch.float32, "shape": torch.Size([1]), "expert_model_parallel": False},
    }


@pytest.mark.parametrize("use_xser", [False, True])
def test_shared_objects_stay_shared_and_temporary_ones_are_not_confused(tmp_path, use_xser):
    class Making(dict):
        """Makes its values when they are read, so that each may get the id of the one before."""

        def items(self):
            for number in range(50):
                yield number, (number, number, number)

    betas = [0.9, 0.999]
    state = {"a": {"betas": betas}, "b": {"betas": betas}, "made": Making()}
    where = Topology(rank=0, world_size=1)
    save_rank(tmp_path, "t", where, optimizer=state, use_xser=use_xser)
    target = {}
    load_rank(tmp_path, "t", where, optimizer=target)
    assert target["a"]["betas"] is target["b"]["betas"]
    assert list(target["made"].values()) == [[n, n, n] for n in range(50)]


def test_expert_ranks_write_files_of_their_own(tmp_path):
    for rank in range(4):
        where = Topology(
            dp_rank=rank, dp_size=4, ep_rank=rank % 2, ep_size=2, edp_rank=rank // 2, edp_size=2, rank=rank, world_size=4
        )
        save_rank(tmp_path, "t", where, model={"e": torch.full((3,), float(rank % 2))}, use_xser=rank > 9)
    names = sorted(os.listdir(tmp_path / "t/model"))
    assert names == [f"dp_rank_00_ep_rank_{ep:02d}_tp_rank_00_pp_rank_00.pt" for ep in range(2)]
    assert torch.load(tmp_path / "t/model" / names[1], weights_only=True)["e"][0] == 1


LAYOUTS = list(itertools.product([dict(tp=2, dp=2), dict(dp=4, ep=2)], [False, True], [False, True], [False, True]))


@pytest.mark.parametrize("shape, use_xser, zero1, on_far", LAYOUTS)
@pytest.mark.parametrize("kind", ["module", "dict", "pipelined"])
def test_every_accepted_tensor_layout_is_restored_without_naming_a_tensor_class(
    tmp_path, recwarn, shape, use_xser, zero1, on_far, kind
):
    world = [replace(nxd_job.topology(rank, **shape), rank=rank, world_size=4) for rank in range(4)]
    for where in world:
        model = nxd_job.Model(3, where)
        optimizer = nxd_job.optimizer_for(model, 3, where, zero1)
        if kind != "module" or on_far:
            model = dict(model.state_dict())
        if on_far:
            model, optimizer = nxd_job.far(model), nxd_job.far(optimizer.state_dict())
        if kind == "pipelined":
            model = Namespace(local_state_dict=lambda model=model: model)
        wanted = dict(model=model, optimizer=optimizer, scheduler=nxd_job.Scheduler(3), user_content={"step": 3})
        save_rank(tmp_path, "t", where, use_xser=use_xser, zero1_optimizer=zero1, **wanted)
    for path in tmp_path.glob("t/**/*.pt"):
        assert b"_rebuild_from_type_v2" not in path.read_bytes(), path
    assert not [warning for warning in recwarn if "which load_checkpoint() refuses" in str(warning.message)]
    for where in world:
        model = nxd_job.Model(0, where)
        optimizer = nxd_job.optimizer_for(model, 0, where, zero1)
        target = dict(model.state_dict()) if kind == "dict" else model
        assert load_rank(tmp_path, "t", where, model=target, optimizer=optimizer) == {"step": 3}
        assert nxd_job.differences(dict(target) if kind == "dict" else dict(model.state_dict()), dict(nxd_job.Model(3, where).state_dict())) == []
        expected = nxd_job.optimizer_for(nxd_job.Model(3, where), 3, where, zero1).state_dict()
        assert nxd_job.differences(optimizer.state_dict()["state"], expected["state"]) == []
        assert nxd_job.differences(optimizer.state_dict().get("base_state"), expected.get("base_state")) == []


EXPERTS = [replace(nxd_job.topology(rank, dp=4, ep=2), rank=rank, world_size=4) for rank in range(4)]
EXPERT_FILE = "model/dp_rank_00_ep_rank_{:02d}_tp_rank_00_pp_rank_00.pt"


def tids(root, ep):
    return sorted(int(name[7:-3]) for name in os.listdir(root / f"t/{EXPERT_FILE.format(ep)}.tensors"))


def test_xser_tensors_that_all_experts_share_are_written_by_the_first_expert_alone(tmp_path):
    """As in what NxD itself wrote: the other experts' folders have only their own tensors."""
    for where in EXPERTS:
        save_rank(tmp_path, "t", where, model=nxd_job.Model(3, where), use_xser=True)
    names = list(nxd_job.Model(3, EXPERTS[0]).state_dict())
    own = [tid for tid, name in enumerate(names) if name.startswith("experts.")]
    assert len(own) == 2 and tids(tmp_path, 0) == list(range(len(names))) and tids(tmp_path, 1) == own
    for where in EXPERTS:
        model = nxd_job.Model(0, where)
        load_rank(tmp_path, "t", where, model=model)
        assert nxd_job.model_differences(model, 3, where) == []


def marked_optimizer(step, where):
    """An optimizer without ZeRO-1, whose parameters are marked as NxD marks them; their moments are not."""
    model = nxd_job.Model(step, where)
    optimizer = nxd_job.optimizer_for(model, step, where, zero1=False)
    for name, parameter in model.experts.named_parameters():
        parameter.expert_model_parallel = True
        moments = {key: nxd_job.values(parameter.shape, parameter.dtype, step, where.ep_rank, name, key) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    return optimizer


def test_xser_tensors_of_the_optimizer_that_all_experts_share_are_written_by_the_first_expert_alone(tmp_path):
    for where in EXPERTS:
        save_rank(tmp_path, "t", where, optimizer=marked_optimizer(3, where), use_xser=True)
    folder = "t/optim/dp_rank_00_ep_rank_{:02d}_tp_rank_00_pp_rank_00.pt.tensors"
    first, second = [set(os.listdir(tmp_path / folder.format(ep))) for ep in range(2)]
    trained = _states.parameters_of(marked_optimizer(3, EXPERTS[0]))
    experts = [parameter for parameter in trained if hasattr(parameter, "expert_model_parallel")]
    assert 0 < len(experts) < len(trained) and second < first
    assert len(second) * len(trained) == len(first) * len(experts)
    info = torch.load(tmp_path / (folder.format(1).removesuffix("tensors") + "info.pt"), weights_only=True)
    assert {f"tensor_{tid}.pt" for tid in info if info[tid]["expert_model_parallel"]} == second
    for where in EXPERTS:
        optimizer = marked_optimizer(0, where)
        load_rank(tmp_path, "t", where, optimizer=optimizer)
        assert nxd_job.differences(optimizer.state_dict()["state"], marked_optimizer(3, where).state_dict()["state"]) == []


def test_xser_tensors_without_any_expert_mark_are_all_written_by_every_expert(tmp_path):
    for where in EXPERTS:
        state = {name: value.detach().clone() for name, value in nxd_job.Model(3, where).state_dict().items()}
        assert not any(hasattr(value, "expert_model_parallel") for value in state.values())
        save_rank(tmp_path, "t", where, model=state, use_xser=True)
    assert tids(tmp_path, 1) == tids(tmp_path, 0)
    model = nxd_job.Model(0, EXPERTS[3])
    load_rank(tmp_path, "t", EXPERTS[3], model=model)
    assert nxd_job.model_differences(model, 3, EXPERTS[3]) == []


def test_shared_tensor_is_found_by_its_name_where_experts_number_their_tensors_differently(tmp_path):
    def state(where):
        own = {f"e{n}": torch.full((3,), float(n)) for n in range(1 if where.ep_rank else 3)}
        for value in own.values():
            value.expert_model_parallel = True
        return {**own, "shared": torch.full((3,), 7.0)}

    for where in EXPERTS:
        save_rank(tmp_path, "t", where, model=state(where), use_xser=True)
    assert tids(tmp_path, 1) == [0]
    for where in EXPERTS:
        into = {name: torch.zeros(3) for name in state(where)}
        for target in (into, {}):
            load_rank(tmp_path, "t", where, model=target)
            assert nxd_job.differences(target, {k: v.clone() for k, v in state(where).items()}) == []


@pytest.mark.parametrize("on_far", [False, True])
def test_expert_marks_are_written_beside_the_tensors_as_nxd_reads_them(tmp_path, on_far):
    where = nxd_job.topology(1, dp=2, ep=2)
    state = nxd_job.Model(3, where).state_dict()
    assert state["experts.up"].expert_model_parallel  # As NxD's module leaves it.
    save_rank(tmp_path, "t", where, model=nxd_job.far(dict(state)) if on_far else dict(state), use_xser=True)
    name = "model/dp_rank_00_ep_rank_01_tp_rank_00_pp_rank_00.pt"
    info = torch.load(tmp_path / f"t/{name}.info.pt", weights_only=True)
    experts = [key.startswith("experts.") for key in state]
    assert [info[tid]["expert_model_parallel"] for tid in sorted(info)] == experts and any(experts)


@pytest.mark.parametrize("use_xser", [False, True])
def test_saving_a_class_that_loading_refuses_warns_and_names_it(tmp_path, use_xser):
    where = Topology(rank=0, world_size=1)
    state = {"schedule": Namespace(lr=1), "sparse": torch.eye(2).to_sparse()}
    name = "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt"
    with pytest.warns(ckptd.UnsafeGlobalsWarning, match=f"{name} holds a?r?g?.*argparse.Namespace, torch.sparse_coo"):
        save_rank(tmp_path, "t", where, optimizer=state, use_xser=use_xser)
    with pytest.raises(ckptd.Refused, match="argparse.Namespace"):
        load_rank(tmp_path, "t", where, optimizer={})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        allowed = Settings(safe_globals=(Namespace,)).allowed_classes()
        save_rank(tmp_path, "u", where, optimizer={"schedule": state["schedule"]}, use_xser=True, classes=allowed.states)
        save_rank(tmp_path, "v", where, optimizer=state, use_xser=True, classes=Settings(weights_only=False).allowed_classes().states)
    target = {}
    load_rank(tmp_path, "u", where, allowed=allowed, optimizer=target)
    assert target["schedule"].lr == 1
    load_rank(tmp_path, "v", where, allowed=Settings(weights_only=False).allowed_classes(), optimizer=target)
    assert torch.equal(target["sparse"].to_dense(), torch.eye(2))


def test_context_parallel_ranks_with_zero1_are_refused_and_without_it_one_writes(tmp_path):
    where = Topology(cp_rank=1, cp_size=2, rank=1, world_size=2)
    with pytest.raises(ValueError, match="all shards but one would be lost"):
        _parts.check(where, _parts.SaveArguments(optimizer={}, zero1_optimizer=True))
    _parts.check(where, _parts.SaveArguments(optimizer={}))
    assert save_rank(tmp_path, "t", where, model={"a": torch.ones(1)}, optimizer={"s": 1}) == []


@pytest.mark.parametrize("use_xser", [False, True])
def test_only_modules_get_strict_as_with_nxd(tmp_path, use_xser):
    class Wrapped:
        """An object of a user, whose load_state_dict() has no other parameter."""

        def load_state_dict(self, state):
            self.state = state

    where, model = Topology(rank=0, world_size=1), Wrapped()
    save_rank(tmp_path, "t", where, model={"a": torch.ones(2)}, use_xser=use_xser)
    for strict in (True, False):
        load_rank(tmp_path, "t", where, model=model, strict=strict)
        assert nxd_job.differences(model.state, {"a": torch.ones(2)}) == []


def test_pipelined_model_saves_its_own_part(tmp_path):
    class Pipelined:
        def local_state_dict(self):
            return {"mine": torch.ones(2)}

    save_rank(tmp_path, "t", Topology(rank=0, world_size=1), model=Pipelined())
    read = torch.load(tmp_path / "t/model/dp_rank_00_tp_rank_00_pp_rank_00.pt", weights_only=True)
    assert list(read) == ["mine"]


@pytest.mark.parametrize("use_xser", [False, True])
@pytest.mark.parametrize("kind", ["module", "dict"])
def test_model_and_optimizer_come_back(tmp_path, use_xser, kind):
    save_all(tmp_path, PAIR, use_xser=use_xser)
    for where in PAIR:
        model = nxd_job.Model(0, where)
        target = dict(model.state_dict()) if kind == "dict" else model
        optimizer, scheduler = nxd_job.NeuronZero1Optimizer(model, 0, where), nxd_job.Scheduler(0)
        loaded = load_rank(tmp_path, "step_3", where, model=target, optimizer=optimizer, scheduler=scheduler)
        assert loaded == {"step": 3}
        assert nxd_job.model_differences(model, 3, where) == []
        assert nxd_job.differences(optimizer.state, optimizer.expected(3)) == []
        assert scheduler.state == {"last_epoch": 3, "base_lrs": (0.01, 0.02)}


@pytest.mark.parametrize("use_xser", [False, True])
def test_torch_optimizer_goes_on_as_before(tmp_path, use_xser):
    where = Topology(rank=0, world_size=1)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.25))
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    save_rank(tmp_path, "t", where, optimizer=optimizer, use_xser=use_xser)
    other = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.5))
    load_rank(tmp_path, "t", where, optimizer=other)
    assert nxd_job.differences(other.state_dict()["state"], optimizer.state_dict()["state"]) == []
    assert other.param_groups[0]["lr"] == 0.25  # A tensor inside a list.


TRAINED = tuple(name for name in nxd_job.SHAPES if name != "layers.1.wide")


def save_without_what_masters_have(root, use_xser):
    for where in PAIR:
        model = nxd_job.Model(3, where)
        optimizer = nxd_job.NeuronZero1Optimizer(model, 3, where, TRAINED)
        more = dict(use_xser=use_xser, avoid_saving_lower_precision_weights=True)
        save_rank(root, "t", where, model=model, optimizer=optimizer, **more)


@pytest.mark.parametrize("dp", [1, 2, 3])
def test_weights_saved_as_master_weights_alone_come_back_with_buffers_and_all(tmp_path, dp):
    save_without_what_masters_have(tmp_path, use_xser=True)
    names = os.listdir(tmp_path / "t/model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors")
    assert len(names) == 3  # Two buffers, and the parameter that is not trained.
    for rank in range(dp):
        where = Topology(dp_rank=rank, dp_size=dp, rank=rank, world_size=dp)
        model = nxd_job.Model(0, where)
        optimizer = nxd_job.NeuronZero1Optimizer(model, 0, where, TRAINED)
        load_rank(tmp_path, "t", where, model=model, optimizer=optimizer)
        expected = nxd_job.Model(3, where)
        with torch.no_grad():
            for name in TRAINED:  # Rounded from float32: only the bits of a NaN may differ.
                parameter = expected.get_parameter(name)
                parameter.copy_(parameter.float())
        assert nxd_job.differences(dict(model.state_dict()), dict(expected.state_dict())) == []
        assert nxd_job.differences(optimizer.state, optimizer.expected(3)) == []


@pytest.mark.parametrize("has_own", [False, True])
def test_weights_saved_as_master_weights_alone_come_back_into_a_pipelined_model(tmp_path, has_own):
    class Pipelined(nxd_job.Model):
        """As NxD's: its methods for names do not have the arguments of torch's."""

        local_state_dict = nxd_job.Model.state_dict

        def named_parameters(self, recurse=True):
            return super().named_parameters(recurse=recurse)

    if has_own:
        Pipelined.local_named_parameters = nxd_job.Model.named_parameters
    save_without_what_masters_have(tmp_path, use_xser=True)
    where = Topology(rank=0, world_size=1)
    model = Pipelined(0, where)
    optimizer = nxd_job.NeuronZero1Optimizer(model, 0, where, TRAINED)
    load_rank(tmp_path, "t", where, model=model, optimizer=optimizer)
    for name in TRAINED:
        expected = nxd_job.Model(3, where).get_parameter(name)
        assert nxd_job.differences(model.get_parameter(name).detach(), expected.detach().float().to(expected.dtype)) == []


def test_missing_master_weights_are_refused(tmp_path):
    save_without_what_masters_have(tmp_path, use_xser=True)
    model = nxd_job.Model(0, PAIR[0])
    with pytest.raises(ckptd.NotFound, match="tensor_0.pt"):
        load_rank(tmp_path, "t", PAIR[0], model=model)
    with pytest.raises(ckptd.Refused, match="the only way to tell them apart"):
        load_rank(tmp_path, "t", PAIR[0], model=dict(model.state_dict()), optimizer={})
    optimizer = nxd_job.NeuronZero1Optimizer(model, 0, PAIR[0], TRAINED[1:])
    with pytest.raises(ckptd.Refused, match="embed.weight.* are missing"):
        load_rank(tmp_path, "t", PAIR[0], model=model, optimizer=optimizer)
    assert nxd_job.model_differences(model, 0, PAIR[0]) == []


def test_buffers_that_nxd_has_not_saved_keep_their_values_and_are_logged(tmp_path, caplog):
    """With avoid_saving_lower_precision_weights NxD saves no tensor of the model at all."""
    where = PAIR[0]
    save_without_what_masters_have(tmp_path, use_xser=True)
    folder = tmp_path / "t/model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors"
    for name in os.listdir(folder):
        os.remove(folder / name)
    model = nxd_job.Model(0, where)
    optimizer = nxd_job.NeuronZero1Optimizer(model, 0, where, TRAINED)
    with pytest.raises(ckptd.Refused, match="layers.1.wide of t are missing.*strict=False"):
        load_rank(tmp_path, "t", where, model=model, optimizer=optimizer)
    assert nxd_job.model_differences(model, 0, where) == []  # Nothing is changed.
    assert nxd_job.differences(optimizer.state, optimizer.expected(0)) == []
    load_rank(tmp_path, "t", where, model=model, optimizer=optimizer, strict=False)
    assert "count, scale" in caplog.text and "layers.1.wide" in caplog.text
    kept = [d.split(":")[0] for d in nxd_job.model_differences(model, 0, where)]
    assert ".layers.0.row" in kept and not {".count", ".scale", ".layers.1.wide"} & set(kept)


def test_load_without_a_needed_part_changes_nothing(tmp_path):
    where = Topology(rank=0, world_size=1)
    save_rank(tmp_path, "t", where, model=nxd_job.Model(3, where))
    model = nxd_job.Model(0, where)
    for more in ({"scheduler": nxd_job.Scheduler(0)}, {"optimizer": {}}):
        with pytest.raises(ckptd.NotFound):
            load_rank(tmp_path, "t", where, model=model, **more)
    assert nxd_job.model_differences(model, 0, where) == []


def test_plain_files_are_whole_despite_avoid_saving_lower_precision_weights(tmp_path):
    save_without_what_masters_have(tmp_path, use_xser=False)
    model = nxd_job.Model(0, PAIR[1])
    load_rank(tmp_path, "t", PAIR[1], model=model)
    assert nxd_job.model_differences(model, 3, PAIR[1]) == []


def test_model_that_differs_is_refused_as_by_torch_and_loaded_when_not_strict(tmp_path):
    where = Topology(rank=0, world_size=1)
    save_rank(tmp_path, "t", where, model=torch.nn.Linear(2, 2), use_xser=True)
    other = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        load_rank(tmp_path, "t", where, model=other)
    load_rank(tmp_path, "t", where, model=other, strict=False)


def test_snapshot_of_lists_and_objects_is_taken_at_once(tmp_path):
    content = {"seen": [1, 2], "args": Namespace(lr=1)}
    files = dict(_parts.files(Topology(rank=0, world_size=1), _parts.SaveArguments(user_content=content), DeferredTensors()))
    content["seen"].append(3)
    assert torch.load(io.BytesIO(files["user_content.pt"]), weights_only=False)["seen"] == [1, 2]


class Own:
    def __init__(self, lr):
        self.lr = lr


def test_user_content_of_any_class_is_saved_without_a_warning_and_loaded_if_it_is_allowed(tmp_path, recwarn):
    where = Topology(rank=0, world_size=1)
    save_rank(tmp_path, "t", where, user_content={"args": Own(1), "plain": Namespace(lr=2), "numpy": numpy.arange(3)})
    assert not [w for w in recwarn if "the saved state holds" in str(w.message)]
    for settings in (Settings(), Settings(weights_only=True)):
        with pytest.raises(ckptd.Refused, match="Own.*configure.safe_globals"):
            load_rank(tmp_path, "t", where, allowed=settings.allowed_classes())
    for settings in (Settings(safe_globals=(Own,)), Settings(weights_only=False)):
        loaded = load_rank(tmp_path, "t", where, allowed=settings.allowed_classes())
        assert (loaded["args"].lr, loaded["plain"].lr, loaded["numpy"].tolist()) == (1, 2, [0, 1, 2])
