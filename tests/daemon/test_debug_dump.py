"""`ckptctl debug dump`: one file with what a bug report needs, whatever cannot be had, and no secrets."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from ckptd import LocalDaemon
from ckptd.local_daemon import find_program

from harness import TIMEOUT, ckptctl

SECTIONS = [
    "versions",
    "status",
    "sessions",
    "configuration in force",
    "configuration file",
    "environment of the daemon",
    "environment of ckptctl",
    "log",
    "counters",
    "process",
    "threads",
    "control group",
    "machine",
    "mounts",
]


def dump(daemon: Any, environment: dict[str, str] | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the sections that are there, and the reasons of the others."""
    file = daemon.folder / "dump.txt"
    file.unlink(missing_ok=True)
    done = subprocess.run(
        [find_program("ckptctl"), f"--endpoint={daemon.endpoint}", "debug", "dump", f"--output_file={file}"]
        + ["--output=json", "--timeout=10"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, **(environment or {})},
    )
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["file"] == str(file) and summary["size_bytes"] == file.stat().st_size
    parts = re.split(r"^==== (.*) ====\n", file.read_text(), flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2]))
    assert [section["name"] for section in summary["sections"]] == list(texts) == SECTIONS
    missing = {each["name"]: each["why_not"] for each in summary["sections"] if not each["included"]}
    for name, why in missing.items():
        assert why and texts[name].strip() == f"not here: {why}"
    return {name: text for name, text in texts.items() if name not in missing}, missing


def test_dump_of_a_running_daemon_has_every_section(daemon: Any, trainer: Callable[..., Any]) -> None:
    daemon.start("--metrics_port=0", "--log_level=debug")
    root = daemon.folder / "root"
    root.mkdir()
    trainer(daemon, root).save("step_7", b"x" * 5000, step=7)
    texts, missing = dump(daemon)
    assert missing == {}
    file = daemon.folder / "dump.txt"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    version = ckptctl("--version").stdout.split()[1]
    assert f"ckptctl: {version}" in texts["versions"] and f"daemon: {version}, instance" in texts["versions"]
    assert str(root) in texts["status"] and "step_7" in texts["status"]
    assert 'level: "debug"' in texts["configuration in force"] and "pool {" in texts["configuration file"]
    assert "tag=step_7" in texts["log"] and f"from {daemon.log_path}" in texts["log"]
    assert 'ckptd_saves_total{outcome="committed",reason=""} 1\n' in texts["counters"]
    assert "--metrics_port=0" in texts["process"] and "Max open files" in texts["process"]
    assert "ckptd-engine" in texts["threads"]
    assert (
        "io_uring" in texts["machine"]
        and "huge pages" in texts["machine"]
        and os.uname().release in texts["machine"]
    )
    assert re.search(rf"^{root} +\w", texts["mounts"], re.MULTILINE)


def test_no_secret_is_in_a_dump(daemon: Any) -> None:
    def file(name: str, text: str) -> pathlib.Path:
        path = daemon.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    password = file("password", "etcd-hunter2\n")
    token = file("token", "metrics-hunter2-0123456789\n")
    credentials = file(
        "aws", "[default]\naws_access_key_id = AKIAHUNTER2\naws_secret_access_key = bucket/hunter2+\n"
    )
    text = daemon.configuration.read_text().replace("port: -1", f'port: 0 token_file: "{token}"')
    daemon.configuration.write_text(
        f"# The password is comment-hunter2.\n{text}"
        'cluster { node_name: "n" etcd_endpoints: "http://127.0.0.1:9" etcd_user: "me"  # comment-hunter2\n'
        f'  etcd_password_file: "{password}" }}\n'
    )
    environment = {
        "AWS_ACCESS_KEY_ID": "AKIAENVHUNTER2",
        "AWS_SECRET_ACCESS_KEY": "environment/hunter2",
        "AWS_SESSION_TOKEN": "session-hunter2",
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
        "AWS_REGION": "eu-north-1",
        "CKPTD_NOBODY_KNOWS": "unknown-hunter2",
        "https_proxy": "http://me:proxy-hunter2@proxy:3128",
        "WANDB_API_KEY": "other-hunter2",
    }
    daemon.start(environment=environment)
    with open(daemon.log_path, "a") as log:
        log.write(
            "etcd-hunter2 and metrics-hunter2-0123456789 and bucket/hunter2+ and AKIAHUNTER2 and environment/hunter2\n"
            "GET /?token=web-hunter2 HTTP/1.1\nAuthorization: Bearer bearer-hunter2\n"
            "https://user:url-hunter2@host/path secret_key=named-hunter2 mounted -o user=a,pass=option-hunter2,rw\n"
            "-----BEGIN PRIVATE KEY-----\npem-hunter2\n-----END PRIVATE KEY-----\n"
        )
    texts, missing = dump(daemon, {**environment, "AWS_SECRET_ACCESS_KEY": "caller-hunter2"})
    assert missing == {}
    whole = (daemon.folder / "dump.txt").read_text()
    assert [line for line in whole.splitlines() if "hunter2" in line.lower()] == []
    # The places of secrets, and what is beside them, are there.
    assert str(password) in texts["configuration in force"] and str(token) in texts["configuration file"]
    assert "AWS_REGION=eu-north-1" in texts["environment of the daemon"]
    assert "AWS_SECRET_ACCESS_KEY=(left out)" in texts["environment of ckptctl"]
    assert "mounted -o user=a,pass=(left out),rw" in texts["log"]
    assert "ckptd_pool_total_bytes" in texts["counters"]


