"""What docs/operations.md tells operators to do when etcd was lost, with its own commands, for a run of three nodes."""

import pathlib
import re
import subprocess
import sys

import pytest
from etcd_members import CLIENT_PORT, PEER_PORT
from launches import Launch, words
from test_operator_settings import pinned

from harness import TIMEOUT, closing, tags, until_equal

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/operations.md"
# tools/setup unpacks it.
ETCDCTL = pathlib.Path(sys.prefix, "debian/etcd-client/usr/bin")


def documented(what, page=PAGE):
    """The commands of a block of the page."""
    match = re.search(rf"^( *)<!-- etcd: {what} -->\n *```sh\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert match, f"{page.name} has no block {what}"
    return match[2]


def run_documented(what, etcd, file, member=0):
    """Runs them on a member. The page has other addresses and files, and the first member's name and address."""
    commands = documented(what)
    its = f"--name=etcd{member + 1}"
    commands = re.sub(r"--name=etcd1\b", its, commands)
    commands = re.sub(r"(--initial-advertise-peer-urls=http://10\.0\.0\.)1:", rf"\g<1>{member + 1}:", commands)
    commands = re.sub(r"\betcd([123])\b", lambda found: f"m{int(found[1]) - 1}", commands)
    for number, address in enumerate(etcd.addresses, 1):
        commands = commands.replace(f"10.0.0.{number}:2379", f"{address}:{CLIENT_PORT}")
        commands = commands.replace(f"10.0.0.{number}:2380", f"{address}:{PEER_PORT}")
    run_on_member(etcd, commands.replace("/backup/etcd.db", str(file)).replace("/var/lib/etcd", str(etcd.data_folder(member))))


def run_on_member(etcd, commands):
    assert "10.0.0." not in commands, commands
    assert (ETCDCTL / "etcdctl").exists(), f"no etcdctl in {ETCDCTL}; run tools/setup"
    done = subprocess.run(
        [*etcd.wrapper, "bash", "-euc", f'PATH="{ETCDCTL}:$PATH"\n{commands}'],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backup", [True, False], ids=["from_the_backup", "without_a_backup"])
def test_nothing_committed_is_lost_when_a_lost_etcd_is_replaced_as_documented(cluster, tmp_path, backup):
    file = tmp_path / "etcd.db"
    with closing(Launch("first", cluster.root, cluster.nodes, keep=2)) as job:
        for step in (1, 2):
            assert words(job.save(f"step_{step}", step)) == {"committed"}
        run_documented("backup", cluster.etcd, file)
        cluster.followers()[0].ask("pin", f"{cluster.root}/step_1")
        for step in (3, 4):
            assert words(job.save(f"step_{step}", step)) == {"committed"}
        # The backup knows step_2 as the latest checkpoint.
        until_equal(lambda: tags(cluster.root), ["step_4", "step_3", "step_1"], "retention to remove step_2")
        job.do("me.begin('step_5', 5)")
        cluster.etcd.lose()
        job.do("me.seal()")  # Durable on all nodes, and decided by none.
    for node in cluster.nodes:
        assert node.end() == 0, node.log()

    for member in range(len(cluster.etcd.addresses)):
        if backup:
            run_documented("restore", cluster.etcd, file, member)
        cluster.etcd.start(member)
    cluster.etcd.leader()
    assert bool(cluster.etcd.count("/ckptd/runs/")) == backup
    for node in cluster.nodes:
        node.start()
    cluster.wait_until_registered()

    with closing(Launch("second", cluster.root, cluster.nodes, keep=2)) as job:
        assert [found[:2] for found in job.do("me.resume()")] == [["step_4", 4]] * 6
        assert words(job.save("step_6", 6)) == {"committed"}
        kept = ["step_6", "step_4", "step_1"]
        until_equal(lambda: tags(cluster.root), kept, "retention to remove step_3")
        for node in cluster.nodes:
            until_equal(lambda node=node: node.tags(cluster.root), kept, f"{node.name} to list them in order")
            assert pinned(node, cluster.root) == ["step_1"]
