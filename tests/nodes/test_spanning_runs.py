"""Saves and resumes of 6 ranks on 3 nodes, with real daemons, ranks and etcd."""

from launches import words

import ckptd
from harness import tags

ALL_FILES = [f"rank{rank}.raw" for rank in range(6)]


def test_save_of_three_nodes_is_one_checkpoint_that_all_ranks_resume_from(cluster, launch):
    first = launch()
    assert words(first.save("step_1", 1)) == {"committed"}
    assert tags(cluster.root) == ["step_1"]
    with ckptd.open_root(cluster.root).open("step_1") as checkpoint:
        assert sorted(checkpoint.files) == ALL_FILES
    cluster.nodes[2].ask("verify", f"{cluster.root}/step_1")
    first.close()
    second = launch()
    assert second.do("me.resume()") == [["step_1", 1, ALL_FILES]] * 6
    assert words(second.save("step_2", 2)) == {"committed"}
    second.close()
    third = launch(cluster.nodes[1:])  # 4 ranks on the 2 nodes that are left.
    assert third.do("me.resume()") == [["step_2", 2, ALL_FILES]] * 4
    assert words(third.save("step_3", 3)) == {"committed"}
    with ckptd.open_root(cluster.root).open("step_3") as checkpoint:
        assert sorted(checkpoint.files) == ALL_FILES[:4]
    third.close()
    fourth = launch(cluster.nodes[:2], local_world_size=3)
    assert fourth.do("me.resume()") == [["step_3", 3, ALL_FILES[:4]]] * 6
    assert words(fourth.save("step_4", 4)) == {"committed"}
    assert tags(cluster.root) == ["step_4", "step_3", "step_2", "step_1"]


def test_checkpoint_stays_if_the_save_of_its_tag_makes_none(cluster, launch):
    first = launch()
    assert words(first.save("last", 1)) == {"committed"}
    first.close()
    differs = cluster.nodes[1]
    assert differs.end() == 0, differs.log()
    with open(differs.configuration, "a") as file:
        file.write("io { chunk_bytes: 65536 }\n")
    differs.start()
    cluster.wait_until_registered()
    second = launch()
    outcomes = second.save("last", 2)
    assert words(outcomes) == {"INVALID_ARGUMENT"}, outcomes
    second.close()
    third = launch()
    assert third.do("me.resume()") == [["last", 1, ALL_FILES]] * 6
