"""When TorchTNT's jobs save, under which names, and what. TorchTNT 0.2.4 of PyPI."""

import os

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

from harness import until

MODEL = ["module", "optimizer", "scheduler"]
PROGRESS = ["eval_progress", "predict_progress", "train_progress"]


def saved(root):
    return sorted(name for name in os.listdir(root) if name != ".ckptd")


def keys(process, root, name):
    return process.do(f"keys({os.path.join(root, name)!r})")


def await_only(root, names):
    until(lambda: saved(root) == sorted(names), f"the removal of all but {names}")


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("is_async", [False, True])
def test_names_and_contents_are_those_of_torchtnt_and_both_sides_load_them(launch, root, world_size, is_async):
    ranks = launch(world_size)
    ours, stock = root + "/ours", root + "/stock"
    arguments = f"save_every_n_train_steps=2, save_every_n_epochs=2, async_checkpoint={is_async}"
    ranks.do(f"a = trained({ours!r}, {arguments})\nb = trained({stock!r}, stock=True, {arguments})")
    assert saved(ours) == saved(stock) == [
        "epoch_0_train_step_2",
        "epoch_0_train_step_4",
        "epoch_1_train_step_10",
        "epoch_1_train_step_6",
        "epoch_1_train_step_8",
        "epoch_2_train_step_10",
    ]
    rank = ranks.processes[0]
    for name in saved(ours):
        assert keys(rank, ours, name) == keys(rank, stock, name)
        assert os.path.exists(f"{ours}/{name}/.ckptd/manifest")
    for saver, folder in [("CheckpointSaver", stock), ("DistributedCheckpointSaver", ours)]:
        ranks.do(f"c = Unit(); assert {saver}.restore_from_latest({folder!r}, c)")
        assert ranks.do("values(c) == values(a) == values(b)") == [True] * world_size


def test_data_loader_is_saved_in_the_middle_of_an_epoch_only(alone, root):
    alone.do(f"trained({root!r}, epochs=1, save_every_n_train_steps=3, save_every_n_epochs=1)")
    middle = sorted([*MODEL, *PROGRESS, "train_dataloader"])
    assert keys(alone, root, "epoch_0_train_step_3") == middle
    assert keys(alone, root, "epoch_1_train_step_5") == sorted([*MODEL, *PROGRESS])


def test_end_of_training_saves_without_any_interval_and_not_what_is_there(alone, root):
    alone.do(f"trained({root!r}, epochs=1)")
    assert saved(root) == ["epoch_1_train_step_5"]
    before = os.stat(f"{root}/epoch_1_train_step_5").st_ino
    alone.do(f"trained({root!r}, epochs=1, save_every_n_epochs=2)")
    assert os.stat(f"{root}/epoch_1_train_step_5").st_ino == before


def test_every_kind_of_interval_saves_at_its_hook(alone, root):
    alone.do(f"fitted({root + '/epochs'!r}, save_every_n_eval_epochs=1, eval_steps=2)")
    assert saved(root + "/epochs") == [
        "epoch_0_train_step_2_eval_step_3",
        "epoch_0_train_step_4_eval_step_6",
        "epoch_1_train_step_5_eval_step_9",
    ]
    in_epoch, after_epoch = saved(root + "/epochs")[0], saved(root + "/epochs")[2]
    both = sorted([*MODEL, *PROGRESS, "eval_dataloader", "train_dataloader"])
    assert keys(alone, root + "/epochs", in_epoch) == both
    assert keys(alone, root + "/epochs", after_epoch) == [key for key in both if key != "train_dataloader"]
    alone.do(f"fitted({root + '/steps'!r}, save_every_n_eval_steps=2)")
    assert saved(root + "/steps") == ["epoch_1_train_step_5_eval_step_2", "epoch_1_train_step_5_eval_step_3"]


def test_end_of_fit_saves_nothing_if_only_evaluation_has_gone_on_since(alone, root):
    alone.do(f"fitted({root!r}, save_every_n_epochs=1)")
    assert saved(root) == ["epoch_1_train_step_5_eval_step_0"]


