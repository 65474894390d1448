"""Loading on a device: xser's tensors go there one at a time, as NxD does, and everything else stays on the host."""

import gc
import sys
import types
import weakref

import nxd_job
import pytest
import torch
from ckptd.nxd import Topology, _device, _sources
from nxd_trees import Far, load_rank, save_rank

ALONE = Topology(rank=0, world_size=1)
PAIR = [Topology(dp_rank=dp, dp_size=2, rank=dp, world_size=2) for dp in range(2)]


@pytest.fixture
def on_host(monkeypatch):
    """Replaces the device by the simulated one. Returns how many tensors the host held at each transfer."""
    loaded, counts = [], []
    load = _sources.Source.load

    def count(source, name, classes):
        value = load(source, name, classes)
        if isinstance(value, torch.Tensor) and value.dim():  # Step numbers stay on the host.
            loaded.append(weakref.ref(value))
        return value

    def transfer(tensor, device):
        assert device == "the device"
        gc.collect()
        counts.append(sum(one() is not None for one in loaded))
        return Far(tensor.clone())

    monkeypatch.setattr(_sources.Source, "load", count)
    monkeypatch.setattr(_device, "_to_device", transfer)
    return counts


@pytest.fixture
def xla(monkeypatch):
    """The process uses torch_xla."""
    monkeypatch.setitem(
        sys.modules, "torch_xla.core.xla_model", types.SimpleNamespace(xla_device=lambda: "the device")
    )


def near(state):
    """Returns the state with the values of what is on the device, all of which must be there but the steps."""
    if isinstance(state, dict):
        for key, value in state.items():
            assert not isinstance(value, torch.Tensor) or (key == "step") is (value.device.type == "cpu"), key
        return {key: near(value) for key, value in state.items()}
    return state.near if isinstance(state, Far) else state


def test_dicts_get_device_tensors_of_xser_and_the_host_holds_one_at_a_time(tmp_path, xla, on_host):
    model = nxd_job.Model(3, ALONE)
    save_rank(tmp_path, "t", ALONE, model=model, optimizer=nxd_job.adamw(model, 3), use_xser=True)
    target, optimizer = {}, {}
    load_rank(tmp_path, "t", ALONE, model=target, optimizer=optimizer)
    assert nxd_job.differences(near(target), dict(model.state_dict())) == []
    assert nxd_job.differences(near(optimizer["state"]), nxd_job.adamw(model, 3).state_dict()["state"]) == []
    assert len(on_host) > 15 and max(on_host) == 1


def test_dicts_get_host_tensors_of_plain_files_as_with_nxd(tmp_path, xla, on_host):
    save_rank(tmp_path, "t", ALONE, model={"a": torch.ones(2)})
    target = {}
    load_rank(tmp_path, "t", ALONE, model=target)
    assert target["a"].device.type == "cpu" and on_host == []


def test_dicts_get_host_tensors_where_no_device_is_in_use(tmp_path, on_host):
    save_rank(tmp_path, "t", ALONE, model={"a": torch.ones(2)}, use_xser=True)
    target = {}
    load_rank(tmp_path, "t", ALONE, model=target)
    assert target["a"].device.type == "cpu" and on_host == []


class Overridden(torch.nn.Module):
    """A module that loads its state in its own way, such as NxD's wrappers. Its parameters are on `device`."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def parameters(self, recurse=True):
        yield types.SimpleNamespace(device=self.device)

    def load_state_dict(self, state, strict=True):
        self.loaded = dict(state)


class Device(str):
    type = "xla"


def test_module_with_its_own_loader_is_loaded_onto_its_device_tensor_by_tensor(tmp_path, on_host):
    state = dict(nxd_job.Model(3, ALONE).state_dict())
    save_rank(tmp_path, "t", ALONE, model=state, use_xser=True)
    model = Overridden(Device("the device"))
    load_rank(tmp_path, "t", ALONE, model=model)
    assert nxd_job.differences(near(model.loaded), state) == []
    assert len(on_host) == len(state) and max(on_host) == 1


def test_module_on_the_host_with_its_own_loader_gets_host_tensors(tmp_path, xla, on_host):
    save_rank(tmp_path, "t", ALONE, model={"a": torch.ones(2)}, use_xser=True)
    model = Overridden(torch.device("cpu"))
    load_rank(tmp_path, "t", ALONE, model=model)
    assert model.loaded["a"].device.type == "cpu" and on_host == []


@pytest.mark.parametrize("use_xser", [False, True])
def test_state_for_another_number_of_ranks_goes_to_the_device_as_from_the_same_number(tmp_path, xla, on_host, use_xser):
    for where in PAIR:
        optimizer = nxd_job.NeuronZero1Optimizer(nxd_job.Model(3, where), 3, where)
        save_rank(tmp_path, "t", where, optimizer=optimizer, use_xser=use_xser)
    three = Topology(dp_rank=1, dp_size=3, rank=1, world_size=3)
    target = {}
    load_rank(tmp_path, "t", three, optimizer=target)
    expected = nxd_job.NeuronZero1Optimizer(nxd_job.Model(3, three), 3, three).expected(3)
    for part in ("base_state", "sharded_master_weights"):
        assert nxd_job.differences(near(target[part]) if use_xser else target[part], expected[part]) == []
    assert bool(on_host) is use_xser
