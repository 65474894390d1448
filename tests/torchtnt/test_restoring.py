"""What is restored, and from which checkpoint. TorchTNT 0.2.4 of PyPI."""

import glob
import os
import shutil

import ckptd
import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

from harness import until

LATEST = "CheckpointSaver.restore_from_latest"


@pytest.fixture(scope="module")
def trained_root(processes, session_folder):
    """A directory with checkpoints of steps 2, 4, 5 and 6; an epoch has 5."""
    root = os.path.join(session_folder, "trained")
    processes[0].do("states.leave()")
    processes[0].do(f"trained({root!r}, max_steps=6, unit=Unit([0.5, 0.4, 0.3, 0.2, 0.6, 0.7]), "
                    "save_every_n_train_steps=2, save_every_n_epochs=1, best_checkpoint_config=best())")
    return root


@pytest.fixture
def copied(trained_root, root):
    shutil.copytree(trained_root, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".ckptd"))
    return root


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_resumed_job_ends_with_the_values_of_one_that_ran_through(launch, root, world_size):
    ranks = launch(world_size)
    ranks.do(f"whole = trained({root + '/whole'!r}, async_checkpoint=True)")
    ranks.fail(f"trained({root + '/part'!r}, save_every_n_train_steps=2, async_checkpoint=True, callbacks=[fail_at(7)])")
    assert "epoch_1_train_step_6" in os.listdir(root + "/part")
    ranks.do(f"resumed_one = resumed({root + '/part'!r}, async_checkpoint=True)")
    assert ranks.do("values(resumed_one) == values(whole)") == [True] * world_size
    # The data, too, went on in the middle of the epoch.
    assert ranks.do("resumed_one.seen == whole.seen[6:]") == [True] * world_size


@ON_ONE_AND_TWO_NODES
def test_sharded_unit_is_restored_onto_another_number_of_ranks(launch, root):
    ranks = launch(4)
    ranks.do(f"a = trained({root!r}, unit=FsdpUnit(hidden=8), save_every_n_train_steps=3)")
    ranks = launch(2)
    ranks.do(f"b = FsdpUnit(hidden=8); assert {LATEST}({root!r}, b)")
    ranks.do("full = {k: v.full_tensor().tolist() for k, v in b.module.state_dict().items()}")
    alone = ranks.processes[0]
    both = ranks.do("full")[0], alone.do("b.train_progress.num_steps_completed")
    alone.do("states.leave()")
    alone.do(f"c = Unit(hidden=8); assert {LATEST}({root!r}, c)")
    assert alone.do("{k: v.tolist() for k, v in c.module.state_dict().items()}") == both[0]
    assert alone.do("c.train_progress.num_steps_completed") == both[1] == 10


def test_unit_with_fsdp_of_torchtnt_is_restored_with_its_optimizer(launch, root):
    ranks = launch(2)
    ranks.do(f"a = trained({root!r}, unit=ShardedUnit(hidden=8), save_every_n_train_steps=3, async_checkpoint=True)")
    ranks.do(f"b = ShardedUnit(hidden=8); assert {LATEST}({root!r}, b)")
    assert ranks.do("a.shards() == b.shards() and len(b.shards()[1]) > 0") == [True, True]


def test_empty_or_missing_directory_has_no_latest_and_no_best(alone, root):
    for folder in (root, root + "/none"):
        assert alone.do(f"{LATEST}({folder!r}, Unit())") is False
        assert alone.do(f"CheckpointSaver.restore_from_best({folder!r}, Unit(), 'loss', 'min')") is False


def test_best_is_chosen_by_metric_and_mode_and_the_newer_of_equal_ones(alone, trained_root):
    for metric, mode, step in [("train_loss", "min", 4), ("train_loss", "max", 6), ("other", "min", None)]:
        found = alone.do(f"u = Unit(); CheckpointSaver.restore_from_best({trained_root!r}, u, {metric!r}, {mode!r})")
        assert found is (step is not None)
        assert alone.do("u.train_progress.num_steps_completed") == (step or 0)
    assert "mode" in alone.fails(f"CheckpointSaver.restore_from_best({trained_root!r}, Unit(), 'train_loss', 'up')").message


