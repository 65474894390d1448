"""What ckptd or DeepSpeed saves, ckptd and DeepSpeed load, bit for bit."""

import os

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

from harness import until


def round_trip(ranks, root, make, train="states.train"):
    ranks.do(f"make = lambda **options: {make}\nwanted = states.save_on_both_sides({root!r}, make, {train})", 120)
    found = ranks.do(f"states.load_on_both_sides({root!r}, wanted, make)", 120)
    assert found == [[]] * len(found)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_side_loads_what_every_side_saved(pair, root, stage, dtype):
    round_trip(pair, root, f"states.engine({stage}, {dtype!r}, **options)")
    names = [sorted(os.listdir(f"{root}/{side}/global_step2")) for side in ("ours", "stock")]
    assert [name for name in names[0] if name != ".ckptd"] == names[1]
    assert {name for name in os.listdir(f"{root}/ours")} == {*os.listdir(f"{root}/stock"), ".ckptd"}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_groups_and_frozen_and_tied_weights_come_back(pair, root, stage):
    round_trip(pair, root, f"states.engine({stage}, groups=2, frozen=True, tied=True, **options)")


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("stage", [0, 2])
def test_experts_of_each_rank_come_back(pair, root, stage):
    round_trip(pair, root, f"states.mixture_engine({stage}, **options)")
    names = os.listdir(f"{root}/ours/global_step2")
    assert len([name for name in names if name.startswith("layer_1_expert_")]) == 4


@pytest.mark.parametrize("more", ["", ", checkpoint={'parallel_write': {'pipeline_stage': True}}"], ids=["one", "all"])
def test_stages_of_a_pipeline_come_back_without_the_buffers_that_they_are_views_of(pair, root, more):
    round_trip(pair, root, f"states.pipeline_engine(1{more}, **options)", "states.train_pipeline")
    # 13 x 14 numbers of 4 bytes in each, of a buffer of two or three layers.
    names = [name for name in os.listdir(f"{root}/ours/global_step2") if name.startswith("layer_")]
    assert len(names) == 5
    assert all(os.path.getsize(f"{root}/ours/global_step2/{name}") < 13 * 14 * 4 + 2048 for name in names)


@ON_ONE_AND_TWO_NODES
def test_install_serves_engines_to_come_until_uninstall(pair, root):
    pair.do("ckptd.deepspeed.install(wait='committed')\nmade = states.engine(1); states.train(made)")
    pair.do(f"made.save_checkpoint({root!r}, 'a')")
    assert os.path.exists(f"{root}/a/.ckptd/manifest")
    pair.do(f"other = states.engine(1, seed=5); loaded = other.load_checkpoint({root!r})")
    assert pair.do("states.differences(states.state(made), states.state(other))") == [[], []]
    pair.do("ckptd.deepspeed.uninstall(); stock = states.engine(1); states.train(stock)")
    pair.do(f"stock.save_checkpoint({root!r}, 'b')")
    assert not os.path.exists(f"{root}/b/.ckptd")


@ON_ONE_AND_TWO_NODES
def test_latest_is_written_after_the_commit_and_only_if_asked(pair, root):
    def latest():
        with open(f"{root}/latest") as file:
            return file.read()

    pair.do("made = states.engine(2, checkpoint_engine=CheckpointEngine(wait='committed')); states.train(made)")
    pair.do(f"made.save_checkpoint({root!r}, 'a')")
    assert latest() == "a"
    pair.do(f"made.save_checkpoint({root!r}, 'b', save_latest=False)")
    assert latest() == "a" and os.path.exists(f"{root}/b/.ckptd/manifest")
    assert pair.do(f"made.load_checkpoint({root!r})[0]")[0].startswith(f"{root}/a/")
    assert pair.do(f"made.load_checkpoint({root!r}, tag='b')[0]")[0].startswith(f"{root}/b/")


def test_load_finds_nothing_in_an_empty_directory(pair, root):
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine())")
    assert pair.do(f"made.load_checkpoint({root!r})") == [[None, None]] * 2


def test_arguments_of_load_keep_their_meaning(pair, root):
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine()); states.train(made, 3)")
    pair.do(f"made.save_checkpoint({root!r})")
    for arguments in (
        "load_module_only=True",
        "load_optimizer_states=False",
        "load_lr_scheduler_states=False",
        "load_module_strict=False",
        "custom_load_fn=lambda src, dst: dst.load_state_dict({**src, 'count': src['count'] * 0})",
    ):
        loads = "ours, stock = [states.engine(1, seed=4, checkpoint_engine=e) for e in (CheckpointEngine(), None)]\n"
        loads += f"found = [each.load_checkpoint({root!r}, {arguments}) for each in (ours, stock)]\n"
        same = "states.differences(*[states.state(each) for each in (ours, stock)])"
        assert pair.do(loads + same) == [[], []], arguments
        assert pair.do("found[0][0] == found[1][0], sorted(found[0][1]) == sorted(found[1][1])") == [[True, True]] * 2


@ON_ONE_AND_TWO_NODES
def test_load_waits_for_the_save_in_flight(pair, root):
    pair.do("made = states.engine(3, checkpoint_engine=CheckpointEngine()); states.train(made)")
    pair.do(
        f"made.save_checkpoint({root!r})\n"
        "other = states.engine(3, seed=4, checkpoint_engine=CheckpointEngine())\n"
        f"path, _ = other.load_checkpoint({root!r})"
    )
    assert pair.do("states.differences(states.state(made), states.state(other))") == [[], []]


def test_weights_of_16_bits_are_a_file_that_is_there_at_once(pair, root):
    gather = {"stage3_gather_16bit_weights_on_model_save": True}
    pair.do(f"made = states.engine(3, 'bf16', checkpoint_engine=CheckpointEngine(), zero_optimization={gather})")
    assert pair.do(f"made.save_16bit_model({root + '/export'!r})") == [True, True]
    assert os.listdir(f"{root}/export") == ["pytorch_model.bin"]
    loaded = "torch.load({!r})['inner.weight'].float().abs().sum() > 0".format(root + "/export/pytorch_model.bin")
    assert pair.do(f"bool({loaded})") == [True, True]
    # The next checkpoint is not disturbed.
    pair.do(f"made.save_checkpoint({root!r}, 'a')")
    until(lambda: os.path.exists(f"{root}/a/.ckptd/manifest"), "the commit")


def test_four_ranks_save_and_load_at_every_stage(new_ranks, root):
    ranks = new_ranks(4)
    for stage in range(4):
        round_trip(ranks, f"{root}/{stage}", f"states.engine({stage}, 'bf16', **options)")
    names = os.listdir(f"{root}/3/ours/global_step2")
    assert len([name for name in names if name.endswith("_optim_states.pt")]) == 4
