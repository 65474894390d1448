"""SIGKILL of each process that takes part in a save of three nodes: what every rank hears, and when; and that the next
save commits.
"""

import pytest
from cluster import GRACE_SECONDS, LOSS_SECONDS, PROMPT_SECONDS
from launches import assert_all_hear, words

from harness import tags


def assert_next_save_commits(cluster, launch, tag, step):
    assert words(launch.save(tag, step)) == {"committed"}
    assert tags(cluster.root)[0] == tag
    for node in cluster.nodes:
        node.ask("verify", f"{cluster.root}/{tag}")


def test_trainer_killed_before_its_seal_ends_the_save_on_all_nodes_at_once(cluster, launch):
    first = launch()
    first.do("me.begin('step_1', 1)")
    sealed, others = [0, 2, 4], [1, 5]
    first.do("me.seal()", sealed)
    first.start("me.outcome()", sealed)
    first.ranks[3].kill()
    assert_all_hear(first.outcomes(sealed), "SESSION_LOST", [3], PROMPT_SECONDS)
    first.start("me.outcome()", others)  # They hear it when they seal.
    assert_all_hear(first.outcomes(others), "SESSION_LOST", [3], PROMPT_SECONDS)
    assert tags(cluster.root) == []
    assert_next_save_commits(cluster, launch(), "step_2", 2)


def test_trainers_killed_after_all_have_sealed_cost_nothing(cluster, launch):
    first = launch()
    first.do("me.begin('step_1', 1)")
    first.do("me.seal()")
    first.close()
    second = launch()
    assert [found[0] for found in second.do("me.resume()")] == ["step_1"] * 6
    assert_next_save_commits(cluster, second, "step_2", 2)


def begin_without(launch, node):
    """A save that only the ranks of this node have not sealed; the others wait for its end."""
    launch.do("me.begin('step_1', 1)")
    launch.do("me.seal()", launch.ranks_off(node))
    launch.start("me.outcome()", launch.ranks_off(node))


def test_member_lost_in_a_save_ends_it_on_all_nodes_after_the_grace(cluster, launch):
    ranks = launch()
    node = cluster.followers()[0]
    begin_without(ranks, node)
    node.close()
    ranks.start("me.outcome()", ranks.ranks_on(node))
    heard = ranks.outcomes(ranks.ranks_off(node))
    assert_all_hear(heard, "NODE_LOST", ranks.ranks_on(node), LOSS_SECONDS)
    assert min(outcome.seconds for outcome in heard.values()) > GRACE_SECONDS
    assert tags(cluster.root) == []
    node.start()
    own = ranks.outcomes(ranks.ranks_on(node))
    assert_all_hear(own, "NODE_LOST", ranks.ranks_on(node), LOSS_SECONDS + PROMPT_SECONDS)
    assert_next_save_commits(cluster, ranks, "step_2", 2)


def test_member_killed_and_back_at_once_ends_the_save_without_a_grace(cluster, launch):
    ranks = launch()
    node = cluster.followers()[0]
    begin_without(ranks, node)
    node.close()
    node.start()
    ranks.start("me.outcome()", ranks.ranks_on(node))
    assert_all_hear(ranks.outcomes(), "NODE_LOST", ranks.ranks_on(node), PROMPT_SECONDS)
    assert tags(cluster.root) == []
    assert_next_save_commits(cluster, ranks, "step_2", 2)


def test_coordinator_lost_in_a_save_of_its_ranks_ends_it_by_another_one(cluster, launch):
    ranks = launch()
    node = cluster.coordinator()
    begin_without(ranks, node)
    node.close()
    heard = ranks.outcomes(ranks.ranks_off(node))
    # With another coordinator the grace begins anew.
    assert_all_hear(heard, "NODE_LOST", ranks.ranks_on(node), LOSS_SECONDS + GRACE_SECONDS)
    assert cluster.coordinator() is not node
    assert tags(cluster.root) == []
    node.start()
    ranks.start("me.outcome()", ranks.ranks_on(node))
    own = ranks.outcomes(ranks.ranks_on(node))
    assert_all_hear(own, "NODE_LOST", ranks.ranks_on(node), PROMPT_SECONDS)
    assert_next_save_commits(cluster, ranks, "step_2", 2)


@pytest.mark.parametrize("coordinates", [False, True])
def test_daemon_that_is_restarted_says_what_it_loses(cluster, launch, coordinates):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    node = cluster.coordinator() if coordinates else cluster.followers()[0]
    *sealed, late = ranks.ranks_off(node)
    own, unsealed = ranks.ranks_on(node)  # So the node's part cannot be durable before the daemon ends.
    ranks.do("me.begin('step_2', 2)")
    ranks.do("me.seal()", [own, *sealed])
    ranks.start("me.outcome()", sealed)
    assert node.end() == 0, node.log()
    heard = ranks.outcomes(sealed)
    assert_all_hear(heard, "NODE_LOST", ranks.ranks_on(node), PROMPT_SECONDS)
    said = f'the daemon of node "{node.name}" was asked to end'
    assert [outcome.message for outcome in heard.values() if said not in outcome.message] == []
    node.start()
    ranks.start("me.outcome()", [late, unsealed])
    assert words(ranks.outcomes([late, unsealed])) == {"NODE_LOST"}
    ranks.start("me.save('step_3', 3)")
    assert_all_hear(ranks.outcomes(), "committed", [], PROMPT_SECONDS)
    assert tags(cluster.root) == ["step_3", "step_1"]


def test_save_of_other_nodes_outlives_the_coordinator(cluster, launch):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    node = cluster.coordinator()
    others = ranks.ranks_off(node)
    ranks.do(f"me.begin('step_2', 2, ranks={others})", others)
    node.close()
    ranks.start("me.outcome()", others)
    assert_all_hear(ranks.outcomes(others), "committed", [], LOSS_SECONDS)
    assert tags(cluster.root) == ["step_2", "step_1"]
    assert cluster.coordinator() is not node
    node.start()
    assert_next_save_commits(cluster, ranks, "step_3", 3)


def test_etcd_leader_killed_in_a_save_costs_nothing(cluster, launch):
    ranks = launch()
    ranks.do("me.begin('step_1', 1)")
    leader = cluster.etcd.leader()
    cluster.etcd.kill(leader)
    ranks.start("me.outcome()")
    assert_all_hear(ranks.outcomes(), "committed", [], PROMPT_SECONDS)
    assert_next_save_commits(cluster, ranks, "step_2", 2)  # With two members.
    cluster.etcd.start(leader)
    assert_next_save_commits(cluster, ranks, "step_3", 3)
    assert [node.status().cluster.lost_leases for node in cluster.nodes] == [0, 0, 0]
