"""The user that docs/security.md gives the daemons in etcd, with its own commands."""

import pathlib
import re

from etcd_members import CLIENT_PORT
from launches import Launch, words
from test_certificates import reload_all
from test_etcd_restore import documented, run_on_member

from harness import closing

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/security.md"


def commands_with(etcd, folder):
    """The commands of the page, with the addresses and files of this test. Its members have no certificates."""
    commands = re.sub(r" ETCDCTL_CACERT=\S+", "", documented("user", PAGE)).replace("https://", "http://")
    commands = commands.replace("10.0.0.1:2379", f"{etcd.addresses[0]}:{CLIENT_PORT}")
    for place in ("/etc/ckptd/", "/root/"):
        commands = commands.replace(place, f"{folder}/")
    return commands


def as_the_user(node, password):
    """Adds to its configuration what the page says."""
    added = re.search(r'`(etcd_user: "ckptd" etcd_password_file: "[^"]*")`', PAGE.read_text())
    assert added, "docs/security.md does not say what goes into the block cluster"
    text = node.configuration.read_text()
    line = added[1].replace("/etc/ckptd/etcd.password", str(password))
    node.configuration.write_text(text.replace("cluster {", f"cluster {{ {line}", 1))


def test_daemons_with_the_documented_user_save_in_an_etcd_that_asks_for_passwords(cluster, tmp_path):
    run_on_member(cluster.etcd, commands_with(cluster.etcd, tmp_path))
    root = (tmp_path / "etcd-root.password").read_text().strip()
    stranger = "if etcdctl get /ckptd/ --prefix; then echo etcd asks for no password; exit 1; fi"
    endpoint = f"export ETCDCTL_ENDPOINTS=http://{cluster.etcd.addresses[0]}:{CLIENT_PORT}"
    run_on_member(cluster.etcd, f"{endpoint}\n{stranger}\netcdctl --user=root:{root} user get ckptd")
    for node in cluster.nodes:
        as_the_user(node, tmp_path / "etcd.password")
    reload_all(cluster, "new certificates, key or password for etcd are in use")
    with closing(Launch("first", cluster.root, cluster.nodes)) as job:
        assert words(job.save("step_1", 1)) == {"committed"}
    # A daemon that starts knows nothing but the file.
    for node in cluster.nodes:
        assert node.end() == 0, node.log()
        node.start()
    cluster.wait_until_registered()
    with closing(Launch("second", cluster.root, cluster.nodes)) as job:
        assert [found[0] for found in job.do("me.resume()")] == ["step_1"] * 6
