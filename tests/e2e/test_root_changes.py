"""What other programs change in a root while a job saves into it."""

import os
import shutil

from harness import ckptctl, tags

import ckptd


def test_removed_ckptd_directory_is_made_again_and_saves_go_on(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    rank.do("run.save('one', step=1, files={'m.bin': b'1'}).wait('committed')")
    assert ckptctl("pin", f"{root}/one", endpoint=daemon.endpoint).returncode == 0
    shutil.rmtree(f"{root}/.ckptd")
    rank.do("run.save('two', step=2, files={'m.bin': b'2'}).wait('committed')")
    rank.do("run.save('three', step=3, files={'m.bin': b'3'}).wait('committed')")
    assert tags(root) == ["three", "two", "one"]
    daemon.restart()
    later = trainers("b", 1, options=", num_kept_ckpts=1")[0]
    assert later.do("with run.resume() as last: resumed = last.tag\nresumed") == "three"
    later.do("run.save('four', step=4, files={'m.bin': b'4'}).wait('committed')")
    assert "one" in tags(root), "its pin was lost"


def test_removed_root_is_reported_as_such(trainers, root):
    rank = trainers("a", 1)[0]
    rank.do("run.save('one', step=1, files={'m.bin': b'1'}).wait('committed')")
    shutil.rmtree(root)
    error = rank.fails("run.save('two', step=2, files={'m.bin': b'2'}).wait('committed')")
    assert error.reason == "ROOT_CHANGED" and "the root's directory was removed" in error.message
    os.mkdir(root)


def test_job_does_not_go_back_to_checkpoint_that_was_moved_in(daemon, trainers, root, folder):
    other = os.path.join(folder, "other")
    os.mkdir(other)
    elsewhere = trainers("x", 1, where=other)[0]
    for step in range(5):
        elsewhere.do(f"run.save('other_{step}', step={step}, files={{'m.bin': b'x'}}).wait('committed')")
    rank = trainers("a", 1)[0]
    rank.do("run.save('one', step=1, files={'m.bin': b'1'}).wait('committed')")
    shutil.copytree(f"{other}/other_4", f"{root}/other_4")
    for step in (2, 3):
        rank.do(f"run.save('mine_{step}', step={step}, files={{'m.bin': b'2'}}).wait('committed')")
    assert tags(root) == ["mine_3", "other_4", "mine_2", "one"]
    daemon.restart()
    with ckptd.open_root(root).open("latest") as latest:
        assert latest.tag == "mine_3"
    later = trainers("b", 1)[0]
    assert later.do("with run.resume() as last: resumed = last.tag\nresumed") == "mine_3"
