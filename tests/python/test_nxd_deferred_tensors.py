"""Deferred tensors, on a simulated device that cannot copy into a given buffer and counts the bytes that it
sends.
"""

import array
import ctypes
import io
import sys
import types

import nxd_job
import pytest
import torch
from ckptd._memory.image import Memory
from ckptd._saving.file_values import Torch
from ckptd._torch.writing import archive_writer, deferred_tensors
from ckptd._torch.writing.deferred_tensors import DeferredTensors
from ckptd.nxd import Topology, _parts
from nxd_trees import Far, load_rank, write


@pytest.fixture(autouse=True)
def counted():
    Far.copies.clear()


WHERE = Topology(rank=0, world_size=1)


def far_state(count=5, rows=7):
    return {f"t{i}": Far(nxd_job.values((rows, 3), torch.bfloat16, i)) for i in range(count)}


@pytest.mark.parametrize("use_xser", [False, True])
def test_deferred_tensors_are_restored_and_fetched_once_each(tmp_path, use_xser):
    state = far_state()
    state["near"], state["none"] = torch.ones(3), Far(torch.empty(0))
    deferred = DeferredTensors()
    for name, value in _parts.files(WHERE, _parts.SaveArguments(model=state, use_xser=use_xser), deferred):
        write(tmp_path / "t", name, value)
    assert Far.copies == [7 * 3 * 2] * 5 + ([0] if use_xser and 0 in Far.copies else [])
    target = {}
    load_rank(tmp_path, "t", WHERE, model=target)
    expected = {key: value.near if isinstance(value, Far) else value for key, value in state.items()}
    assert nxd_job.differences(target, expected) == []


def test_tensors_that_another_replica_writes_are_not_fetched():
    state = far_state(count=8)
    for rank in range(2):
        where = Topology(dp_rank=rank, dp_size=2, rank=rank, world_size=2)
        deferred = DeferredTensors()
        wanted = _parts.SaveArguments(model=state, use_xser=True)
        images = [value for name, value in _parts.files(where, wanted, deferred) if ".tensors/" in name]
        assert len(images) == 4
        for value in images:
            b"".join(archive_writer.image(value.obj, "compact", deferred).stream())
    assert len(Far.copies) == 8


def test_host_holds_one_batch_at_a_time(monkeypatch):
    state = far_state(count=10, rows=1000)
    size = 1000 * 3 * 2
    monkeypatch.setattr(deferred_tensors, "BATCH_BYTES", 3 * size)
    batches = []
    fetch = deferred_tensors._to_host
    monkeypatch.setattr(deferred_tensors, "_to_host", lambda tensors: batches.append(len(tensors)) or fetch(tensors))
    deferred = DeferredTensors()
    (_, value), *_ = _parts.files(WHERE, _parts.SaveArguments(model=state), deferred)
    image = archive_writer.image(value.obj, "compact", deferred)
    assert batches == []  # The layout fetches nothing.
    buffer = (ctypes.c_char * image.size)()
    image.write(Memory([(ctypes.addressof(buffer), image.size)], buffer), 0, 1)
    assert batches == [3, 3, 3, 1] and len(deferred._batch) == 1
    deferred.release()
    assert not deferred._batch


def test_tensor_larger_than_a_batch_is_fetched_alone(monkeypatch):
    monkeypatch.setattr(deferred_tensors, "BATCH_BYTES", 10)
    deferred = DeferredTensors()
    (_, value), *_ = _parts.files(WHERE, _parts.SaveArguments(model=far_state(3)), deferred)
    b"".join(archive_writer.image(value.obj, "compact", deferred).stream())
    assert Far.copies == [42, 42, 42]


def test_device_that_changes_the_dtype_is_an_error():
    liar = Far(torch.ones(4))
    liar.near = torch.ones(4, dtype=torch.float64)
    deferred = DeferredTensors()
    (_, value), *_ = _parts.files(WHERE, _parts.SaveArguments(model={"a": liar}), deferred)
    with pytest.raises(RuntimeError, match="float32.*but its copy on the host is torch.float64"):
        b"".join(archive_writer.image(value.obj, "compact", deferred).stream())


def test_bytes_are_right_when_torch_save_writes(monkeypatch):
    monkeypatch.setattr(archive_writer, "_own_writer_works", False)
    state, deferred = far_state(3), DeferredTensors()
    (_, value), *_ = _parts.files(WHERE, _parts.SaveArguments(model=state), deferred)
    data = b"".join(archive_writer.image(value.obj, "compact", deferred).stream())
    read = torch.load(io.BytesIO(data), weights_only=True)
    assert nxd_job.differences(read, {key: far.near for key, far in state.items()}) == []


def test_batch_is_fetched_by_xlas_own_transfer_if_it_exists(monkeypatch):
    calls = array.array("i")

    def at_once(tensors):
        calls.append(len(tensors))
        return [tensor.near for tensor in tensors]

    xla = types.SimpleNamespace(_XLAC=types.SimpleNamespace(_xla_get_cpu_tensors=at_once))
    monkeypatch.setitem(sys.modules, "torch_xla", xla)
    deferred = DeferredTensors()
    (_, value), *_ = _parts.files(WHERE, _parts.SaveArguments(model=far_state(4)), deferred)
    b"".join(archive_writer.image(value.obj, "compact", deferred).stream())
    assert list(calls) == [4] and Far.copies == []


class Xla:
    """Stands in for torch_xla's extension module; `calls` are its calls in their order."""

    def __init__(self, monkeypatch):
        self.calls = []
        monkeypatch.setitem(sys.modules, "torch_xla", types.SimpleNamespace(_XLAC=self))

    def _xla_sync_multi(self, tensors, devices, wait, sync_xla_data):
        assert devices == [] and wait and sync_xla_data
        self.calls.append(("sync", len(tensors)))

    def _xla_get_cpu_tensors(self, tensors):
        self.calls.append(("get", len(tensors)))
        return [tensor.near for tensor in tensors]


@pytest.mark.parametrize("use_xser", [False, True])
@pytest.mark.parametrize("dp_rank", [0, 1])
def test_all_tensors_are_computed_in_one_step_on_every_rank_before_the_first_batch(monkeypatch, use_xser, dp_rank):
    """Not in one for each batch, which XLA would compile; and not on those ranks alone that write."""
    xla = Xla(monkeypatch)
    monkeypatch.setattr(deferred_tensors, "BATCH_BYTES", 100)  # Two tensors.
    wanted = _parts.SaveArguments(model=far_state(6), optimizer=far_state(4), use_xser=use_xser)
    deferred, where = DeferredTensors(), Topology(dp_rank=dp_rank, dp_size=2, rank=dp_rank, world_size=2)
    for _, value in _parts.files(where, wanted, deferred):
        if isinstance(value, Torch):
            b"".join(archive_writer.image(value.obj, "compact", deferred).stream())
    assert xla.calls[0] == ("sync", 10)
    fetched = [count for call, count in xla.calls[1:] if call == "get"]
    assert len(fetched) == len(xla.calls) - 1
    assert sum(fetched) == (5 if use_xser else 10 * (1 - dp_rank))


def test_host_tensors_need_no_step_of_the_device(monkeypatch):
    xla = Xla(monkeypatch)
    list(_parts.files(WHERE, _parts.SaveArguments(model={"a": torch.ones(2)}), DeferredTensors()))
    assert xla.calls == []
