"""etcd that has used up its quota, and one from which somebody has removed a node's key."""

from cluster import PROMPT_SECONDS
from launches import words

from harness import tags, until


def _what_saves_wait_for(node):
    return [save.waits_for for run in node.status().cluster.shared_runs for save in run.saves]


def test_save_waits_until_etcd_has_room_and_goes_on(cluster, launch):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    coordinator = cluster.coordinator()
    ranks.do("me.begin('step_2', 2)")
    cluster.etcd.fill()
    ranks.start("me.outcome()")
    for node in cluster.nodes:

        def says_so(node=node):
            waits = _what_saves_wait_for(node)
            return waits and "etcd takes no writes: compact and defragment it" in waits[0]

        until(says_so, f"{node.name} to say that etcd takes no writes")
    assert all(node.is_registered() for node in cluster.nodes)
    assert tags(cluster.root) == ["step_1"]
    cluster.etcd.make_room()
    assert words(ranks.outcomes()) == {"committed"}
    assert tags(cluster.root) == ["step_2", "step_1"]
    assert cluster.coordinator() is coordinator


def test_save_with_skip_does_not_wait_for_an_etcd_that_is_away(cluster, launch):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    killed = [0, 1]  # Of three: the one that is left answers nothing.
    for member in killed:
        cluster.etcd.kill(member)
    for step in (2, 3):  # With a save that was made in advance, and without one.
        ranks.start(f"me.save('step_{step}', {step}, busy='skip')")
        outcomes = ranks.outcomes()
        assert words(outcomes) <= {"SKIPPED", "skipped"}, outcomes
        assert max(outcome.seconds for outcome in outcomes.values()) < PROMPT_SECONDS
    for member in killed:
        cluster.etcd.start(member)
    cluster.wait_until_registered()
    assert words(ranks.save("step_4", 4)) == {"committed"}


def test_run_gets_another_coordinator_when_etcd_has_room(cluster, launch):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    first = cluster.coordinator()
    others = cluster.followers()
    ranks.close()
    cluster.etcd.fill()
    assert first.end() == 0, first.log()  # It gives its leadership and its name up.
    cluster.etcd.make_room()
    second = launch(others)
    assert words(second.save("step_2", 2)) == {"committed"}
    assert cluster.coordinator() in others
    assert all(node.status().cluster.lost_leases == 0 for node in others)


def test_node_whose_key_was_removed_registers_anew(cluster, launch):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    node = cluster.followers()[0]
    before = node.status().cluster.register_time
    cluster.etcd.remove(f"/ckptd/nodes/{node.name}")
    assert words(ranks.save("step_2", 2)) == {"committed"}
    after = node.status().cluster
    assert after.registered and after.register_time.ToNanoseconds() > before.ToNanoseconds()
