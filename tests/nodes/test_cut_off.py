"""A node that has lost its network, and with it etcd, but not the shared folder."""

import pytest
from cluster import GRACE_SECONDS, LOSS_SECONDS
from launches import words
from places import SeparateHosts, why_no_namespaces
from shared_file_systems import chosen

from harness import tags

WHY_NOT = why_no_namespaces()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def places():
    made = SeparateHosts(chosen())
    yield made
    made.close()


@pytest.mark.parametrize("is_coordinator", [False, True])
def test_save_of_a_node_that_is_cut_off_ends_alike_on_all_nodes(cluster, places, launch, is_coordinator):
    ranks = launch()
    assert words(ranks.save("step_1", 1)) == {"committed"}
    node = cluster.coordinator() if is_coordinator else cluster.followers()[0]
    own, others = ranks.ranks_on(node), ranks.ranks_off(node)
    ranks.do("me.begin('step_2', 2)")
    places.cut(cluster.nodes.index(node))
    ranks.start("me.outcome()")
    for rank, outcome in ranks.outcomes(others).items():
        assert (outcome.word, outcome.ranks) == ("NODE_LOST", own), f"rank {rank}: {outcome}"
        # With another coordinator the grace begins anew.
        assert outcome.seconds < LOSS_SECONDS + GRACE_SECONDS, f"rank {rank}: {outcome}"
    assert tags(cluster.root) == ["step_1"]
    places.heal(cluster.nodes.index(node))
    assert words(ranks.outcomes(own)) == {"NODE_LOST"}
    cluster.wait_until_registered()
    assert words(ranks.save("step_3", 3)) == {"committed"}
    assert tags(cluster.root) == ["step_3", "step_1"]
