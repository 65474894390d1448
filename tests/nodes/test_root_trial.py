"""The nodes of a launch try together what they need of the file system of their root."""

import pathlib

from cluster import NAMES
from launches import words

from harness import until

TRIED = "have tried the file system"


def trials(node):
    return node.log().count(TRIED)


def test_nodes_try_a_new_root_once_and_a_node_that_is_new_to_it_has_them_try_again(cluster, launch):
    two = cluster.nodes[:2]
    shared = pathlib.Path(cluster.root) / ".ckptd" / "shared"
    first = launch(two)
    assert words(first.save("step_1", 1)) == {"committed"}
    until(lambda: all(trials(node) == 1 for node in two), "the trial of two nodes")
    tried = (shared / "tried").read_text()
    assert [line.split("\t")[0] for line in tried.splitlines()[1:]] == list(NAMES[:2])
    until(lambda: not list(shared.glob("trial.*")), "the end of the meeting")
    first.close()

    second = launch(two)
    assert words(second.save("step_2", 2)) == {"committed"}
    second.close()

    third = launch()
    # The second launch has tried nothing.
    until(lambda: [trials(node) for node in cluster.nodes] == [2, 2, 1], "the trial of three nodes")
    assert words(third.save("step_3", 3)) == {"committed"}
    tried = (shared / "tried").read_text()
    assert [line.split("\t")[0] for line in tried.splitlines()[1:]] == list(NAMES)
    for node in cluster.nodes:
        assert "ROOT_UNSUITABLE" not in node.log()
