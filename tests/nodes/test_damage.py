"""Bytes of a checkpoint in the shared folder change: what a rank of one node finds, the ranks of no node resume from."""

import os

from launches import words

from harness import until

ALL_FILES = [f"rank{rank}.raw" for rank in range(6)]


def flip_a_bit(path):
    """Twice puts the file right."""
    with open(path, "r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
        os.fsync(file.fileno())


def restart_daemons(cluster):
    """So that they have no checkpoint in memory."""
    for node in cluster.nodes:
        assert node.end() == 0, node.log()
        node.start()
    cluster.wait_until_registered()


def damaged_on(node):
    return [checkpoint.tag for run in node.status().runs for checkpoint in run.damaged]


def test_damage_that_one_rank_finds_keeps_all_ranks_of_all_nodes_from_that_checkpoint(cluster, launch):
    first = launch()
    for step in (1, 2):
        assert words(first.save(f"step_{step}", step)) == {"committed"}
    first.close()
    restart_daemons(cluster)
    flip_a_bit(f"{cluster.root}/step_2/rank3.raw")
    second = launch()
    assert second.do("me.restore()") == [["step_1", 1]] * 6  # Only rank 3 reads what has changed.
    for node in cluster.nodes:
        assert damaged_on(node) == ["step_2"], node.name
    second.close()
    elsewhere = launch([cluster.nodes[0], cluster.nodes[2]])
    assert elsewhere.do("me.restore()") == [["step_1", 1]] * 4
    elsewhere.close()
    restart_daemons(cluster)
    third = launch()
    assert third.do("me.restore()") == [["step_1", 1]] * 6
    third.close()
    flip_a_bit(f"{cluster.root}/step_2/rank3.raw")
    cluster.nodes[2].ask("repaired", f"{cluster.root}/step_2")
    for node in cluster.nodes:
        until(lambda node=node: damaged_on(node) == [], f"{node.name} to hear that step_2 is repaired")
    fourth = launch()
    assert fourth.do("me.resume()") == [["step_2", 2, ALL_FILES]] * 6


def test_damage_that_verify_finds_on_one_node_is_known_on_all(cluster, launch):
    ranks = launch()
    for step in (1, 2):
        assert words(ranks.save(f"step_{step}", step)) == {"committed"}
    flip_a_bit(f"{cluster.root}/step_2/rank0.raw")
    done = cluster.followers()[0].ask("verify", cluster.root, check=False)
    assert done.returncode == 1, done.stdout
    for node in cluster.nodes:
        until(lambda node=node: damaged_on(node) == ["step_2"], f"{node.name} to hear of the damage")
    assert words(ranks.save("step_3", 3)) == {"committed"}
