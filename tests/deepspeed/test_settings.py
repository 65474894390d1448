"""What the engine's arguments and DeepSpeed's configuration choose."""

import os

import pytest

from harness import until


def kept(root):
    return sorted(name for name in os.listdir(root) if name.startswith("global_step"))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("checkpoint.writer", {"checkpoint": {"writer": {"type": "python"}}}),
        ("checkpoint.use_node_local_storage", {"checkpoint": {"use_node_local_storage": True}}),
        ("checkpoint.checkpoint_serialization", {"checkpoint": {"checkpoint_serialization": False}}),
        ("datastates_ckpt", {"datastates_ckpt": {"host_cache_size": 1}}),
        ("checkpoint.num_kept_ckpts", {"checkpoint": {"num_kept_ckpts": 0}}),
    ],
)
def test_setting_that_cannot_be_served_is_refused_by_its_key(pair, key, settings):
    errors = pair.fail(f"ckptd.deepspeed.install(); states.engine(1, **{settings!r})")
    assert all(error.kind == "ValueError" and f" {key} = " in error.message for error in errors), errors


@pytest.mark.parametrize("what", ["offload_optimizer", "offload_param"])
def test_offload_to_nvme_is_refused_before_anything_is_saved(pair, root, what):
    # Making such an engine needs an extension of DeepSpeed that is compiled.
    pair.do("made = states.engine(3, checkpoint_engine=CheckpointEngine())")
    pair.do(f"made._config._param_dict['zero_optimization'][{what!r}] = {{'device': 'nvme'}}")
    errors = pair.fail(f"made.save_checkpoint({root!r})")
    assert all(f"zero_optimization.{what}.device" in error.message for error in errors)
    assert os.listdir(root) == []


def test_offload_to_the_cpu_is_served(pair, root):
    offload = {"offload_optimizer": {"device": "cpu"}}
    pair.do(
        "make = lambda **o: states.engine(2, zero_force_ds_cpu_optimizer=False, checkpoint_engine=CheckpointEngine(),"
        f" zero_optimization={offload}, **o)\nmade = make(); states.train(made)\nmade.save_checkpoint({root!r})"
    )
    pair.do(f"other = make(seed=4); other.load_checkpoint({root!r})")
    assert pair.do("states.differences(states.state(made), states.state(other))") == [[], []]


@pytest.mark.parametrize(
    ("argument", "settings", "left"),
    [
        ("num_kept_ckpts=2", {}, 2),
        ("", {"checkpoint": {"num_kept_ckpts": 2}}, 2),
        ("num_kept_ckpts=1", {"checkpoint": {"num_kept_ckpts": 2}}, 1),
        ("retention=ckptd.Keep(last=1, every=2)", {}, 2),
    ],
)
def test_only_the_newest_checkpoints_are_kept_if_asked(pair, root, argument, settings, left):
    pair.do(f"made = states.engine(1, **{settings!r}, checkpoint_engine=CheckpointEngine({argument}))")
    for _ in range(3):
        pair.do(f"states.train(made); made.save_checkpoint({root!r})")
    until(lambda: kept(root) == [f"global_step{step}" for step in (2, 3)][-left:], "retention")


def test_wrong_arguments_are_refused_with_what_to_do(pair):
    for arguments, word in [
        ("wait='durable'", "sealed"),
        ("timeout=0", "more than 0"),
        ("num_kept_ckpts=0", "at least 1"),
        ("num_kept_ckpts=1, retention=ckptd.Keep(last=1)", "both"),
    ]:
        assert all(word in error.message for error in pair.fail(f"CheckpointEngine({arguments})")), arguments
        assert all(word in error.message for error in pair.fail(f"ckptd.deepspeed.install({arguments})")), arguments
    errors = pair.fail("states.engine(1, checkpoint_engine=CheckpointEngine()).save_checkpoint('gs://bucket/a')")
    assert all("gs://bucket/a" in error.message for error in errors)
    assert not os.path.exists("gs:")  # What DeepSpeed would have made.
