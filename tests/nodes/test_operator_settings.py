"""What an operator asks of any node of a run, and what all nodes comply with from then on, over restarts of all daemons."""

import signal

from launches import Launch, words
from test_what_is_removed import on_one_node, restart_daemons

from harness import tags, until, until_equal


def pinned(node, root):
    return [checkpoint["tag"] for checkpoint in node.listed(root) if checkpoint["pinned"]]


def test_pin_from_any_node_holds_for_all_and_survives_their_daemons(cluster):
    job = Launch("first", cluster.root, cluster.nodes, keep=1)
    assert words(job.save("step_1", 1)) == {"committed"}
    follower, other = cluster.followers()
    follower.ask("pin", f"{cluster.root}/step_1")
    for node in cluster.nodes:
        until(lambda node=node: pinned(node, cluster.root) == ["step_1"], f"{node.name} to learn of the pin")
    for step in (2, 3):
        assert words(job.save(f"step_{step}", step)) == {"committed"}
    until_equal(lambda: tags(cluster.root), ["step_3", "step_1"], "retention to remove what it does not keep")
    assert words(job.save("step_1", 4)) == {"PINNED"}
    job.close()
    restart_daemons(cluster)
    again = Launch("second", cluster.root, cluster.nodes, keep=1)
    for step in (5, 6):
        assert words(again.save(f"step_{step}", step)) == {"committed"}
    until_equal(lambda: tags(cluster.root), ["step_6", "step_1"], "retention of the next coordinator")
    assert pinned(other, cluster.root) == ["step_1"]
    other.ask("unpin", f"{cluster.root}/step_1")
    until_equal(lambda: tags(cluster.root), ["step_6"], "the removal of what is not pinned any more")
    again.close()


def test_retention_policy_that_is_set_on_any_node_replaces_that_of_the_job_until_it_is_cleared(cluster):
    job = Launch("first", cluster.root, cluster.nodes, keep=1)
    assert words(job.save("step_1", 1)) == {"committed"}
    follower = cluster.followers()[0]
    assert "keeps last=3" in follower.ask("retention", cluster.root, "--set=last=3").stdout
    for node in cluster.nodes:
        shows = lambda node=node: "last=3" in node.ask("retention", cluster.root).stdout  # noqa: E731
        until(shows, f"{node.name} to learn of the policy")
    for step in (2, 3, 4):
        assert words(job.save(f"step_{step}", step)) == {"committed"}
    until_equal(lambda: tags(cluster.root), ["step_4", "step_3", "step_2"], "retention by the operator's policy")
    job.close()
    restart_daemons(cluster)
    again = Launch("second", cluster.root, cluster.nodes, keep=1)
    assert words(again.save("step_5", 5)) == {"committed"}
    until_equal(lambda: tags(cluster.root), ["step_5", "step_4", "step_3"], "the same after a restart of all daemons")
    cluster.followers()[0].ask("retention", cluster.root, "--clear")
    assert words(again.save("step_6", 6)) == {"committed"}
    until_equal(lambda: tags(cluster.root), ["step_6"], "retention by the job's policy")
    again.close()


def test_checkpoint_is_deleted_from_any_node(cluster):
    job = Launch("first", cluster.root, cluster.nodes)
    for step in (1, 2):
        assert words(job.save(f"step_{step}", step)) == {"committed"}
    follower = cluster.followers()[0]
    kept = follower.ask("delete", f"{cluster.root}/step_2", check=False)
    assert kept.returncode != 0
    assert "step_2 is not deleted: it is the newest checkpoint" in kept.stderr
    follower.ask("pin", f"{cluster.root}/step_1")
    kept = follower.ask("delete", f"{cluster.root}/step_1", check=False)
    assert "it is pinned" in kept.stderr
    follower.ask("delete", f"{cluster.root}/step_1", "--force")
    assert tags(cluster.root) == ["step_2"]
    again = follower.ask("delete", f"{cluster.root}/step_1", check=False)
    assert again.returncode != 0
    job.close()


def test_request_is_carried_out_by_the_next_coordinator_if_the_first_one_has_ended(cluster):
    job = on_one_node(cluster, "first", keep=None)
    for step in (1, 2):
        assert words(job.save(f"step_{step}", step)) == {"committed"}
    job.close()
    Launch("second", cluster.root, cluster.nodes, local_world_size=1).close()  # All nodes have the root open from now on.
    coordinator = cluster.coordinator()
    follower = cluster.followers()[0]
    coordinator.end(signal.SIGKILL)
    follower.ask("delete", f"{cluster.root}/step_1")
    assert tags(cluster.root) == ["step_2"]
