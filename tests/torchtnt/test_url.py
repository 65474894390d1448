"""TorchTNT's own saver with a URL of ckptd://."""

import os

import pytest

REGISTER = "import fsspec; fsspec.register_implementation('ckptd', 'ckptd.dcp._fsspec.CkptdFileSystem', clobber=True)"


def saved(root):
    return sorted(name for name in os.listdir(root) if name != ".ckptd")


@pytest.mark.parametrize("is_async", [False, True])
def test_stock_saver_saves_restores_and_removes_through_ckptd(launch, root, is_async):
    ranks = launch(2)
    arguments = f"stock=True, keep_last_n_checkpoints=1, async_checkpoint={is_async}"
    ranks.do(f"{REGISTER}\na = trained('ckptd://' + {root!r}, save_every_n_train_steps=2, {arguments})")
    # An asynchronous save is the newest one while TorchTNT removes the one before it, which goes with the next commit.
    newest = ["epoch_1_train_step_10", "epoch_2_train_step_10"]
    assert saved(root) in (newest, newest[1:])
    assert os.path.exists(f"{root}/epoch_2_train_step_10/.ckptd/manifest")
    ranks.do(f"b = Unit(); assert DistributedCheckpointSaver.restore_from_latest('ckptd://' + {root!r}, b)")
    assert ranks.do("values(a) == values(b)") == [True, True]
    ranks.do(f"trained('ckptd://' + {root!r}, epochs=3, unit=b, {arguments})")
    assert saved(root) in (["epoch_2_train_step_10", "epoch_3_train_step_15"], ["epoch_3_train_step_15"])


def test_checkpoint_of_torchtnt_itself_is_removed_by_its_url(alone, root):
    alone.do(f"{REGISTER}\ntrained({root!r}, epochs=1, stock=True)")
    alone.do(f"trained('ckptd://' + {root!r}, stock=True, unit=Unit(), keep_last_n_checkpoints=1)")
    assert saved(root) == ["epoch_2_train_step_10"]


def test_checkpoint_that_was_removed_by_its_url_and_saved_again_stays(alone, root):
    url = f"ckptd://{root}/a"
    alone.do(f"{REGISTER}\nfs = fsspec.filesystem('ckptd'); dcp.save({{'a': torch.ones(3)}}, checkpoint_id={url!r})")
    alone.do(f"fs.rm({url!r}, recursive=True)")  # The newest: it stays until another one is committed.
    assert saved(root) == ["a"]
    for name in ("a", "b"):
        alone.do(f"dcp.save({{'a': torch.ones(3)}}, checkpoint_id='ckptd://{root}/{name}')")
    assert saved(root) == ["a", "b"]
