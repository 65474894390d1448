"""Certificates of the nodes that expire while a job saves."""

import time

from certificates import Authority
from cluster import LOSS_SECONDS, NAMES, PROMPT_SECONDS, Cluster
from launches import Launch, assert_all_hear, words
from test_what_is_removed import restart_daemons

from harness import closing, tags, temporary_folder, until

VALID_SECONDS = 20


def test_nodes_whose_certificates_expire_go_on_until_they_connect_anew(places):
    with temporary_folder() as folder:
        authority = Authority(folder / "certificates")
        for name in NAMES:
            ends = authority.sign(name, VALID_SECONDS)
        with closing(Cluster(folder, places, authority=authority)) as cluster:
            with closing(Launch("first", cluster.root, cluster.nodes)) as job:
                assert_all_hear(job.save("step_1", 1), "committed", [], PROMPT_SECONDS)
                until(lambda: time.time() > ends.timestamp() + 1, "the end of the certificates")
                assert_all_hear(job.save("step_2", 2), "committed", [], PROMPT_SECONDS)
                for member in list(cluster.etcd.processes):
                    cluster.etcd.kill(member)
                    cluster.etcd.start(member)
                for node in cluster.nodes:
                    until(lambda node=node: not node.is_registered(), f"the end of {node.name}'s lease", LOSS_SECONDS)
                job.start("me.save('step_3', 3, timeout=5)")
                heard = job.outcomes()
                assert words(heard) == {"LEDGER_UNAVAILABLE"}, heard
                assert all("bad certificate" in node.log() for node in cluster.nodes)
            assert tags(cluster.root) == ["step_2", "step_1"]
            for name in NAMES:
                authority.sign(name, 3600)
            restart_daemons(cluster)
            with closing(Launch("second", cluster.root, cluster.nodes)) as job:
                assert [found[0] for found in job.do("me.resume()")] == ["step_2"] * 6
                assert_all_hear(job.save("step_4", 4), "committed", [], PROMPT_SECONDS)
