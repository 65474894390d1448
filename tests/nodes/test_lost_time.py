"""A node that sleeps for longer than its lease, as a suspended machine does, and an etcd that goes back to an old backup."""

import signal

import pytest
from cluster import GRACE_SECONDS, LOSS_SECONDS
from launches import words
from test_what_is_removed import restart_daemons

from harness import tags


def signal_node(node, ranks, number):
    """To all processes of a node."""
    node.process.send_signal(number)
    for rank in ranks.ranks_on(node):
        ranks.ranks[rank].send(number)


@pytest.mark.parametrize("is_coordinator", [False, True])
def test_node_that_sleeps_longer_than_its_lease_is_lost_and_goes_on_when_it_wakes(cluster, launch, is_coordinator):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    node = cluster.coordinator() if is_coordinator else cluster.followers()[0]
    own, others = ranks.ranks_on(node), ranks.ranks_off(node)
    ranks.do("me.begin('step_2', 2)")
    signal_node(node, ranks, signal.SIGSTOP)
    try:
        ranks.start("me.outcome()", others)
        for rank, outcome in ranks.outcomes(others).items():
            assert (outcome.word, outcome.ranks) == ("NODE_LOST", own), f"rank {rank}: {outcome}"
            assert outcome.seconds < LOSS_SECONDS + GRACE_SECONDS, f"rank {rank}: {outcome}"
    finally:
        signal_node(node, ranks, signal.SIGCONT)
    ranks.start("me.outcome()", own)
    assert words(ranks.outcomes(own)) == {"STAGED_LOST"}  # They had sealed nothing.
    cluster.wait_until_registered()
    assert words(ranks.save("step_3", 3)) == {"committed"}
    assert tags(cluster.root) == ["step_3", "step_1"]


def test_nodes_decide_nothing_on_a_restored_etcd_until_they_are_restarted(cluster, launch):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    cluster.etcd.back_up()
    for step in (2, 3):
        assert words(ranks.save(f"step_{step}", step)) == {"committed"}
    cluster.etcd.restore()
    ranks.start("me.save('step_4', 4, timeout=20)")
    heard = ranks.outcomes()
    assert words(heard) <= {"LEDGER_RESTORED", "LEDGER_UNAVAILABLE"}, heard
    assert any("restored" in outcome.message for outcome in heard.values()), heard
    assert tags(cluster.root) == ["step_3", "step_2", "step_1"]
    ranks.close()
    restart_daemons(cluster)
    again = launch()
    assert [found[:2] for found in again.do("me.resume()")] == [["step_3", 3]] * 6
    assert words(again.save("step_5", 5)) == {"committed"}
    assert tags(cluster.root) == ["step_5", "step_3", "step_2", "step_1"]
