"""ZeRO-1 state loaded by another number of data-parallel ranks, compared with NxD's rule as nxd_job
implements it.
"""

import ckptd
import nxd_job
import pytest
import torch
from ckptd.nxd import Topology, _reshard, _sources
from nxd_trees import load_rank, save_rank, torch_save, xser_as_torch_xla


def rank_of(dp, size, tp=0):
    return Topology(tp_rank=tp, tp_size=2, dp_rank=dp, dp_size=size)


def save(root, size, use_xser):
    for tp in range(2):
        for dp in range(size):
            where = rank_of(dp, size, tp)
            optimizer = nxd_job.NeuronZero1Optimizer(nxd_job.Model(2, where), 2, where)
            save_rank(root, "t", where, optimizer=optimizer, use_xser=use_xser)


@pytest.mark.parametrize("use_xser", [False, True])
@pytest.mark.parametrize("before", range(1, 9))
def test_every_number_of_ranks_loads_what_every_other_saved(tmp_path, before, use_xser):
    save(tmp_path, before, use_xser)
    for after in range(1, 9):
        for dp in range(after):
            where = rank_of(dp, after, tp=dp % 2)
            optimizer = nxd_job.NeuronZero1Optimizer(nxd_job.Model(0, where), 0, where)
            load_rank(tmp_path, "t", where, optimizer=optimizer)
            assert nxd_job.differences(optimizer.state, optimizer.expected(2)) == [], (before, after, dp)


def test_only_the_pieces_that_are_needed_are_read(tmp_path):
    save(tmp_path, 8, use_xser=True)
    read = []

    class Watched(_sources.Foreign):
        def file(self, name):
            read.append(name)
            return super().file(name)

    _reshard.load(Watched(str(tmp_path), "t"), rank_of(0, 4), _sources.Classes())
    pieces = {name.split("_tp_")[0] for name in read if ".tensors/" in name}
    # A small parameter lies in the first pieces for any dp; the last third of the ranks has nothing of this
    # one.
    assert "optim/dp_rank_00" in pieces and not pieces & {f"optim/dp_rank_0{dp}" for dp in (3, 4, 5, 6, 7)}


def state(shape_info, tensor, **more):
    return {"base_state": {0: {"step": torch.tensor(1.0), "exp_avg": tensor}}, "shape_info": shape_info, **more}


def refused(root, what, size=3):
    with pytest.raises(ckptd.Refused, match=what) as caught:
        load_rank(root, "t", Topology(dp_size=size), optimizer=nxd_job.NeuronZero1Optimizer(nxd_job.Model(0, Topology()), 0, Topology()))
    assert caught.value.reason == "STATE_MISMATCH"


def write_two(root, first, second):
    for dp, value in enumerate((first, second)):
        torch_save(root, f"t/optim/dp_rank_{dp:02d}_tp_rank_00_pp_rank_00.pt", value)


def test_state_that_cannot_be_cut_is_refused_with_what_is_wrong(tmp_path):
    write_two(tmp_path / "a", {"state": {}}, {"state": {}})
    refused(tmp_path / "a", "no shape_info and base_state")
    whole = state({0: [4, 2]}, torch.ones(4, 2))
    write_two(tmp_path / "b", whole, whole)
    refused(tmp_path / "b", r"has the shape \[4, 2\], but a piece of \[4, 2\] has \[2, 2\]")
    write_two(tmp_path / "c", state({}, torch.ones(2)), state({}, torch.ones(2)))
    refused(tmp_path / "c", "shape_info does not have it")
    write_two(tmp_path / "d", state({0: [4]}, torch.ones(2)), state({0: [4]}, torch.ones(3)))
    refused(tmp_path / "d", "rank 1 differs in shape or dtype from that of rank 0", size=1)
    experts = Topology(dp_size=4, ep_size=2, edp_rank=0, edp_size=2)
    with pytest.raises(ckptd.Refused, match="ckptctl convert nxd-zero"):
        load_rank(tmp_path / "d", "t", experts, optimizer=nxd_job.NeuronZero1Optimizer(nxd_job.Model(0, experts), 0, experts))


def test_parameter_without_state_is_left_without(tmp_path):
    """shape_info also lists frozen parameters."""
    pieces = [state({0: [4], 1: [3, 3]}, torch.ones(2) * dp) for dp in range(2)]
    write_two(tmp_path, *pieces)
    got = _reshard.load(_sources.Foreign(str(tmp_path), "t"), Topology(dp_size=1), _sources.Classes())
    assert list(got["base_state"]) == [0]
    assert got["base_state"][0]["exp_avg"].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_missing_tensor_of_a_piece_is_named(tmp_path):
    for dp in range(2):
        name = f"optim/dp_rank_{dp:02d}_tp_rank_00_pp_rank_00.pt"
        xser_as_torch_xla(tmp_path / "t", name, state({0: [4]}, torch.ones(2)))
    (tmp_path / "t/optim/dp_rank_01_tp_rank_00_pp_rank_00.pt.tensors/tensor_1.pt").unlink()
    with pytest.raises(ckptd.NotFound, match="dp_rank_01.*tensor_1"):
        _reshard.load(_sources.Foreign(str(tmp_path), "t"), Topology(), _sources.Classes())
