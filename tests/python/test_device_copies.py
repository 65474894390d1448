"""Saves of tensors on devices: the copies go on beside the training, and what changes too early is no checkpoint."""

from __future__ import annotations

import ctypes
import io
import pathlib
import subprocess
import sys
import textwrap
import threading
import warnings
from array import array
from typing import Any, Iterator, List

import ckptd
import pytest
import torch
from checkpoint_files import flip, saved, write_checkpoint
from ckptd._memory import copies, native
from ckptd._memory.native import Pieces
from ckptd._torch.gpu import devices as devices_module
from ckptd._torch.gpu import device_copy, device_fill, pinning
from harness import until
from harness.stand_in_devices import RuntimeCopy, StandInDevices, await_pinning

NUMBERS = 300_000  # float32: a tensor lies in two segments of the daemon.


@pytest.fixture()
def devices() -> Iterator[StandInDevices]:
    stand_in = StandInDevices()
    before = devices_module.replace(stand_in)
    yield stand_in
    stand_in.gate.set()
    stand_in.pin_gate.set()
    copies.finish_all()
    await_pinning()
    devices_module.replace(before)


def state_on(devices: StandInDevices, value: float = 1.0) -> Any:
    weight = devices.tensor(torch.full((NUMBERS,), value))
    bias = devices.tensor(torch.arange(1000, dtype=torch.bfloat16))
    return {"weight": weight, "bias": bias, "on_cpu": torch.arange(100), "step": 7}


def loaded(daemon: Any, tag: str) -> Any:
    return torch.load(io.BytesIO(daemon.committed[tag]["model.pt"]), weights_only=True)


# ---- stage="blocking"


