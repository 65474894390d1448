"""Saves whose states a GPU copies beside the training. A stand-in takes the GPU's place."""

import os

import pytest

from harness import until
from harness.stand_in_devices import IN_PROCESS


@pytest.fixture
def root(root):
    return f"{root}/job"  # A save to a directory that a number ends waits for its commit.


@pytest.fixture
def on_device(pair):
    """Two ranks with a device."""
    pair.do("import threading\n" + IN_PROCESS)
    yield pair
    pair.do("stand_in.gate.set(); copies.finish_all(); devices_module.replace(cuda)\ndevice_copy._SMALL_BYTES = 64 << 10")


def begin_save(ranks, root, stage, dtype):
    """Saves through the devices of all ranks, which copy when stand_in.gate is set."""
    ranks.do(f"made = states.engine({stage}, {dtype!r}, checkpoint_engine=CheckpointEngine(stage='overlap')); states.train(made)")
    ranks.do("wanted = states.state(made); [stand_in.tensor(each) for each in states.trained_tensors(made)]")
    ranks.do(f"stand_in.gate.clear(); made.save_checkpoint({root!r})")
    assert any(ranks.do("len(copies.in_flight())"))  # At stage 0 the first rank saves all tensors.


@pytest.mark.parametrize("stage, dtype", [(0, "bf16"), (1, "bf16"), (2, "fp16"), (3, "bf16")])
def test_states_of_the_save_stay_although_training_goes_on(on_device, root, stage, dtype):
    begin_save(on_device, root, stage, dtype)
    assert not os.path.exists(f"{root}/global_step1")
    on_device.do("stand_in.open_gate_when_held(); states.train(made)")
    assert any(on_device.do("stand_in.holds"))
    on_device.do("stand_in.gate.set()")
    on_device.do("made.checkpoint_engine.cleanup()")
    on_device.do(f"other = states.engine({stage}, {dtype!r}, seed=5, checkpoint_engine=CheckpointEngine())")
    on_device.do(f"other.load_checkpoint({root!r})")
    assert on_device.do("states.differences(wanted, states.state(other))") == [[], []]
    assert on_device.do("states.differences(wanted, states.state(made)) != []") == [True, True]


def test_state_that_changes_before_its_copy_is_an_error_and_no_checkpoint(on_device, root):
    begin_save(on_device, root, 1, "fp32")
    on_device.processes[1].do("with torch.no_grad(): made.optimizer.single_partition_of_fp32_groups[0].add_(1)")
    on_device.do("stand_in.gate.set()")
    failures = f"[str(error) for error in ckptd.deepspeed.run({root!r}).failures()]"
    until(lambda: all(on_device.do(f"len({failures})")), "the failure")
    assert "was changed" in on_device.do(failures)[1][-1]
    assert not os.path.exists(f"{root}/global_step1")


def test_stage_is_one_of_two(pair):
    for error in pair.fail("CheckpointEngine(stage='later')"):
        assert error.kind == "ValueError" and '"later"; it must be "blocking" or "overlap"' in error.message
