"""Certificates of the nodes that expire, or are renewed, while a job saves."""

import signal
import time

from certificates import Authority
from cluster import LOSS_SECONDS, NAMES, PROMPT_SECONDS, SLOWNESS, Cluster
from launches import Launch, assert_all_hear, words
from test_what_is_removed import restart_daemons

from harness import closing, tags, temporary_folder, until

VALID_SECONDS = 20 if SLOWNESS == 1 else 120  # Three daemons start in that time, and save.


def test_nodes_whose_certificates_expire_go_on_until_they_connect_anew(places):
    with temporary_folder() as folder:
        authority = Authority(folder / "certificates")
        for name in NAMES:
            ends = authority.sign(name, VALID_SECONDS)
        with closing(Cluster(folder, places, authority=authority)) as cluster:
            with closing(Launch("first", cluster.root, cluster.nodes)) as job:
                assert_all_hear(job.save("step_1", 1), "committed", [], PROMPT_SECONDS)
                until(lambda: time.time() > ends.timestamp() + 1, "the end of the certificates", VALID_SECONDS + 2)
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


def reload_all(cluster, text):
    """SIGHUP for every daemon; returns when each has logged the text since."""
    before = {node: len(node.log()) for node in cluster.nodes}
    for node in cluster.nodes:
        node.process.send_signal(signal.SIGHUP)
    for node in cluster.nodes:
        until(lambda node=node: text in node.log()[before[node] :], f"{text!r} in the log of {node.name}", PROMPT_SECONDS)


def test_certificates_that_are_renewed_on_disk_are_taken_at_a_reload(places):
    with temporary_folder() as folder:
        authority = Authority(folder / "certificates")
        for name in NAMES:
            ends = authority.sign(name, 2 * VALID_SECONDS)
        with closing(Cluster(folder, places, authority=authority)) as cluster:
            with closing(Launch("first", cluster.root, cluster.nodes)) as job:
                assert_all_hear(job.save("step_1", 1), "committed", [], PROMPT_SECONDS)
                # What etcd does not accept is not taken: certificates of somebody else.
                kept = {name: (authority.certificate(name).read_bytes(), authority.key(name).read_bytes()) for name in NAMES}
                stranger = Authority(folder / "stranger")
                for name in NAMES:
                    stranger.sign(name, 3600)
                    authority.certificate(name).write_bytes(stranger.certificate(name).read_bytes())
                    authority.key(name).write_bytes(stranger.key(name).read_bytes())
                reload_all(cluster, "for etcd stay as they were")
                for name in NAMES:
                    authority.certificate(name).write_text("not a certificate")
                reload_all(cluster, "nothing was changed")
                assert all("etcd_certificate_file" in node.log() for node in cluster.nodes)
                for name, (certificate, key) in kept.items():
                    authority.certificate(name).write_bytes(certificate)
                    authority.key(name).write_bytes(key)
                reload_all(cluster, "read the configuration again")
                assert all("are in use" not in node.log() for node in cluster.nodes)
                for name in NAMES:
                    authority.sign(name, 3600)
                reload_all(cluster, "new certificates, key or password for etcd are in use")
                renewed = {node: len(node.log()) for node in cluster.nodes}
                until(lambda: time.time() > ends.timestamp() + 1, "the end of the certificates", 2 * VALID_SECONDS + 2)
                for member in list(cluster.etcd.processes):
                    cluster.etcd.kill(member)
                    cluster.etcd.start(member)
                assert_all_hear(job.save("step_2", 2), "committed", [], PROMPT_SECONDS)
                for node in cluster.nodes:
                    lines = node.log()[renewed[node] :].splitlines()
                    assert [line for line in lines if "bad certificate" in line] == [], node.name
