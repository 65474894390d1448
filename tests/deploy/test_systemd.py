"""deploy/ under a real systemd: each promise of the unit, checked on the node that conftest.py boots."""

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
SEGMENTS = 64  # Segments in the sample's pool of 256 MiB.
CAP_SETGID, CAP_SETUID, CAP_IPC_LOCK = 6, 7, 14


def join(root: str) -> str:
    return f"run = ckptd.connect().run({root!r}, rank=0, world_size=1)"


def save(tag: str) -> str:
    return f"run.save({tag!r}, files={{'model.pt': {{'weight': torch.ones(1 << 18)}}}}).wait('committed', 60)"


def whole_checkpoints(node: Any, root: str) -> list[str]:
    """Returns the undamaged checkpoints, newest first, after checking every byte; this needs no daemon."""
    verified = json.loads(node.run("ckptctl", "verify", "--output=json", root, user="ada").stdout)
    return [checkpoint["tag"] for checkpoint in verified["checkpoints"] if checkpoint["ok"]]


def test_unit_is_started_once_daemon_serves(node: Any, service: Any) -> None:
    service.start()
    # At once: that is the purpose of Type=notify.
    assert node.run("ckptctl", "status").stdout.startswith("ckptd ")
    assert [service.show(key) for key in ("Type", "ActiveState", "SubState")] == ["notify", "active", "running"]
    service.await_logged("^serving socket=/run/ckptd/ckptd.sock pool_bytes=268435456 ")
    until(lambda: service.show("StatusText").startswith("SERVING: 0 runs"), "the summary for systemctl status")


def test_only_group_members_can_connect(node: Any, root: str, service: Any, trainer: Callable[[str], Any]) -> None:
    service.start()
    sockets = node.run("stat", "--format=%U %G %a", *SOCKETS).stdout.splitlines()
    assert sockets == ["root ckptd 660"] * 2
    trainer("ada").do(join(root))
    refused = trainer("eve").fails(join(root))
    assert refused.kind == "Refused" and "in the group that the socket belongs to" in refused.message


def test_daemon_has_three_capabilities(node: Any, service: Any) -> None:
    service.start()
    status = dict(re.findall(r"^(\w+):\t(.*)$", node.run("cat", f"/proc/{service.pid}/status").stdout, re.MULTILINE))
    allowed = 1 << CAP_SETGID | 1 << CAP_SETUID | 1 << CAP_IPC_LOCK
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == allowed
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"


def test_checkpoint_files_belong_to_their_user(
    node: Any, root: str, service: Any, trainer: Callable[[str], Any]
) -> None:
    service.start()
    ada = trainer("ada")
    ada.do(join(root))
    ada.do(save("one"))
    owners = node.run("find", root, "-printf", "%u %g\n").stdout.splitlines()
    assert len(owners) > 5 and set(owners) == {"ada ada"}
    # With the trainer's umask.
    assert node.run("stat", "--format=%a", f"{root}/one/model.pt").stdout == "644\n"
    listed = json.loads(node.run("ckptctl", "list", "--output=json", root, user="ada").stdout)
    assert [checkpoint["tag"] for checkpoint in listed["checkpoints"]] == ["one"]
    assert whole_checkpoints(node, root) == ["one"]


def test_user_cannot_attach_root_it_may_not_enter(root: str, service: Any, trainer: Callable[[str], Any]) -> None:
    service.start()
    refused = trainer("ben").fails(join(root))  # Ben may connect, but has no access to ada's folder.
    assert refused.reason == "ROOT_UNSUITABLE" and "Permission denied" in refused.message


def test_hardening_keeps_io_uring_available(
    node: Any, root: str, service: Any, trainer: Callable[[str], Any]
) -> None:
    # As a service of the same systemd, because a container's seccomp profile may forbid io_uring to all of
    # them.
    free = ("systemd-run", "--quiet", "--pipe", "--wait", "--uid=ada")
    findings = json.loads(node.run(*free, "ckptctl", "doctor", "--output=json", root).stdout)["findings"]
    expected = next(finding["what"] for finding in findings if finding["subject"] == "file system")
    service.start()
    trainer("ada").do(join(root))
    opened = service.await_logged(r'^root opened .* file_system=(\S+) io_backend=(\S+) cause="(.*?)"')
    assert "{}, {}: {}".format(*opened.groups()) == expected


def test_metrics_are_served_on_loopback(node: Any, service: Any) -> None:
    service.start()
    get = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9095/metrics', timeout=30).read().decode())"
    assert "\nckptd_draining 0\n" in node.run("python3", "-c", get).stdout


def test_killed_daemon_is_restarted_and_trainers_continue(
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


def test_sealed_save_survives_daemon_and_trainer(
    node: Any, root: str, service: Any, trainer: Callable[[str], Any]
) -> None:
    # One small write at a time, so that even a fast disk has work left when the daemon is killed.
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
    service.await_logged(r"^the sealed save one of \S+ \(sequence 1\) of an earlier daemon is taken over")
    content = "print(open('%s/one/model.bin', 'rb').read() == bytes(range(256)) * (192 << 12))" % root
    assert node.run("python3", "-c", content, user="ada").stdout == "True\n"
    until(lambda: stored() == SEGMENTS + 1, "a store that holds the new pool and nothing else")
    service.systemctl("stop")
    assert stored() == 0


def test_hung_daemon_is_restarted_and_trainers_continue(
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
    service.await_logged("Watchdog timeout", hung)
    assert whole_checkpoints(node, root) == ["two", "one"]


def test_stop_publishes_sealed_save(node: Any, root: str, service: Any, trainer: Callable[[str], Any]) -> None:
    # One small write at a time, so that even a fast disk has work left when the service is stopped.
    service.configure_sample(chunk_bytes=65536, depth=1)
    service.start()
    ada = trainer("ada")
    ada.do(join(root))
    ada.do("save = run.save('one', files={'model.bin': bytes(192 << 20)})")
    service.systemctl("stop")
    assert whole_checkpoints(node, root) == ["one"]
    outcome = [service.show(key) for key in ("ActiveState", "Result", "ExecMainStatus")]
    assert outcome == ["inactive", "success", "0"]
    # A save was left to drain.
    service.await_logged(r"^asked to end[\s\S]*^checkpoint committed[\s\S]*^ended$")


def test_invalid_configuration_is_reported_and_not_retried(service: Any) -> None:
    service.configure('log {\n  levle: "info"\n}\n')
    assert service.systemctl("start", check=False).returncode != 0
    # Not "auto-restart", the state until RestartSec has passed.
    assert service.show("SubState") == "failed"
    assert [service.show(key) for key in ("Result", "ExecMainStatus", "NRestarts")] == ["exit-code", "2", "0"]
    service.await_logged(r"^ckptd: /etc/ckptd/ckptd.txtpb:2:\d+: .*levle")
    service.configure_sample()
    service.start()