def test_dump_shows_the_configuration_in_force_and_the_file_as_it_is(daemon: Any) -> None:
    daemon.start()
    shown = pathlib.Path(f"{daemon.socket}.config")
    assert stat.S_IMODE(shown.stat().st_mode) == 0o600
    text = daemon.configuration.read_text()
    daemon.configuration.write_text(text + 'max_sessions: 40\nlog { level: "warning" }\n')
    texts, _ = dump(daemon)
    assert (
        "max_sessions: 1024" in texts["configuration in force"]
        and 'level: "info"' in texts["configuration in force"]
    )
    assert "max_sessions: 40" in texts["configuration file"]
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_log("fields=max_sessions")
    texts, _ = dump(daemon)
    assert (
        "max_sessions: 1024" in texts["configuration in force"]
        and 'level: "warning"' in texts["configuration in force"]
    )
    assert daemon.end() == 0
    assert not shown.exists()


def test_dump_has_the_counters_of_a_daemon_that_serves_them_on_a_socket(daemon: Any) -> None:
    text = daemon.configuration.read_text()
    assert "port: -1" in text
    daemon.configuration.write_text(text.replace("port: -1", f'port: -1 socket_path: "{daemon.folder}/m"'))
    daemon.start()
    # A proxy of the environment is not asked.
    texts, _ = dump(daemon, {**os.environ, "http_proxy": "http://127.0.0.1:9"})
    assert "ckptd_roots_degraded 0\n" in texts["counters"]


def test_dump_without_a_daemon_says_why_what_is_missing(daemon: Any) -> None:
    texts, missing = dump(daemon, {"PATH": "/nonexistent"})
    assert "io_uring" in texts["machine"] and "ckptctl: " in texts["versions"]
    for name in ("status", "sessions", "process", "threads", "environment of the daemon"):
        assert str(daemon.socket) in missing[name], name
    assert f"{daemon.socket}.config is not there" in missing["configuration in force"]
    assert f"{daemon.socket}.config is not there" in missing["counters"]
    assert "journalctl" in missing["log"]


def test_dump_of_a_stopped_daemon_has_what_needs_no_answer(daemon: Any) -> None:
    daemon.start("--metrics_port=0")
    daemon.process.send_signal(signal.SIGSTOP)
    file = daemon.folder / "dump.txt"
    arguments = ["debug", "dump", f"--output_file={file}", "--timeout=1", "--output=json"]
    done = ckptctl(*arguments, endpoint=daemon.endpoint)
    sections = {section["name"]: section for section in json.loads(done.stdout)["sections"]}
    assert not sections["status"]["included"] and not sections["counters"]["included"]
    for name in ("configuration in force", "log", "process", "threads", "mounts"):
        assert sections[name]["included"], sections[name]
    assert "T (stopped)" in file.read_text()


def test_dump_of_a_killed_daemon_has_its_last_configuration(daemon: Any) -> None:
    daemon.start()
    daemon.end(signal.SIGKILL)
    texts, missing = dump(daemon)
    assert "bytes: 67108864" in texts["configuration in force"]
    assert "status" in missing


def test_dump_of_a_service_that_has_ended_asks_the_journal(daemon: Any) -> None:
    """It has ended, so that its unit is not known; a stand-in for journalctl says what it was asked."""
    programs = daemon.folder / "programs"
    programs.mkdir()
    journal = programs / "journalctl"
    journal.write_text('#!/bin/sh\necho "asked $*"\n')
    journal.chmod(0o755)
    texts, _ = dump(daemon, {"PATH": f"{programs}:{os.environ['PATH']}"})
    assert "asked --unit=ckptd.service --lines=2000" in texts["log"]


def test_dump_of_a_private_daemon_has_its_log(tmp_path: pathlib.Path) -> None:
    with LocalDaemon(tmp_path / "private", pool_bytes=64 << 20) as local:
        file = tmp_path / "dump.txt"
        done = ckptctl("debug", "dump", f"--output_file={file}", endpoint=local.endpoint)
        text = file.read_text()
        assert f"from {local.log_path}" in text and " serving" in text
        assert done.stdout.startswith(f"{file}: ") and "without secrets" in done.stdout
        assert "without counters: the daemon serves no counters (metrics.port: -1" in done.stdout


def test_dump_overwrites_nothing_and_has_a_name_of_its_own(daemon: Any) -> None:
    (daemon.folder / "kept").write_text("mine")
    done = ckptctl(
        "debug", "dump", f"--output_file={daemon.folder}/kept", endpoint=daemon.endpoint, check=False
    )
    assert done.returncode == 4 and "is there already; remove it, or name another file" in done.stderr
    assert (daemon.folder / "kept").read_text() == "mine"
    done = ckptctl("debug", "dump", "--output_file=/nonexistent/dump", endpoint=daemon.endpoint, check=False)
    assert done.returncode == 1 and "/nonexistent/dump" in done.stderr
    folder = daemon.folder / "here"
    folder.mkdir()
    done = subprocess.run(
        [find_program("ckptctl"), f"--endpoint={daemon.endpoint}", "debug", "dump"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    (made,) = folder.iterdir()
    assert done.returncode == 0 and re.fullmatch(r"ckptd-debug-.+-\d{8}-\d{6}\.txt", made.name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a file of another user")
def test_dump_does_not_take_a_configuration_that_another_user_has_left(daemon: Any) -> None:
    planted = pathlib.Path(f"{daemon.socket}.config")
    planted.write_text("planted")
    shutil.chown(planted, 1234)
    _, missing = dump(daemon)
    assert "of uid 1234" in missing["configuration in force"]
    planted.unlink()
    planted.symlink_to(sys.executable)
    os.chown(planted, 1234, 1234, follow_symlinks=False)
    daemon.start()
    texts, _ = dump(daemon)
    assert "bytes: 67108864" in texts["configuration in force"]
    assert pathlib.Path(sys.executable).stat().st_size > 1000
