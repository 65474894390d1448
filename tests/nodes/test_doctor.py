"""`ckptctl doctor ROOT --nodes` on all nodes at once, on the folder that they share."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

from shared_file_systems import chosen


def examine(cluster, root):
    """The exit status and the answer of each node."""

    def ask(node):
        done = node.ask("--output=json", "doctor", root, f"--nodes={len(cluster.nodes)}", f"--as={node.name}", check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    with ThreadPoolExecutor(len(cluster.nodes)) as threads:
        return list(threads.map(ask, cluster.nodes))


def test_doctors_of_all_nodes_find_the_shared_folder_usable_and_leave_nothing_behind(cluster):
    root = str(cluster.shared / "examined")
    os.mkdir(root)
    answers = examine(cluster, root)
    of_nodes = []
    for status, answer in answers:
        found = {finding["subject"]: finding for finding in answer["findings"]}
        assert found["several nodes"]["what"] == "can use this root", answer
        assert found["shared folder"]["what"] == "in cluster.shared_folders of all nodes", answer
        assert status == 0 and answer["ok"]
        of_nodes.append([found[subject] for subject in ("mounted", "names", "bytes", "sizes", "clocks", "several nodes")])
    assert all(each == of_nodes[0] for each in of_nodes), "all nodes say the same"
    if chosen():
        # MooseFS names no subtype, but its source.
        assert of_nodes[0][0]["what"].startswith(("fuse", "nfs")), of_nodes[0][0]
    assert os.listdir(root) == []


def test_doctor_says_that_the_daemons_do_not_share_a_folder(cluster, tmp_path):
    # On one host all nodes have this folder, too.
    (status, answer), *_ = examine(cluster, str(tmp_path))
    found = {finding["subject"]: finding for finding in answer["findings"]}
    assert status == 1 and "shared folder" in found["several nodes"]["what"]
    for node in cluster.nodes:
        assert node.name in found["shared folder"]["what"]


def test_doctor_names_the_nodes_that_have_come_when_another_one_does_not(cluster):
    alone = cluster.nodes[0].ask("doctor", str(cluster.shared), "--nodes=2", "--as=gpu1", "--timeout=2", check=False)
    assert alone.returncode == 1
    assert "1 of 2 nodes" in alone.stderr and "gpu1" in alone.stderr
    assert ".ckptd-doctor-nodes" not in os.listdir(cluster.shared)