def test_order_of_names_is_that_of_torchtnt(alone):
    names = (
        ["epoch_1_step_7", "epoch_1_step_12", "epoch_0_step_90"]
        + ["epoch_1_train_step_7", "epoch_1_train_step_12_loss=0.5", "epoch_1_train_step_4_eval_step_3"]
        + ["epoch_1_train_step_8_eval_step_3_loss=-1.0", "epoch_1_eval_step_9", "epoch_2_train_step_1"]
    )
    alone.do("from ckptd.torchtnt._names import *; from torchtnt.utils.checkpoint import CheckpointPath as Theirs")
    assert alone.do(f"[str(parse(n)) for n in {names}]") == names
    assert alone.do(f"[Theirs.from_str('/d/' + n).path[3:] for n in {names}]") == names
    pairs = f"[(a, b) for a in {names} for b in {names}]"
    theirs = alone.do(f"[Theirs.from_str('/d/' + a).newer_than(Theirs.from_str('/d/' + b)) for a, b in {pairs}]")
    assert alone.do(f"[is_newer(parse(a), parse(b)) for a, b in {pairs}]") == theirs
    # What 0.2.4 does not know: predict steps come before eval steps, and metrics with exponents.
    assert alone.do("is_newer(parse('epoch_1_predict_step_2'), parse('epoch_1_train_step_9'))") is True
    assert alone.do("parse('epoch_0_train_step_1_a_b=1e-05').metric.value") == 1e-05
    for other in ("epoch_1", "last", "epoch_1_step_2_loss=", "epoch_1_train_step_2_loss=0.5x", "xepoch_1_step_2", "epoch_1_loss=2"):
        assert alone.do(f"parse({other!r})") is None


def test_newest_is_chosen_by_the_progress_in_names_and_not_by_time(alone, copied):
    os.utime(copied + "/epoch_0_train_step_2_train_loss=0.4")
    os.mkdir(copied + "/best-so-far")
    alone.do(f"u = Unit(); assert {LATEST}({copied!r}, u)")
    assert alone.do("u.train_progress.num_steps_completed") == 6
    # A name of older releases, without phases; 7 steps are more than 6.
    os.rename(copied + "/epoch_0_train_step_2_train_loss=0.4", copied + "/epoch_2_step_7")
    alone.do(f"u = Unit(); assert {LATEST}({copied!r}, u)")
    assert alone.do("u.train_progress.num_steps_completed") == 2


@pytest.mark.parametrize("stock", [False, True])
def test_interrupted_save_is_not_restored_from(alone, root, stock):
    alone.do(f"trained({root!r}, epochs=1, stock={stock}, save_every_n_train_steps=2)")
    newest = root + "/epoch_9_train_step_90"
    shutil.copytree(f"{root}/epoch_1_train_step_5", newest, ignore=shutil.ignore_patterns(".ckptd", ".metadata"))
    alone.do(f"u = Unit(); assert {LATEST}({root!r}, u)")
    assert alone.do("u.train_progress.num_steps_completed") == 5


def damage(daemon, path):
    """Damages all files of a checkpoint, where the daemon has them no longer in memory."""
    daemon.kill()
    daemon.restart()
    for name in os.listdir(path):
        if name.endswith(".distcp"):
            with open(f"{path}/{name}", "r+b") as file:
                file.seek(-600, os.SEEK_END)
                file.write(b"damaged" * 50)


def test_all_ranks_pass_over_a_damaged_checkpoint(launch, root, daemon):
    ranks = launch(2)
    ranks.do(
        f"trained({root!r}, epochs=1, unit=Unit([0.3, 0.2, 0.1, 0.4, 0.05]), save_every_n_train_steps=2, "
        "best_checkpoint_config=best())"
    )
    newest = f"{root}/epoch_1_train_step_5_train_loss=0.05"
    damage(daemon, newest)
    ranks.do(f"u = Unit(); assert {LATEST}({root!r}, u)")
    assert ranks.do("u.train_progress.num_steps_completed") == [4, 4]
    ranks.do(f"u = Unit(); assert CheckpointSaver.restore_from_best({root!r}, u, 'train_loss', 'min')")
    assert ranks.do("u.train_progress.num_steps_completed") == [2, 2]
    errors = ranks.fail(f"CheckpointSaver.restore({newest!r}, Unit())")
    assert all("train_loss=0.05 is corrupt" in error.message for error in errors)


def test_only_damaged_checkpoints_are_an_error_and_no_start_from_nothing(alone, root, daemon):
    alone.do(f"trained({root!r}, epochs=1)")
    damage(daemon, f"{root}/epoch_1_train_step_5")
    assert "Corrupt" in alone.fails(f"{LATEST}({root!r}, Unit())").message
    until(lambda: ckptd.open_root(root).list()[0].damage, "the daemon's record of the damage")
    assert alone.fails(f"{LATEST}({root!r}, Unit())").reason == "CHECKPOINT_DAMAGED"


