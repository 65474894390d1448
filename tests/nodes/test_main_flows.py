"""What a job on two nodes does in a day, on the file system that the nodes share. test_file_systems.py runs these tests on each
network file system.
"""

import contextlib
import signal

import pytest
from cluster import LOSS_SECONDS, PROMPT_SECONDS, Cluster
from launches import Launch, assert_all_hear, words
from places import best_places
from rank_program import content

import ckptd
from harness import closing, tags, temporary_folder, until, until_equal

ALL_FILES = [f"rank{rank}.raw" for rank in range(4)]


@contextlib.contextmanager
def two_nodes(killable):
    with closing(best_places()) as places, temporary_folder() as folder:
        with closing(Cluster(folder, places, killable, ("gpu1", "gpu2"))) as made:
            yield made


@pytest.fixture(scope="module")
def pair():
    """For all tests that leave the daemons running."""
    with two_nodes(killable=False) as made:
        yield made


@pytest.fixture
def root(pair, request):
    yield str(pair.shared / request.node.name)
    if getattr(request.node, "failed", False):
        print(pair.logs())


def launched(name, root, nodes, ranks_per_node=2, keep=None):
    return closing(Launch(f"{root}/{name}", root, nodes, ranks_per_node, keep))


def assert_committed(heard):
    assert_all_hear(heard, "committed", [], PROMPT_SECONDS)


def test_two_nodes_save_and_launches_with_other_ranks_on_them_resume(pair, root):
    with launched("first", root, pair.nodes) as job:
        for step in (1, 2):
            assert_committed(job.save(f"step_{step}", step))
    assert tags(root) == ["step_2", "step_1"]
    for node in pair.nodes:
        node.ask("verify", root)
    names = {node.listed(root)[0]["name"] for node in pair.nodes}
    assert len(names) == 1, f"an operator would find nothing on the other node: {names}"
    with launched("second", root, pair.nodes, ranks_per_node=1) as job:
        assert job.do("me.resume()") == [["step_2", 2, ALL_FILES]] * 2
        assert_committed(job.save("step_3", 3))
    with launched("third", root, pair.nodes[1:], ranks_per_node=1) as job:
        assert job.do("me.resume()") == [["step_3", 3, ALL_FILES[:2]]]


def test_ranks_of_both_nodes_hear_at_once_of_a_commit(pair, root):
    """Both have the names in the root in their caches then, as they were before it."""
    with launched("first", root, pair.nodes, ranks_per_node=1) as job:
        assert_committed(job.save("step_1", 1))
        for node in pair.nodes:
            until_equal(lambda node=node: node.tags(root), ["step_1"], f"{node.name} to list the checkpoint")
        heard = job.save("step_2", 2)
        assert_committed(heard)
        seconds = [outcome.seconds for outcome in heard.values()]
        assert max(seconds) - min(seconds) < 3, heard


def test_coordinator_killed_in_a_publish_is_followed_by_the_other_node():
    with two_nodes(killable=True) as cluster:
        root = cluster.root
        with launched("first", root, cluster.nodes, ranks_per_node=1) as job:
            assert_committed(job.save("step_1", 1))
            job.do("me.begin('step_2', 2)")
            node = cluster.coordinator()
            (other,) = cluster.followers()
            node.killer.arm(rf"^renameat2? {root}/\.ckptd/shared/inflight/[^/]+ -> {root}/step_2$")
            job.start("me.outcome()")
            until(lambda: node.killer.hit, "the rename that publishes", LOSS_SECONDS)
            node.wait()
            assert tags(root) == ["step_1"]
            assert_all_hear(job.outcomes(job.ranks_on(other)), "committed", [], LOSS_SECONDS)
            node.start()
            assert words(job.outcomes(job.ranks_on(node))) == {"committed"}
            assert tags(root) == ["step_2", "step_1"]
        cluster.wait_until_registered()
        with launched("second", root, cluster.nodes, ranks_per_node=1) as job:
            assert job.do("me.resume()") == [["step_2", 2, ALL_FILES[:2]]] * 2


def test_retention_and_deletion_remove_checkpoints_that_both_nodes_list_no_more(pair, root):
    with launched("first", root, pair.nodes, ranks_per_node=1, keep=2) as job:
        for step in (1, 2, 3):
            assert_committed(job.save(f"step_{step}", step))
        until_equal(lambda: tags(root), ["step_3", "step_2"], "retention to remove what it does not keep")
        for node in pair.nodes:
            until_equal(lambda node=node: node.tags(root), ["step_3", "step_2"], f"{node.name} to list that")
        for node in pair.nodes:
            if node.coordinator(root) != node.name:
                node.ask("delete", f"{root}/step_2")
        assert tags(root) == ["step_3"]
        for node in pair.nodes:
            until_equal(lambda node=node: node.tags(root), ["step_3"], f"{node.name} to list that")


def test_save_of_the_same_tag_replaces_the_checkpoint_on_both_nodes(pair, root):
    with launched("first", root, pair.nodes, ranks_per_node=1) as job:
        for step in (1, 2):
            assert_committed(job.save("last", step))
    with launched("second", root, pair.nodes, ranks_per_node=1) as job:
        assert job.do("me.resume()") == [["last", 2, ALL_FILES[:2]]] * 2
    with ckptd.open_root(root).open("last") as checkpoint:
        assert [bytes(checkpoint.read(name)) for name in ALL_FILES[:2]] == [content(2, rank) for rank in (0, 1)]


def test_all_daemons_start_again_and_the_job_goes_on(pair, root):
    with launched("first", root, pair.nodes, ranks_per_node=1) as job:
        assert_committed(job.save("step_1", 1))
        for node in pair.nodes:
            node.end(signal.SIGKILL)
        for node in pair.nodes:
            node.start()
        pair.wait_until_registered()
        assert_committed(job.save("step_2", 2))
    with launched("second", root, pair.nodes, ranks_per_node=1) as job:
        assert job.do("me.resume()") == [["step_2", 2, ALL_FILES[:2]]] * 2

