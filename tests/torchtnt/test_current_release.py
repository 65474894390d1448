"""The signatures of TorchTNT's source of today, with stand-ins for its base classes (current_release.py)."""

import os

import pytest

DERIVED = """
class Derived(CheckpointSaver):
    def _checkpoint_impl(self, state, unit, *, {path}, hook):
        class Planner(dcp.DefaultSavePlanner):
            def finish_plan(self, plan):
                Derived.planned = {path}
                return super().finish_plan(plan)
        writer = ckptd.dcp.Writer({path}, single_file_per_rank=False)
        return super()._checkpoint_impl(
            state, unit, {path}={path}, hook=hook, planner=Planner(), storage_writer=writer, stager=None)
"""


@pytest.fixture(scope="module")
def current(start_processes):
    """A process where ckptd.torchtnt stands on the stand-ins."""
    return start_processes(1, "import current_release")[0]


def saved(root):
    return sorted(name for name in os.listdir(root) if name != ".ckptd")


def test_saver_stands_on_the_base_class_of_today(current):
    base = current.do("import current_release; current_release.BaseCheckpointer in CheckpointSaver.__mro__")
    assert base and current.do("issubclass(RestoreOptions, current_release.RestoreOptions)")
    assert current.do("CheckpointSaver.metadata_fnames") == [".metadata"]
    # Arguments by position mean what they mean there.
    fields = "[field.name for field in dataclasses.fields({})]"
    assert current.do(f"import dataclasses; {fields.format('RestoreOptions')} == {fields.format('current_release.RestoreOptions')}")


def test_every_phase_is_saved_and_restored_with_its_progress_and_data(current, root):
    current.do(f"saver = CheckpointSaver({root!r}, save_every_n_train_steps=3, save_every_n_eval_steps=2, save_every_n_predict_steps=2, "
               "keep_last_n_checkpoints=9, async_checkpoint=True)")
    current.do("u = Unit(); train(u, Batches(), max_epochs=1, callbacks=[saver])")
    current.do("evaluate(u, Batches(3), callbacks=[saver]); predict(u, Batches(3), callbacks=[saver])")
    names = ["epoch_0_eval_step_2", "epoch_0_predict_step_2", "epoch_0_train_step_3", "epoch_1_predict_step_3", "epoch_1_train_step_5"]
    assert saved(root) == names
    told = [names[2], names[4], names[0], names[1], names[3]]
    assert current.do("u.told") == [[name, True] for name in told]
    for name, loader, progress in [
        (names[0], "eval_dataloader", "eval_progress"),
        (names[1], "predict_dataloader", "predict_progress"),
        (names[2], "train_dataloader", "train_progress"),
    ]:
        path = os.path.join(root, name)
        current.do(f"v, b = Unit(), Batches(); CheckpointSaver.restore_with_id({path!r}, v, {loader}=b)")
        assert current.do(f"v.{progress}.num_steps_completed == b.position > 1") is True
    current.do(f"v = Unit(); assert saver.restore_from_latest({root!r}, v, file_system=None, predict_dataloader=Batches())")
    assert current.do("v.predict_progress.num_steps_completed") == 3  # The order of today: prediction is the newest.


def test_derived_class_of_either_release_saves_with_a_planner_and_writer_of_its_own(current, alone, root):
    for process, path in [(current, "checkpoint_id"), (alone, "checkpoint_path")]:
        process.do(DERIVED.format(path=path))
        folder = f"{root}/{path}"
        process.do(f"train(Unit(), Batches(), max_epochs=1, callbacks=[Derived({folder!r})])")
        assert process.do("Derived.planned") == f"{folder}/epoch_1_train_step_5"
        assert len(os.listdir(f"{folder}/epoch_1_train_step_5")) > 4