def test_evaluate_and_predict_save_their_progress_without_the_model_and_remove_nothing(alone, root):
    alone.do(f"trained({root!r}, epochs=1, keep_last_n_checkpoints=1)")
    arguments = "keep_last_n_checkpoints=1, best_checkpoint_config=best()"
    alone.do(f"evaluate(Unit(), Batches(), callbacks=[CheckpointSaver({root!r}, save_every_n_eval_steps=2, {arguments})])")
    alone.do(f"predict(Unit(), Batches(), callbacks=[CheckpointSaver({root!r}, save_every_n_predict_steps=2, {arguments})])")
    assert saved(root) == [
        "epoch_0_eval_step_2",
        "epoch_0_eval_step_4",
        "epoch_0_predict_step_2",
        "epoch_0_predict_step_4",
        "epoch_1_predict_step_5",
        "epoch_1_train_step_5",
    ]
    assert keys(alone, root, "epoch_0_eval_step_2") == sorted(["eval_dataloader", *PROGRESS])
    assert keys(alone, root, "epoch_0_predict_step_4") == sorted(["predict_dataloader", *PROGRESS])
    assert keys(alone, root, "epoch_1_predict_step_5") == PROGRESS


@pytest.mark.parametrize("value", [0.0, 1e-05, -2.5, 1e16])
def test_metric_of_any_finite_value_is_in_the_name_and_found_again(alone, root, value):
    alone.do(f"trained({root!r}, epochs=1, unit=Unit(losses=[0.5, {value}, 3e20, 3e20, 3e20]), "
             "save_every_n_train_steps=1, best_checkpoint_config=best())")
    name = f"epoch_0_train_step_2_train_loss={value}"
    assert name in saved(root)
    alone.do(f"u = Unit(); assert CheckpointSaver.restore_from_best({root!r}, u, 'train_loss', 'min')")
    assert alone.do("u.train_progress.num_steps_completed") == (2 if value < 0.5 else 1)


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "'high'", "None", "torch.ones(2)", "[1]"])
def test_metric_that_is_no_finite_number_is_left_out_of_the_name(alone, root, value):
    alone.do(f"trained({root!r}, epochs=1, unit=Unit(losses=[{value}] * 5), best_checkpoint_config=best())")
    assert saved(root) == ["epoch_1_train_step_5"]
    alone.do(f"trained({root!r}, epochs=2, best_checkpoint_config=best('no_such_attribute'))")
    assert saved(root) == ["epoch_1_train_step_5", "epoch_2_train_step_10"]
    assert alone.do(f"CheckpointSaver.restore_from_best({root!r}, Unit(), 'train_loss', 'min')") is False


@ON_ONE_AND_TWO_NODES
def test_metric_of_the_first_rank_names_the_checkpoint_of_all(launch, root):
    ranks = launch(2)
    ranks.do(f"trained({root!r}, epochs=1, unit=Unit([0.25 + dist.get_rank()] * 5), best_checkpoint_config=best())")
    assert saved(root) == ["epoch_1_train_step_5_train_loss=0.25"]


# ---- what is kept


@pytest.mark.parametrize("is_async", [False, True])
def test_last_n_checkpoints_are_kept(alone, root, is_async):
    alone.do(f"trained({root!r}, save_every_n_train_steps=2, keep_last_n_checkpoints=2, async_checkpoint={is_async})")
    await_only(root, ["epoch_1_train_step_10", "epoch_2_train_step_10"])


@ON_ONE_AND_TWO_NODES
def test_best_n_checkpoints_and_the_newest_one_are_kept(launch, root):
    losses = [0.5, 0.0, 0.9, 0.1, 0.7]
    launch(2).do(f"trained({root!r}, epochs=1, unit=Unit({losses}), save_every_n_train_steps=1, "
                 "keep_last_n_checkpoints=2, best_checkpoint_config=best())")
    kept = [f"epoch_0_train_step_{step}_train_loss={losses[step - 1]}" for step in (2, 4)]
    # The newest is not among the best, and it is what a killed job resumes from.
    await_only(root, [*kept, "epoch_1_train_step_5_train_loss=0.7"])


