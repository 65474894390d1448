"""Names of files and checkpoints, and the coordinates of ranks."""

import sys
import types

import ckptd.nxd
import pytest
from ckptd.nxd import Topology, _names, _topology


def test_names_have_two_digits_at_least_and_expert_ranks_with_expert_parallelism():
    where = Topology(tp_rank=1, tp_size=8, pp_rank=3, pp_size=4, dp_rank=5, dp_size=8)
    assert _names.model(where) == "model/dp_rank_00_tp_rank_01_pp_rank_03.pt"
    assert _names.optimizer(where) == "optim/dp_rank_00_tp_rank_01_pp_rank_03.pt"
    assert _names.zero1(where) == "optim/dp_rank_05_tp_rank_01_pp_rank_03.pt"
    assert _names.zero1(Topology(tp_rank=100, tp_size=128, dp_rank=7, dp_size=8)) == "optim/dp_rank_07_tp_rank_100_pp_rank_00.pt"
    expert = Topology(dp_rank=5, dp_size=8, ep_rank=1, ep_size=2, edp_rank=2, edp_size=4)
    assert _names.model(expert) == "model/dp_rank_00_ep_rank_01_tp_rank_00_pp_rank_00.pt"
    assert _names.optimizer(expert) == "optim/dp_rank_00_ep_rank_01_tp_rank_00_pp_rank_00.pt"
    assert _names.zero1(expert) == "optim/dp_rank_05_tp_rank_00_pp_rank_00.pt"
    assert _names.of_first_expert(_names.model(expert)) == "model/dp_rank_00_ep_rank_00_tp_rank_00_pp_rank_00.pt"


@pytest.mark.parametrize("tag", ["step_1", "1", "a.b=c+d,e@f-g", "x" * 200])
def test_valid_tags_are_accepted(tag):
    _names.check_tag(tag)


@pytest.mark.parametrize("tag", ["", "epoch/1", ".hidden", "-x", "latest", "a b", "x" * 201, "a\n", "ä", 7, None])
def test_invalid_tags_are_refused_with_the_rule(tag):
    with pytest.raises(ValueError, match="A-Z a-z|it must be a string"):
        _names.check_tag(tag)


def test_replicas_are_counted_over_data_and_context_or_over_the_experts_group():
    assert Topology(dp_rank=2, dp_size=4, cp_rank=1, cp_size=2).replica == (5, 8)
    assert Topology(dp_rank=5, dp_size=8, ep_rank=1, ep_size=2, edp_rank=2, edp_size=4).replica == (2, 4)


@pytest.mark.parametrize(
    "wrong, what",
    [
        ({"tp_rank": 2, "tp_size": 2}, "tp_rank is 2"),
        ({"dp_rank": -1}, "dp_rank is -1"),
        ({"ep_rank": 0, "ep_size": 2, "dp_size": 4}, "edp_rank is None"),
        ({"ep_size": 2, "dp_size": 4, "edp_rank": 0, "edp_size": 4}, "edp_size is 4"),
        ({"ep_size": 2, "cp_size": 2, "dp_size": 2, "edp_rank": 0, "edp_size": 1}, "one of them must be 1"),
        ({"rank": 3}, "give both or neither"),
    ],
)
def test_coordinates_that_do_not_fit_together_are_refused(wrong, what):
    with pytest.raises(ValueError, match=what):
        Topology(**wrong)


def test_topology_must_have_as_many_ranks_as_the_job():
    with pytest.raises(ValueError, match="= 4 ranks, but the job has 8"):
        _topology.complete(Topology(tp_size=2, dp_size=2, rank=0, world_size=8))


def test_without_nxd_all_ranks_are_data_parallel(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    where = _topology.complete(None)
    assert (where.dp_rank, where.dp_size, where.tp_size, where.rank, where.world_size) == (3, 4, 1, 3, 4)


def test_process_with_unknown_rank_does_not_connect_to_a_daemon(monkeypatch, tmp_path):
    """Otherwise each process of a job would join as rank 0 of 1 before its process group is initialised."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(ckptd.nxd.process, "job", lambda root: pytest.fail("a daemon was asked"))
    (tmp_path / ".ckptd").mkdir()
    assert ckptd.nxd.has_checkpoint(tmp_path) is False
    (tmp_path / "t").mkdir()
    (tmp_path / "t/done").write_text("1")
    assert ckptd.nxd.has_checkpoint(tmp_path) is True


def nxd(**functions):
    """Installs a fake of neuronx_distributed's parallel_state."""
    module = types.ModuleType("neuronx_distributed.parallel_layers.parallel_state")
    for name, value in functions.items():
        setattr(module, name, lambda value=value: value)
    return {module.__name__: module}


# tp=4 on trn1: rank 5 of 8 is in the tp group [1, 3, 5, 7], where it is number 2, and in the dp group [4, 5].
STRIDED = dict(
    model_parallel_is_initialized=True,
    get_tensor_model_parallel_rank=2,
    get_tensor_model_parallel_size=4,
    get_pipeline_model_parallel_rank=0,
    get_pipeline_model_parallel_size=1,
    get_data_parallel_rank=1,
    get_data_parallel_size=2,
)


def test_coordinates_are_taken_from_nxd_and_not_computed(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(sys, "modules", {**sys.modules, **nxd(**STRIDED)})
    where = _topology.complete(None)
    assert (where.tp_rank, where.dp_rank, where.rank, where.cp_size, where.ep_size) == (2, 1, 5, 1, 1)


def test_nxd_that_is_not_initialised_gives_no_topology(monkeypatch):
    monkeypatch.setattr(sys, "modules", {**sys.modules, **nxd(model_parallel_is_initialized=False)})
    assert _topology.complete(None).dp_size == 1


def test_other_names_are_those_of_nxd(monkeypatch):
    package = types.ModuleType("neuronx_distributed")
    package.neuronx_distributed_config = lambda: "its own"
    monkeypatch.setitem(sys.modules, "neuronx_distributed", package)
    assert ckptd.nxd.neuronx_distributed_config() == "its own"
    with pytest.raises(AttributeError, match="no_such_thing"):
        ckptd.nxd.no_such_thing  # noqa: B018


def test_other_names_without_nxd_are_unknown():
    with pytest.raises(AttributeError, match="initialize_parallel_model"):
        ckptd.nxd.initialize_parallel_model  # noqa: B018
