"""What an operator asks of any node of a run, and what all nodes comply with from then on, over restarts of all daemons."""

import json
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

    def is_deleted():
        done = follower.ask("--timeout=60", "delete", f"{cluster.root}/step_1", check=False)
        assert done.returncode == 0 or "reads the pointer files; try again" in done.stderr, done.stderr
        return done.returncode == 0

    until(is_deleted, "the next coordinator to know the pointer files")
    assert tags(cluster.root) == ["step_2"]


def test_save_that_needs_a_drained_node_is_refused_on_all_ranks_with_that_node_and_reason(cluster):
    job = Launch("first", cluster.root, cluster.nodes)
    assert words(job.save("step_1", 1)) == {"committed"}
    drained = cluster.followers()[0]
    assert "DRAINED after" in drained.ask("drain", "--message=a new kernel").stdout
    refused = job.save("step_2", 2)
    assert words(refused) == {"NODE_DRAINED"}
    for outcome in refused.values():
        assert f'node "{drained.name}" takes no new saves: uid 0 has drained it' in outcome.message
        assert "(a new kernel)" in outcome.message
    assert "DRAINED" in drained.ask("status").stdout
    assert tags(cluster.root) == ["step_1"]
    drained.ask("drain", "--undo")
    assert words(job.save("step_3", 3)) == {"committed"}
    job.close()


def test_any_node_shows_how_all_nodes_are(cluster):
    job = Launch("first", cluster.root, cluster.nodes)
    assert words(job.save("step_1", 1)) == {"committed"}
    asked, other = cluster.followers()
    other.ask("drain", "--message=a new kernel")

    def reports():
        status = json.loads(asked.ask("status", "--all-nodes", "--output=json", check=False).stdout)
        return {node["name"]: (node["summary"] or {}).get("state") for node in status["cluster"]["nodes"]}

    expected = {node.name: "DRAINED" if node is other else "SERVING" for node in cluster.nodes}
    until_equal(reports, expected, "the reports of all nodes")
    shown = asked.ask("status", "--all-nodes")
    assert shown.returncode == 0
    assert "drained by uid 0: a new kernel" in shown.stdout
    other.end(signal.SIGTERM)
    until(lambda: "NOT REGISTERED" in asked.ask("status", "--all-nodes", check=False).stdout, "the loss of a node")
    assert asked.ask("status", "--all-nodes", check=False).returncode == 1
    job.close()
