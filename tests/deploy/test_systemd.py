"""deploy/ under a real systemd: the promises of the unit, each seen to be kept on the node that conftest.py boots."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from harness import until

# The first run installs the node's Debian.
pytestmark = pytest.mark.timeout(900)

SOCKETS = ("/run/ckptd/ckptd.sock", "/run/ckptd/ckptd.sock.handoff")
SEGMENTS = 64  # Of the sample's pool: 256 MiB.
CAP_SETGID, CAP_SETUID, CAP_IPC_LOCK = 6, 7, 14


def join(root: str) -> str:
    return f"run = ckptd.connect().run({root!r}, rank=0, world_size=1)"


def save(tag: str) -> str:
    return f"run.save({tag!r}, files={{'model.pt': {{'weight': torch.ones(1 << 18)}}}}).wait('committed', 60)"


def whole_checkpoints(node: Any, root: str) -> list[str]:
    """Newest first, each byte of them checked; this needs no daemon."""
    verified = json.loads(node.run("ckptctl", "verify", "--output=json", root, user="ada").stdout)
    return [checkpoint["tag"] for checkpoint in verified["checkpoints"] if checkpoint["ok"]]


def test_it_is_started_when_it_serves(node: Any, service: Any) -> None:
    service.start()
    assert node.run("ckptctl", "status").stdout.startswith("ckptd ")  # At once: that is what Type=notify is for.
    assert [service.show(key) for key in ("Type", "ActiveState", "SubState")] == ["notify", "active", "running"]
    assert "\nserving socket=/run/ckptd/ckptd.sock pool_bytes=268435456 " in service.log()
    until(lambda: service.show("StatusText").startswith("SERVING: 0 runs"), "the summary for systemctl status")


def test_only_the_group_may_connect(node: Any, root: str, service: Any, trainer: Callable[[str], Any]) -> None:
    service.start()
    sockets = node.run("stat", "--format=%U %G %a", *SOCKETS).stdout.splitlines()
    assert sockets == ["root ckptd 660"] * 2
    trainer("ada").do(join(root))
    refused = trainer("eve").fails(join(root))
    assert refused.kind == "Refused" and "in the group that the socket belongs to" in refused.message


def test_it_has_three_of_roots_capabilities(node: Any, service: Any) -> None:
    service.start()
    status = dict(re.findall(r"^(\w+):\t(.*)$", node.run("cat", f"/proc/{service.pid}/status").stdout, re.MULTILINE))
    allowed = 1 << CAP_SETGID | 1 << CAP_SETUID | 1 << CAP_IPC_LOCK
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == allowed
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"


def test_a_users_checkpoints_are_files_of_that_user(
    node: Any, root: str, service: Any, trainer: Callable[[str], Any]
) -> None:
    service.start()
    ada = trainer("ada")
    ada.do(join(root))
    ada.do(save("one"))
    owners = node.run("find", root, "-printf", "%u %g\n").stdout.splitlines()
    assert len(owners) > 5 and set(owners) == {"ada ada"}
    assert node.run("stat", "--format=%a", f"{root}/one/model.pt").stdout == "644\n"  # The trainer's umask.
    listed = json.loads(node.run("ckptctl", "list", "--output=json", root, user="ada").stdout)
    assert [checkpoint["tag"] for checkpoint in listed["checkpoints"]] == ["one"]
    assert whole_checkpoints(node, root) == ["one"]


def test_it_gives_nobody_a_root_that_they_may_not_enter(root: str, service: Any, trainer: Callable[[str], Any]) -> None:
    service.start()
    refused = trainer("ben").fails(join(root))  # Who may connect, but has no right to what is ada's.
    assert refused.reason == "ROOT_UNSUITABLE" and "Permission denied" in refused.message


def test_the_hardening_leaves_the_io_back_end_alone(
    node: Any, root: str, service: Any, trainer: Callable[[str], Any]
) -> None:
    # As a service of the same systemd, for a container's seccomp profile may forbid io_uring to all of them.
    free = ("systemd-run", "--quiet", "--pipe", "--wait", "--uid=ada")
    findings = json.loads(node.run(*free, "ckptctl", "doctor", "--output=json", root).stdout)["findings"]
    expected = next(finding["what"] for finding in findings if finding["subject"] == "file system")
    service.start()
    trainer("ada").do(join(root))
    opened = re.search(r'^root opened .* file_system=(\S+) io_backend=(\S+) cause="(.*?)"', service.log(), re.MULTILINE)
    assert opened and "{}, {}: {}".format(*opened.groups()) == expected


def test_metrics_are_served_on_loopback(node: Any, service: Any) -> None:
    service.start()
    get = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9095/metrics', timeout=30).read().decode())"
    assert "\nckptd_draining 0\n" in node.run("python3", "-c", get).stdout


def test_a_daemon_that_is_killed_is_restarted_and_trainers_go_on(
    node: Any, root: str, service: Any, trainer: Callable[[str], Any]
) -> None:
    service.start()
    ada = trainer("ada")
    ada.do(join(root))
    ada.do(save("one"))
    killed = service.pid
    service.systemctl("kill", "--signal=KILL")
    ada.do(save("two"))
    assert service.show("NRestarts") == "1" and service.pid not in (0, killed)
    assert whole_checkpoints(node, root) == ["two", "one"]


def test_what_is_sealed_outlives_the_daemon_and_its_trainer(
    node: Any, root: str, service: Any, trainer: Callable[[str], Any]
) -> None:
    # One small write after the other, so that a quick disk, too, has work left when the daemon is killed.
    service.configure_sample(chunk_bytes=65536, depth=1)
    service.start()

    def stored() -> int:
        return int(service.show("NFileDescriptorStore"))

    until(lambda: stored() == SEGMENTS + 1, "the segments of the pool and the journal in systemd's store")
    ada = trainer("ada")
    ada.do(join(root))
    ada.do("save = run.save('one', files={'model.bin': bytes(range(256)) * (192 << 12)})")
    killed = service.show("InvocationID")
    service.systemctl("kill", "--signal=KILL")
    ada.close()
    assert whole_checkpoints(node, root) == []
    until(lambda: whole_checkpoints(node, root) == ["one"], "the checkpoint")
    assert service.show("NRestarts") == "1" and service.show("InvocationID") != killed
    assert re.search(r"^the sealed save one of \S+ \(sequence 1\) of an earlier daemon is taken over", service.log(), re.M)
    content = "print(open('%s/one/model.bin', 'rb').read() == bytes(range(256)) * (192 << 12))" % root
    assert node.run("python3", "-c", content, user="ada").stdout == "True\n"
    until(lambda: stored() == SEGMENTS + 1, "a store that holds the new pool and nothing else")
    service.systemctl("stop")
    assert stored() == 0


def test_a_daemon_that_hangs_is_restarted_and_trainers_go_on(
    node: Any, root: str, service: Any, trainer: Callable[[str], Any]
) -> None:
    service.override("WatchdogSec=3s")
    service.start()
    ada = trainer("ada")
    ada.do(join(root))
    ada.do(save("one"))
    hung = service.show("InvocationID")
    service.systemctl("kill", "--signal=STOP")
    ada.do(save("two"))
    assert service.show("NRestarts") == "1"
    assert "Watchdog timeout" in service.log(hung)
    assert whole_checkpoints(node, root) == ["two", "one"]


def test_stop_publishes_what_is_sealed(node: Any, root: str, service: Any, trainer: Callable[[str], Any]) -> None:
    # One small write after the other, so that a quick disk, too, has work left when systemctl comes.
    service.configure_sample(chunk_bytes=65536, depth=1)
    service.start()
    ada = trainer("ada")
    ada.do(join(root))
    ada.do("save = run.save('one', files={'model.bin': bytes(192 << 20)})")
    service.systemctl("stop")
    assert whole_checkpoints(node, root) == ["one"]
    outcome = [service.show(key) for key in ("ActiveState", "Result", "ExecMainStatus")]
    assert outcome == ["inactive", "success", "0"]
    drained = re.search(r"^asked to end.*^checkpoint committed.*^ended$", service.log(), re.MULTILINE | re.DOTALL)
    assert drained, f"nothing was left to drain:\n{service.log()}"


def test_a_bad_configuration_is_said_and_not_tried_again(service: Any) -> None:
    service.configure('log {\n  levle: "info"\n}\n')
    assert service.systemctl("start", check=False).returncode != 0
    # Not "auto-restart", in which it would be until RestartSec is over.
    assert service.show("SubState") == "failed"
    assert [service.show(key) for key in ("Result", "ExecMainStatus", "NRestarts")] == ["exit-code", "2", "0"]
    assert re.search(r"^ckptd: /etc/ckptd/ckptd.txtpb:2:\d+: .*levle", service.log(), re.MULTILINE)
    service.configure_sample()
    service.start()