def test_highest_values_are_kept_if_the_mode_is_max(alone, root):
    alone.do(f"trained({root!r}, epochs=1, unit=Unit([3.0, 1.0, 2.0, 0.0, 1.5]), save_every_n_train_steps=1, "
             "keep_last_n_checkpoints=1, best_checkpoint_config=best(mode='max'))")
    await_only(root, ["epoch_0_train_step_1_train_loss=3.0", "epoch_1_train_step_5_train_loss=1.5"])


def test_any_policy_of_ckptd_is_kept_with_the_steps_of_training(alone, root):
    alone.do(f"trained({root!r}, unit=Unit([0.05 * n for n in range(10)]), save_every_n_train_steps=1, "
             "best_checkpoint_config=best(), retention=ckptd.Keep(last=1, every=4))")
    await_only(root, ["epoch_0_train_step_4_train_loss=0.15000000000000002",
                      "epoch_1_train_step_8_train_loss=0.35000000000000003", "epoch_2_train_step_10_train_loss=0.45"])


def test_checkpoints_of_torchtnt_itself_are_continued_from_and_never_removed(launch, root):
    ranks = launch(2)
    ranks.do(f"trained({root!r}, epochs=1, stock=True, save_every_n_train_steps=2)")
    before = saved(root)
    ranks.do(f"a = resumed({root!r}, save_every_n_train_steps=2, keep_last_n_checkpoints=1)")
    await_only(root, [*before, "epoch_2_train_step_10"])
    ranks.do(f"b = trained({root + '/whole'!r})")
    assert ranks.do("values(a) == values(b)") == [True, True]
    # A name that TorchTNT has saved is saved again: the checkpoint is replaced whole.
    ranks.do(f"trained({root!r}, epochs=1, save_every_n_train_steps=4)")
    assert os.path.exists(f"{root}/epoch_0_train_step_4/.ckptd/manifest")


# ---- arguments


def test_wrong_arguments_are_refused_with_the_value(alone, root):
    for argument in ("train_steps", "epochs", "eval_steps", "eval_epochs", "predict_steps"):
        error = alone.fails(f"CheckpointSaver({root!r}, save_every_n_{argument}=0)")
        assert error.kind == "ValueError" and f"save_every_n_{argument} is 0" in error.message
    assert "is -1" in alone.fails(f"CheckpointSaver({root!r}, keep_last_n_checkpoints=-1)").message
    assert "mode" in alone.fails(f"CheckpointSaver({root!r}, best_checkpoint_config=best(mode='avg'))").message
    for metric in ("top1/eval", "mAP@0.50", "größe", "top-1", ""):
        error = alone.fails(f"CheckpointSaver({root!r}, best_checkpoint_config=best({metric!r}))")
        assert error.kind == "ValueError" and f'the metric "{metric}"' in error.message, error
    both = "keep_last_n_checkpoints=1, retention=ckptd.Keep(last=1)"
    assert "retention" in alone.fails(f"CheckpointSaver({root!r}, {both})").message
    assert "URL" in alone.fails("CheckpointSaver('gs://bucket/a')").message
    error = alone.fails("CheckpointSaver('/proc/version/below')")
    assert error.kind == "Refused" and "/proc/version is a file and no directory" in error.message
    assert alone.do(f"CheckpointSaver('ckptd://' + {root!r}).dirpath") == root
    error = alone.fails(
        "os.environ['WORLD_SIZE'] = '2'\n"
        f"try: CheckpointSaver({root!r})\nfinally: del os.environ['WORLD_SIZE']\n"
    )
    assert error.kind == "RuntimeError" and "init_process_group" in error.message


def test_knob_chooses_the_number_of_files_of_a_rank(alone, root):
    alone.do("from torchtnt.framework.callbacks.checkpointer_types import KnobOptions")
    alone.do(f"trained({root!r}, epochs=1, knob_options=KnobOptions(max_per_rank_io_concurrency=3))")
    files = os.listdir(f"{root}/epoch_1_train_step_5")
    assert sorted(name for name in files if name.endswith(".distcp")) == ["__0_0.distcp", "__0_1.distcp", "__0_2.distcp"]
