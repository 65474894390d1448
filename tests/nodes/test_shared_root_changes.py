"""What other programs change in a shared root while nodes save into it, and another model in it: as
tests/e2e/test_root_changes.py and test_two_jobs.py, over three nodes.
"""

import shutil
import subprocess

from launches import Launch, words
from test_what_is_removed import restart_daemons

from harness import tags, until, until_equal


def test_removed_ckptd_directory_is_made_again_and_saves_go_on(cluster, launch):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    # The nodes may be trying the root there.
    removal = ["rm", "-rf", f"{cluster.root}/.ckptd"]
    until(lambda: subprocess.run(removal, capture_output=True).returncode == 0, "the removal of .ckptd")
    # The directory of the next save was made in advance.
    assert words(ranks.save("step_2", 2)) <= {"committed", "ROOT_CHANGED"}
    for step in (3, 4):
        assert words(ranks.save(f"step_{step}", step)) == {"committed"}
    ranks.close()
    restart_daemons(cluster)
    second = launch()
    assert [found[0] for found in second.do("me.resume()")] == ["step_4"] * 6
    assert words(second.save("step_5", 5)) == {"committed"}
    assert [tag for tag in tags(cluster.root) if tag != "step_2"] == ["step_5", "step_4", "step_3", "step_1"]


def test_job_does_not_go_back_to_checkpoint_that_was_moved_in(cluster, launch):
    other = str(cluster.shared / "other")
    elsewhere = Launch("other", other, cluster.nodes[:1], local_world_size=1)
    for step in range(1, 8):
        assert words(elsewhere.save(f"other_{step}", step)) == {"committed"}
    elsewhere.close()
    ranks = launch()
    assert words(ranks.save("mine_1", 1)) == {"committed"}
    shutil.copytree(f"{other}/other_7", f"{cluster.root}/other_7")
    for step in (2, 3):
        assert words(ranks.save(f"mine_{step}", step)) == {"committed"}
    assert tags(cluster.root) == ["mine_3", "other_7", "mine_2", "mine_1"]
    for node in cluster.nodes:
        expected = ["mine_3", "other_7", "mine_2", "mine_1"]
        until_equal(lambda node=node: node.tags(cluster.root), expected, f"{node.name} to list what was moved in")
    ranks.close()
    restart_daemons(cluster)
    assert [found[0] for found in launch().do("me.resume()")] == ["mine_3"] * 6


FAIL_TO_RESUME = """
try:
    with me.run.resume():
        raise ValueError("the model has other layers")
except Exception:
    pass
"""


def test_other_model_does_not_evict_what_it_could_not_resume_from(cluster):
    first = Launch("first", cluster.root, cluster.nodes, keep=2)
    for step in (1, 2):
        assert words(first.save(f"one_{step}", step)) == {"committed"}
    first.close()
    second = Launch("second", cluster.root, cluster.nodes, keep=1)
    second.do(FAIL_TO_RESUME)
    for step in (1, 2, 3):
        assert words(second.save(f"other_{step}", step)) == {"committed"}
    until_equal(lambda: tags(cluster.root), ["other_3", "one_2", "one_1"], "the eviction of the second model's own")
    assert any("could not resume from sequence" in node.log() for node in cluster.nodes)
    second.close()
    restart_daemons(cluster)
    third = Launch("third", cluster.root, cluster.nodes, keep=1)
    assert [found[0] for found in third.do("me.resume()")] == ["other_3"] * 6
    assert words(third.save("other_4", 4)) == {"committed"}
    until_equal(lambda: tags(cluster.root), ["other_4", "one_2", "one_1"], "retention, with another coordinator")
    third.close()
