"""Tensors of devices that have no copy into a given buffer: by a stand-in for such a device that counts what comes over."""

import array
import ctypes
import io
import sys
import types

import nxd_job
import pytest
import torch
from ckptd import _late, _torch_writer
from ckptd._image import Memory
from ckptd._late import Late
from ckptd.nxd import Topology, _parts
from nxd_trees import Far, load_rank, write


@pytest.fixture(autouse=True)
def counted():
    Far.copies.clear()


WHERE = Topology(rank=0, world_size=1)


def far_state(count=5, rows=7):
    return {f"t{i}": Far(nxd_job.values((rows, 3), torch.bfloat16, i)) for i in range(count)}


@pytest.mark.parametrize("use_xser", [False, True])
def test_they_come_back_and_came_over_once_each(tmp_path, use_xser):
    state = far_state()
    state["near"], state["none"] = torch.ones(3), Far(torch.empty(0))
    late = Late()
    for name, value in _parts.files(WHERE, _parts.Wanted(model=state, use_xser=use_xser), late):
        write(tmp_path / "t", name, value)
    assert Far.copies == [7 * 3 * 2] * 5 + ([0] if use_xser and 0 in Far.copies else [])
    target = {}
    load_rank(tmp_path, "t", WHERE, model=target)
    expected = {key: value.near if isinstance(value, Far) else value for key, value in state.items()}
    assert nxd_job.differences(target, expected) == []


def test_what_another_replica_writes_does_not_come_over():
    state = far_state(count=8)
    for rank in range(2):
        where = Topology(dp_rank=rank, dp_size=2, rank=rank, world_size=2)
        late = Late()
        wanted = _parts.Wanted(model=state, use_xser=True)
        images = [value for name, value in _parts.files(where, wanted, late) if ".tensors/" in name]
        assert len(images) == 4
        for value in images:
            b"".join(_torch_writer.image(value.obj, "compact", late).stream())
    assert len(Far.copies) == 8


def test_one_batch_at_a_time_is_on_the_host(monkeypatch):
    state = far_state(count=10, rows=1000)
    size = 1000 * 3 * 2
    monkeypatch.setattr(_late, "BATCH_BYTES", 3 * size)
    batches = []
    fetch = _late._to_host
    monkeypatch.setattr(_late, "_to_host", lambda tensors: batches.append(len(tensors)) or fetch(tensors))
    late = Late()
    (_, value), *_ = _parts.files(WHERE, _parts.Wanted(model=state), late)
    image = _torch_writer.image(value.obj, "compact", late)
    assert batches == []  # Laying it out brings nothing over.
    buffer = (ctypes.c_char * image.size)()
    image.write(Memory([(ctypes.addressof(buffer), image.size)], buffer), 0, 1)
    assert batches == [3, 3, 3, 1] and len(late._batch) == 1
    late.release()
    assert not late._batch


def test_larger_than_a_batch_comes_alone(monkeypatch):
    monkeypatch.setattr(_late, "BATCH_BYTES", 10)
    late = Late()
    (_, value), *_ = _parts.files(WHERE, _parts.Wanted(model=far_state(3)), late)
    b"".join(_torch_writer.image(value.obj, "compact", late).stream())
    assert Far.copies == [42, 42, 42]


def test_a_device_that_changes_the_type_is_found_out():
    liar = Far(torch.ones(4))
    liar.near = torch.ones(4, dtype=torch.float64)
    late = Late()
    (_, value), *_ = _parts.files(WHERE, _parts.Wanted(model={"a": liar}), late)
    with pytest.raises(RuntimeError, match="float32.*came to the host as torch.float64"):
        b"".join(_torch_writer.image(value.obj, "compact", late).stream())


def test_without_our_own_writer_the_bytes_are_right_too(monkeypatch):
    monkeypatch.setattr(_torch_writer, "_own_writer_works", False)
    state, late = far_state(3), Late()
    (_, value), *_ = _parts.files(WHERE, _parts.Wanted(model=state), late)
    data = b"".join(_torch_writer.image(value.obj, "compact", late).stream())
    read = torch.load(io.BytesIO(data), weights_only=True)
    assert nxd_job.differences(read, {key: far.near for key, far in state.items()}) == []


def test_one_batch_by_xlas_own_transfer_where_it_is_there(monkeypatch):
    calls = array.array("i")

    def at_once(tensors):
        calls.append(len(tensors))
        return [tensor.near for tensor in tensors]

    xla = types.SimpleNamespace(_XLAC=types.SimpleNamespace(_xla_get_cpu_tensors=at_once))
    monkeypatch.setitem(sys.modules, "torch_xla", xla)
    late = Late()
    (_, value), *_ = _parts.files(WHERE, _parts.Wanted(model=far_state(4)), late)
    b"".join(_torch_writer.image(value.obj, "compact", late).stream())
    assert list(calls) == [4] and Far.copies == []