def test_blocking_save_returns_with_the_bytes(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    state = state_on(devices)
    save = run.save("t", files={"model.pt": state})
    state["weight"].fill_(2.0)
    save.wait(timeout=20)
    back = loaded(daemon, "t")
    assert torch.equal(back["weight"], torch.ones(NUMBERS)) and back["step"] == 7
    assert torch.equal(back["bias"], state["bias"]) and torch.equal(back["on_cpu"], torch.arange(100))
    assert not copies.in_flight()


def test_device_copies_are_in_the_order_of_the_file(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    layers = {f"layer.{i}": devices.tensor(torch.full((1000,), float(i))) for i in range(20)}
    run.save("t", files={"model.pt": layers}).wait(timeout=20)
    sources = [source for _, source, _ in devices.copies]
    assert sources == [tensor.data_ptr() for tensor in layers.values()]


def test_growing_part_of_device_tensors(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    with run.begin("t") as part:
        part.add("model.pt", state_on(devices))
        part.add("other.pt", {"x": devices.tensor(torch.arange(5.0))})
    part.wait(timeout=20)
    assert torch.equal(loaded(daemon, "t")["weight"], torch.ones(NUMBERS))


# ---- stage="overlap"


def test_overlapping_save_returns_before_the_copy(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    devices.gate.clear()
    save = run.save("t", files={"model.pt": state_on(devices)}, stage="overlap")
    assert save.level == "open" and "Seal" not in daemon.calls and copies.in_flight()
    devices.gate.set()
    save.wait(timeout=20)
    assert torch.equal(loaded(daemon, "t")["weight"], torch.ones(NUMBERS))
    assert not copies.in_flight()


def test_optimizer_step_waits_for_the_copy(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    weight = devices.tensor(torch.ones(NUMBERS)).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.ones(NUMBERS)
    devices.gate.clear()
    save = run.save("t", files={"model.pt": {"weight": weight.detach()}}, stage="overlap")
    threading.Timer(0.1, devices.gate.set).start()
    optimizer.step()
    assert devices.holds == 1 and torch.equal(weight.detach(), torch.zeros(NUMBERS))
    save.wait(timeout=20)
    assert torch.equal(loaded(daemon, "t")["weight"], torch.ones(NUMBERS))


def test_staged_lets_the_state_change(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    state = state_on(devices)
    devices.gate.clear()
    save = run.save("t", files={"model.pt": state}, stage="overlap")
    threading.Timer(0.1, devices.gate.set).start()
    save.staged()
    state["weight"].zero_()
    save.wait(timeout=20)
    assert torch.equal(loaded(daemon, "t")["weight"], torch.ones(NUMBERS))


@pytest.mark.parametrize("change", ["in_place", "parameter", "view"])
def test_early_change_is_an_error_and_no_checkpoint(
    daemon: Any, run: ckptd.Run, devices: StandInDevices, change: str
) -> None:
    state = state_on(devices)
    if change == "parameter":
        state["weight"] = torch.nn.Parameter(state["weight"])
    devices.gate.clear()
    save = run.save("t", files={"model.pt": state}, stage="overlap")
    with torch.no_grad():
        (state["weight"][:5] if change == "view" else state["weight"]).add_(1.0)
    devices.gate.set()
    with pytest.raises(ckptd.CheckpointFailed, match=r"float32\[300000\] on cpu.*save.staged"):
        save.wait(timeout=20)
    assert "t" not in daemon.committed and "Seal" not in daemon.calls
    until(lambda: "Abort" in daemon.calls, "the abort")
    assert "was changed" in str(run.failures()[-1])


@pytest.mark.parametrize("layer", [torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d], ids=["BatchNorm", "InstanceNorm"])
def test_forward_pass_may_change_small_tensors(
    daemon: Any, run: ckptd.Run, devices: StandInDevices, layer: Any
) -> None:
    """Such as statistics: torch does not count the changes of those of InstanceNorm."""
    model = torch.nn.Sequential(torch.nn.Linear(200, 200), layer(200, track_running_stats=True))
    for tensor in model.state_dict().values():
        devices.tensor(tensor)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    devices.gate.clear()
    save = run.save("t", files={"model.pt": model.state_dict()}, stage="overlap")
    model(torch.randn(7, 200) if layer is torch.nn.BatchNorm1d else torch.randn(200, 200)[None])
    assert not torch.equal(model[1].running_mean, expected["1.running_mean"])
    devices.gate.set()
    save.wait(timeout=20)
    back = loaded(daemon, "t")
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in expected.items())


def test_next_save_waits_until_the_last_one_is_staged(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    devices.gate.clear()
    first = run.save("t0", files={"model.pt": state_on(devices)}, stage="overlap")
    with pytest.raises(ckptd.Unavailable, match="save before t1"):
        run.save("t1", files={"a": b"x"}, timeout=0.1)
    threading.Timer(0.1, devices.gate.set).start()
    run.save("t2", files={"model.pt": state_on(devices, 2.0)}, stage="overlap").wait(timeout=20)
    assert first.wait(timeout=20).level == "committed"
    assert daemon.calls.index("Seal") < len(daemon.calls) - 1 - daemon.calls[::-1].index("Begin")
    assert torch.equal(loaded(daemon, "t2")["weight"], torch.full((NUMBERS,), 2.0))


def test_close_seals_what_is_being_staged(daemon: Any, tmp_path: Any, devices: StandInDevices) -> None:
    devices.gate.clear()
    with ckptd.connect(daemon.endpoint) as client:
        client.run(tmp_path / "root").save("t", files={"model.pt": state_on(devices)}, stage="overlap")
        threading.Timer(0.1, devices.gate.set).start()
    assert "t" in daemon.committed


def test_failed_device_fails_the_save(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    devices.fails = True
    with pytest.raises(RuntimeError, match="device has failed"):
        run.save("t0", files={"model.pt": state_on(devices)})
    save = run.save("t1", files={"model.pt": state_on(devices)}, stage="overlap")
    with pytest.raises(ckptd.CheckpointFailed, match="device has failed"):
        save.wait(timeout=20)
    assert not daemon.committed and not copies.in_flight()
    devices.fails = False
    run.save("t2", files={"model.pt": state_on(devices)}).wait(timeout=20)


def test_copies_that_could_not_all_be_queued_end_before_the_save(
    daemon: Any, run: ckptd.Run, devices: StandInDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is left in the queue would overwrite the bytes of a later save."""
    copy = devices.copy

    def fail(*args: Any) -> None:
        copy(*args)
        raise RuntimeError("the queue is broken")

    monkeypatch.setattr(devices, "copy", fail)
    devices.gate.clear()
    threading.Timer(0.2, devices.gate.set).start()
    with pytest.raises(RuntimeError, match="queue is broken"):
        run.save("t", files={"model.pt": state_on(devices)})
    assert devices.gate.is_set() and devices.is_idle() and not copies.in_flight()


def test_overlapping_save_of_cpu_tensors_is_sealed_at_once(
    daemon: Any, run: ckptd.Run, devices: StandInDevices
) -> None:
    assert run.save("t", files={"model.pt": {"x": torch.ones(3)}}, stage="overlap").level != "open"


def test_unknown_stage_is_refused(run: ckptd.Run) -> None:
    with pytest.raises(ValueError, match='"later"; it must be "blocking" or "overlap"'):
        run.save("t", files={}, stage="later")  # type: ignore[arg-type]


def test_daemon_that_restarts_while_devices_copy(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    """The bytes are those of the call, although the state has changed before the next daemon gets them."""
    state = state_on(devices)
    devices.gate.clear()
    save = run.save("t", files={"model.pt": state}, stage="overlap")
    daemon.stop()
    devices.gate.set()
    save.staged()
    state["weight"].zero_()
    daemon.start()
    save.wait(timeout=20)
    assert torch.equal(loaded(daemon, "t")["weight"], torch.ones(NUMBERS))


# ---- pinning


def test_memory_is_pinned_once_and_not_by_the_trainer(
    daemon: Any, run: ckptd.Run, devices: StandInDevices
) -> None:
    for i in range(3):
        run.save(f"t{i}", files={"model.pt": state_on(devices)}).wait(timeout=20)
    assert len(devices.pinned) == len({address for address, _ in devices.pinned}) > 1
    assert devices.pinning_threads == {"ckptd-pinning"}


def test_overlapping_save_does_not_wait_for_pinning(daemon: Any, run: ckptd.Run, devices: StandInDevices) -> None:
    devices.pin_gate.clear()
    save = run.save("t", files={"model.pt": state_on(devices)}, stage="overlap")
    assert not devices.copies
    devices.pin_gate.set()
    save.wait(timeout=20)
    assert torch.equal(loaded(daemon, "t")["weight"], torch.ones(NUMBERS))


def test_no_copy_reaches_from_one_chunk_into_the_next(
    daemon: Any, run: ckptd.Run, devices: StandInDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "CHUNK_BYTES", 64 << 10)
    run.save("t", files={"model.pt": state_on(devices)}).wait(timeout=20)
    assert torch.equal(loaded(daemon, "t")["weight"], torch.ones(NUMBERS))
    chunks = sorted(devices.pinned)
    assert max(size for _, size in chunks) == 64 << 10
    for target, _, size in devices.copies:
        inside = [begin for begin, length in chunks if begin <= target and target + size <= begin + length]
        assert len(inside) == 1


def test_memory_that_cannot_be_pinned_is_used_all_the_same(
    daemon: Any, run: ckptd.Run, devices: StandInDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "_warned", False)
    devices.refuses_pin_after = 1 << 20
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.save("t", files={"model.pt": state_on(devices)}).wait(timeout=20)
        await_pinning()
    assert torch.equal(loaded(daemon, "t")["weight"], torch.ones(NUMBERS))
    assert ["cannot be pinned (error 2)" in str(one.message) for one in caught] == [True]


def test_pinned_bytes_have_a_limit(
    daemon: Any, run: ckptd.Run, devices: StandInDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTD_PINNED_BYTES", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.save("t", files={"model.pt": state_on(devices)}).wait(timeout=20)
        await_pinning()
    assert not devices.pinned and torch.equal(loaded(daemon, "t")["weight"], torch.ones(NUMBERS))


def test_memory_is_unpinned_before_it_is_unmapped(daemon: Any, tmp_path: Any, devices: StandInDevices) -> None:
    with ckptd.connect(daemon.endpoint) as client:
        client.run(tmp_path / "root").save("t", files={"model.pt": state_on(devices)}).wait(timeout=20)
        assert devices.pinned
    del client
    until(lambda: not devices.pinned, "the end of the pinning")


def test_thread_that_pins_ends_before_the_interpreter() -> None:
    program = """
        import atexit, sys, threading, time
        atexit.register(lambda: print([one.name for one in threading.enumerate() if one.name == "ckptd-pinning"]))
        from ckptd._torch.gpu import pinning
        pinning._post(lambda: time.sleep(0.3))
        for _ in range(100):
            pinning._post(lambda: time.sleep(0.3))
        print([one.name for one in threading.enumerate() if one.name == "ckptd-pinning"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["['ckptd-pinning']", "[]"]


def test_many_copies_are_queued_by_a_thread(
    daemon: Any, run: ckptd.Run, devices: StandInDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue would block the call."""
    monkeypatch.setattr(device_copy, "_BATCH", 10)
    few, many = ({str(i): devices.tensor(torch.full((10,), float(i))) for i in range(count)} for count in (20, 60))
    run.save("warm", files={"model.pt": many}).wait(timeout=20)
    by: List[str] = []
    copy = devices.copy
    monkeypatch.setattr(devices, "copy", lambda *args: [by.append(threading.current_thread().name), copy(*args)])
    run.save("few", files={"model.pt": few}, stage="overlap").wait(timeout=20)
    run.save("many", files={"model.pt": many}, stage="overlap").wait(timeout=20)
    assert by == [threading.current_thread().name] * 2 + ["ckptd-staging"] * 6
    assert all(float(value[0]) == int(name) for name, value in loaded(daemon, "many").items())


def test_no_more_copies_are_queued_than_a_device_has_room_for(
    daemon: Any, run: ckptd.Run, devices: StandInDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue would hold up the training."""
    monkeypatch.setattr(device_copy, "_BATCH", 10)
    many = {str(i): devices.tensor(torch.full((10,), float(i))) for i in range(100)}
    run.save("warm", files={"model.pt": many}).wait(timeout=20)
    devices.copies.clear()
    queued: List[int] = []  # When a batch was waited for.
    await_event = devices.await_event
    monkeypatch.setattr(devices, "await_event", lambda event: [queued.append(len(devices.copies)), await_event(event)])
    run.save("many", files={"model.pt": many}, stage="overlap").wait(timeout=20)
    assert queued == [40, 50, 60, 70, 80, 90, 100]
    assert all(float(value[0]) == int(name) for name, value in loaded(daemon, "many").items())


# ---- restores


def test_load_into_tensors_on_devices(
    devices: StandInDevices, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_fill, "BUFFER_BYTES", 100_000)  # A tensor takes several buffers.
    was, into = state_on(devices, 1.0), state_on(devices, 2.0)
    into["bias"].zero_()
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved(was)})
    versions = into["weight"]._version
    with ckptd.open_root(tmp_path).open() as checkpoint:
        checkpoint.load("m.pt", into=into)
    assert torch.equal(into["weight"], was["weight"]) and torch.equal(into["bias"], was["bias"])
    assert into["weight"]._version > versions
    assert sum(size for target, _, size in devices.copies if target >= into["weight"].data_ptr()) >= 4 * NUMBERS


def test_damaged_file_is_not_loaded_to_devices(devices: StandInDevices, tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, "a", 1, {"m.pt": saved(state_on(devices))})
    flip(tmp_path / "a" / "m.pt", 600_000)
    with ckptd.open_root(tmp_path).open() as checkpoint, pytest.raises(ckptd.Corrupt):
        checkpoint.load("m.pt", into=state_on(devices))


# ---- the native library


def test_copies_are_cut_at_segments_and_windows() -> None:
    memory = bytearray(100)
    address = ctypes.addressof((ctypes.c_char * 100).from_buffer(memory))
    found = []
    function = RuntimeCopy(lambda target, source, size, kind, stream: found.append((target, source, size, kind, stream)) or 0)
    pointer = ctypes.cast(function, ctypes.c_void_p).value
    segments = array("Q", [address + 60, address]), array("Q", [40, 100])
    pieces = Pieces(array("Q", [0, 20]), array("Q", [1000, 2000]), array("Q", [20, 70]))
    assert native.copy_async(pointer, 7, segments, 10, pieces, 5, 85) == 0
    assert found == [
        (address + 75, 1005, 15, 4, 7),
        (address + 90, 2000, 10, 4, 7),
        (address, 2010, 55, 4, 7),
    ]
    found.clear()
    assert native.copy_async(pointer, 7, segments, 10, pieces, 0, 10, out=True) == 0
    assert found == [(1000, address + 70, 10, 4, 7)]
    with pytest.raises(RuntimeError, match="does not fit"):
        native.copy_async(pointer, 7, segments, 11, pieces, 0, 90)
    failing = RuntimeCopy(lambda *_: 700)
    assert native.copy_async(ctypes.cast(failing, ctypes.c_void_p).value, 7, segments, 0, pieces, 0, 90) == 700