def test_options_choose_what_is_restored(alone, trained_root):
    alone.do(f"a = Unit(); {LATEST}({trained_root!r}, a); a, fresh = values(a), values(Unit())")
    parts = {
        "restore_modules": ["module"],
        "restore_optimizers": ["optimizer", "lr"],
        "restore_lr_schedulers": ["scheduler"],
        "restore_train_progress": ["progress"],
    }
    for option, names in parts.items():
        # Without its optimizer and scheduler a unit keeps its own rate.
        alone.do(f"u = Unit(); {LATEST}({trained_root!r}, u, restore_options=RestoreOptions({option}=False)); u = values(u)")
        unchanged = alone.do("[name for name in a if u[name] == fresh[name] and a[name] != fresh[name]]")
        assert unchanged == [name for name in alone.do("list(a)") if name in names], option
        assert alone.do("[name for name in a if u[name] == a[name]]") == [
            name for name in alone.do("list(a)") if name not in names
        ], option


def test_options_of_torchtnt_itself_are_served(alone, trained_root):
    alone.do("from torchtnt.framework.callbacks.checkpointer_types import RestoreOptions as Theirs")
    alone.do(f"u = Unit(); {LATEST}({trained_root!r}, u, restore_options=Theirs(restore_optimizers=False))")
    assert alone.do("values(u)['optimizer'], u.train_progress.num_steps_completed") == [[], 6]


def test_unit_with_more_than_the_checkpoint_is_restored_only_if_not_strict(alone, trained_root):
    alone.do("def more():\n    u = Unit(); u.more = torch.nn.Linear(1, 1); return u")
    assert "more.weight" in alone.fails(f"{LATEST}({trained_root!r}, more())").message
    alone.do(f"u = more(); before = u.more.weight.tolist(); {LATEST}({trained_root!r}, u, restore_options=RestoreOptions(strict=False))")
    assert alone.do("u.more.weight.tolist() == before and u.train_progress.num_steps_completed == 6") is True


def test_states_of_an_optimizer_are_initialized_without_a_change_of_parameters_or_gradients(alone, trained_root):
    alone.do("u = Unit(); u.module(torch.ones(1, 4)).sum().backward()")
    alone.do("before = [(p.tolist(), p.grad.tolist()) for p in u.module.parameters()]")
    alone.do(f"{LATEST}({trained_root!r}, u, restore_options=RestoreOptions(restore_modules=False))")
    assert alone.do("[(p.tolist(), p.grad.tolist()) for p in u.module.parameters()] == before") is True
    alone.do(f"a = Unit(); {LATEST}({trained_root!r}, a)")
    assert alone.do("values(u)['optimizer'] == values(a)['optimizer'] != []") is True
    alone.do(f"u = Unit(); {LATEST}({trained_root!r}, u, restore_options=RestoreOptions(init_optim_states=False))")
    assert alone.do("values(u)['optimizer']") == []


def test_data_loader_is_restored_if_it_and_the_checkpoint_can(alone, trained_root):
    alone.do("import logging; heard = []; handler = logging.Handler(); handler.emit = lambda r: heard.append(r.getMessage())")
    alone.do("logging.getLogger('ckptd').addHandler(handler)")
    for name, loader, position, warning in [
        ("epoch_0_train_step_4_train_loss=0.2", "Batches()", 4, None),
        ("epoch_1_train_step_5_train_loss=0.6", "Batches()", 0, "no state of it"),
        ("epoch_0_train_step_4_train_loss=0.2", "[1, 2]", None, "no state_dict()"),
    ]:
        alone.do(f"heard.clear(); b = {loader}; CheckpointSaver.restore({trained_root + '/' + name!r}, Unit(), train_dataloader=b)")
        assert alone.do("getattr(b, 'position', None)") == position
        heard = [each for each in alone.do("heard") if "train_dataloader" in each]
        assert len(heard) == bool(warning) and all(warning in each for each in heard)
    alone.do("logging.getLogger('ckptd').removeHandler(handler)")


