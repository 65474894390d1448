"""What a coordinator removes, over restarts of all daemons: nothing that a pointer file keeps, nothing that was put back, and
nothing of another root.
"""

import os
import shutil

import pytest
from launches import Launch, words

from harness import TrainerError, ckptctl, tags, until, until_equal


def restart_daemons(cluster):
    for node in cluster.nodes:
        assert node.end() == 0, node.log()
    for node in cluster.nodes:
        node.start()
    cluster.wait_until_registered()


def on_one_node(cluster, launch_id, root=None, keep=1):
    return Launch(launch_id, root or cluster.root, cluster.nodes[:1], local_world_size=1, keep=keep)


def test_checkpoint_that_only_a_pointer_file_keeps_stays_when_all_daemons_start_again(cluster):
    job = on_one_node(cluster, "first")
    job.do("me.begin('best', 1, pointers={'BEST': 'best'})")
    job.start("me.outcome()")
    assert words(job.outcomes()) == {"committed"}
    for step in (2, 3, 4):
        assert words(job.save(f"step_{step}", step)) == {"committed"}
    until_equal(lambda: tags(cluster.root), ["step_4", "best"], "retention to remove what it does not keep")
    job.close()
    restart_daemons(cluster)
    again = on_one_node(cluster, "second")
    for step in (5, 6):  # Retention of the new coordinator has run by then.
        assert words(again.save(f"step_{step}", step)) == {"committed"}
    again.close()
    assert "best" in tags(cluster.root)
    with open(f"{cluster.root}/BEST") as file:
        assert file.read() == "best"


def test_checkpoint_that_was_put_back_stays_when_all_daemons_start_again(cluster):
    job = on_one_node(cluster, "first")
    assert words(job.save("step_1", 1)) == {"committed"}
    archive = f"{cluster.root}.archive"
    shutil.copytree(f"{cluster.root}/step_1", archive)
    assert words(job.save("step_2", 2)) == {"committed"}
    until(lambda: not os.path.exists(f"{cluster.root}/step_1"), "retention to remove step_1")
    assert tags(cluster.root) == ["step_2"]
    job.close()
    keeps_all = on_one_node(cluster, "second", keep=None)  # Else retention could remove step_1 as soon as it is listed again.
    assert words(keeps_all.save("step_3", 3)) == {"committed"}
    keeps_all.close()
    os.rename(archive, f"{cluster.root}/step_1")
    restart_daemons(cluster)
    again = on_one_node(cluster, "third", keep=None)
    until(lambda: cluster.nodes[0].tags(cluster.root)[-1] == "step_1", "step_1 to be listed")
    assert words(again.save("step_4", 4)) == {"committed"}
    assert tags(cluster.root) == ["step_4", "step_3", "step_2", "step_1"]
    again.close()


def test_copy_of_a_shared_root_is_refused_until_it_has_a_run_of_its_own(cluster):
    job = on_one_node(cluster, "first", keep=None)
    for step in (1, 2, 3):
        assert words(job.save(f"step_{step}", step)) == {"committed"}
    copy = f"{cluster.root}.copy"
    shutil.copytree(cluster.root, copy)
    with pytest.raises(TrainerError) as refused:
        on_one_node(cluster, "of the copy", root=copy)
    assert f"ckptctl new-run {copy}" in str(refused.value)
    assert "run " in ckptctl("new-run", copy).stdout
    other = on_one_node(cluster, "of the copy", root=copy)
    for step in (4, 5):
        assert words(other.save(f"step_{step}", step)) == {"committed"}
    until_equal(lambda: tags(copy), ["step_5"], "retention in the copy")
    assert tags(cluster.root) == ["step_3", "step_2", "step_1"]
    assert words(job.save("step_6", 6)) == {"committed"}
    job.close()
    other.close()