def test_checkpoints_of_evaluation_and_prediction_leave_the_model_as_it_is(alone, root):
    alone.do(f"evaluate(Unit(), Batches(), callbacks=[CheckpointSaver({root + '/e'!r}, save_every_n_eval_steps=3)])")
    alone.do(f"predict(Unit(), Batches(), callbacks=[CheckpointSaver({root + '/p'!r}, save_every_n_predict_steps=3)])")
    alone.do("u, v = Unit(), Unit(); torch.nn.init.zeros_(u.module[0].weight); options = RestoreOptions(); e, p = Batches(), Batches()")
    alone.do(f"CheckpointSaver.restore_with_id({root + '/e/epoch_0_eval_step_3'!r}, u, eval_dataloader=e, restore_options=options)")
    alone.do(f"CheckpointSaver.restore({root + '/p/epoch_0_predict_step_3'!r}, v, predict_dataloader=p, restore_options=options)")
    assert alone.do("float(u.module[0].weight.abs().sum()), options.restore_modules") == [0.0, True]
    assert alone.do("u.eval_progress.num_steps_completed, v.predict_progress.num_steps_completed, e.position, p.position") == [3] * 4


@ON_ONE_AND_TWO_NODES
def test_part_of_the_ranks_saves_and_restores_with_a_group_of_its_own(launch, root):
    ranks = launch(4)
    ranks.do("half = dist.new_group([0, 1])")
    ranks.do(f"if dist.get_rank() < 2: a = trained({root!r}, process_group=half, save_every_n_train_steps=3)")
    ranks.do(f"if dist.get_rank() < 2: b = Unit(); assert {LATEST}({root!r}, b, process_group=half)")
    assert ranks.do("dist.get_rank() > 1 or values(a) == values(b)") == [True] * 4
    assert sorted(name for name in os.listdir(f"{root}/epoch_2_train_step_10") if name.endswith(".distcp")) == ["__0_0.distcp", "__1_0.distcp"]


@ON_ONE_AND_TWO_NODES
def test_group_of_another_back_end_gets_one_of_gloo(launch, root):
    ranks = launch(2)
    # Only those who choose the group take the default one for one of NCCL.
    ranks.do(
        "from torchtnt.framework.callbacks import base_checkpointer\nfrom ckptd._adapters import ranks as _ranks\n"
        "class Nccl:\n"
        "    def __getattr__(self, name): return getattr(dist, name)\n"
        "    def get_backend(self, group=None): return 'nccl' if group in (None, dist.group.WORLD) else dist.get_backend(group)\n"
        "base_checkpointer.dist = _ranks.dist = Nccl()"
    )
    try:
        ranks.do(f"a = trained({root!r}, epochs=1, async_checkpoint=True); b = Unit(); assert {LATEST}({root!r}, b)")
        assert ranks.do("values(a) == values(b)") == [True, True]
        assert ranks.do(f"CheckpointSaver({root!r})._process_group is not dist.group.WORLD") == [True, True]
    finally:
        ranks.do("base_checkpointer.dist = _ranks.dist = dist")


def test_missing_checkpoint_and_other_file_systems_are_errors_that_say_so(alone, root):
    assert "none" in alone.fails(f"CheckpointSaver.restore({root + '/none'!r}, Unit())").message
    assert "URL" in alone.fails("CheckpointSaver.restore('gs://a/b', Unit())").message
    assert "storage_reader" in alone.fails(f"{LATEST}({root!r}, Unit(), file_system=1)").message


def test_reader_and_planner_of_the_user_are_used(alone, trained_root):
    path = trained_root + "/epoch_0_train_step_2_train_loss=0.4"
    alone.do("class Planner(dcp.DefaultLoadPlanner):\n    calls = 0\n    def finish_plan(self, plan):\n        Planner.calls += 1\n        return super().finish_plan(plan)")
    alone.do(f"u = Unit(); CheckpointSaver.restore({path!r}, u, planner=Planner(), storage_reader=dcp.FileSystemReader({path!r}))")
    assert alone.do("Planner.calls, u.train_progress.num_steps_completed") == [1, 2]


def test_newest_checkpoint_without_its_manifest_or_with_a_damaged_one_is_passed_over(launch, root, trained_root):
    (alone,) = launch(1).processes
    alone.do("states.leave()")
    shutil.copytree(trained_root, root, dirs_exist_ok=True, symlinks=True)
    shutil.rmtree(root + "/.ckptd")
    os.mkdir(root + "/.ckptd")  # A root of ckptd, which no daemon has open.
    shutil.rmtree(*glob.glob(root + "/epoch_2_*"))
    (newest,) = glob.glob(root + "/epoch_1_train_step_6*")
    os.truncate(newest + "/.ckptd/manifest", 20)
    alone.do(f"unit = Unit(); assert {LATEST}({root!r}, unit)", 60)
    assert alone.do("unit.train_progress.num_steps_completed") == 5
    shutil.rmtree(newest + "/.ckptd")
    alone.do(f"unit = Unit(); assert {LATEST}({root!r}, unit)", 60)
    assert alone.do("unit.train_progress.num_steps_completed") == 5
