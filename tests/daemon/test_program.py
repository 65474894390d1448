"""ckptd as a program: its flags, its start and end, and what it reports."""

from __future__ import annotations

import json
import os
import pathlib
import re
import select
import shlex
import signal
import socket
import stat
import subprocess
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from harness import TIMEOUT

VERSION = (pathlib.Path(__file__).resolve().parents[2] / "VERSION").read_text().strip()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT)


# ---- Flags


def test_version_option_prints_version(daemon: Any) -> None:
    done = run(daemon.arguments()[0], "--version")
    assert (done.returncode, done.stdout) == (0, f"ckptd {VERSION}\n")


def test_valid_configuration_passes_check(daemon: Any) -> None:
    done = run(*daemon.arguments("--check_config"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_invalid_configuration_names_place_and_exits_2(daemon: Any) -> None:
    config = daemon.folder / "bad.txtpb"
    config.write_text("pool { bytes: 67108864 }\nlog { levle: 'info' }\n")
    for flags in (["--check_config"], []):
        done = run(daemon.arguments()[0], f"--config={config}", *flags)
        assert done.returncode == 2
        assert f"{config}:2:12: " in done.stderr and "levle" in done.stderr


def test_every_value_out_of_range_is_named(daemon: Any) -> None:
    done = run(*daemon.arguments("--check_config", "--metrics_port=70000", "--log_level=loud"))
    assert done.returncode == 2
    assert "metrics.port: 70000 is not in [-1, 65535]" in done.stderr
    assert 'log.level: "loud"' in done.stderr


@pytest.mark.parametrize("flag", ["--bogus", "--config=/nonexistent", "--ready_fd=x", "--config=/"])
def test_wrong_usage_exits_2(daemon: Any, flag: str) -> None:
    done = run(daemon.arguments()[0], flag)
    assert done.returncode == 2 and done.stderr


# ---- In a terminal


@pytest.fixture
def local(daemon: Any) -> Callable[..., None]:
    """Starts the daemon as `ckptd --local`, behind a command, and takes its endpoint from the line that it prints."""

    def start(*wrapper: str) -> None:
        # The tests themselves may run under nohup.
        command = ["env", "--default-signal=HUP", *wrapper, daemon.arguments()[0]]
        arguments = [*command, "--local", str(daemon.folder / "made/local"), "--pool_bytes=64MiB"]
        with open(daemon.log_path, "ab") as log:
            daemon.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        assert select.select([daemon.process.stdout], [], [], TIMEOUT)[0], f"not ready after {TIMEOUT} s: {daemon.log()}"
        # The daemon keeps its standard output: read the lines, not to the end.
        export, assignment = shlex.split(daemon.process.stdout.readline().decode())
        name, _, daemon.endpoint = assignment.partition("=")
        assert (export, name) == ("export", "CKPTD_ENDPOINT"), daemon.log()
        assert b"Ctrl-C" in daemon.process.stdout.readline()

    return start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_local_daemon_serves_the_line_that_it_prints_until_the_terminal_ends_it(
    daemon: Any, local: Callable[..., None], trainer: Callable[..., Any], number: signal.Signals
) -> None:
    folder, root = daemon.folder / "made/local", daemon.folder / "root"
    root.mkdir()
    local()
    assert daemon.endpoint == f"unix:{folder}/ckptd.sock"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "ckptd.sock").stat().st_mode) == 0o600
    second = run(*daemon.process.args)
    assert second.returncode == 1 and "export" not in second.stdout and str(folder) in second.stderr
    data = os.urandom(20 << 20)
    trainer(daemon, root).seal("step_1", data)
    assert daemon.end(number) == 0
    assert (root / "step_1" / "model.bin").read_bytes() == data


def test_local_daemon_under_nohup_outlives_the_terminal(daemon: Any, local: Callable[..., None]) -> None:
    local("nohup")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_log("read the configuration again")
    assert daemon.end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    "flag",
    ["--private", "--check_config", "--ready_fd=5", "--config=/x", "--socket_path=/x", "--state_directory=/x"],
)
def test_local_daemon_takes_its_folder_alone(daemon: Any, flag: str) -> None:
    done = run(daemon.arguments()[0], "--local", str(daemon.folder / "local"), flag)
    assert done.returncode == 2 and "--local" in done.stderr + done.stdout
    assert not (daemon.folder / "local").exists()


def test_local_daemon_refuses_a_folder_that_others_may_write_to(daemon: Any) -> None:
    folder = daemon.folder / "local"
    folder.mkdir()
    folder.chmod(0o777)
    done = run(daemon.arguments()[0], "--local", str(folder))
    assert done.returncode == 2 and f"{folder} has mode 0777" in done.stderr
    assert not list(folder.iterdir())


def test_local_daemon_refuses_a_path_too_long_for_its_socket_before_it_makes_the_folder(daemon: Any) -> None:
    folder = daemon.folder / ("x" * 99)
    done = run(daemon.arguments()[0], "--local", str(folder))
    assert done.returncode == 2 and str(folder) in done.stderr and "at most 99" in done.stderr
    assert not folder.exists()


@pytest.mark.parametrize("path", ["", "~/ckptd"])
def test_local_daemon_refuses_what_is_not_a_path(daemon: Any, path: str) -> None:
    done = subprocess.run(
        [daemon.arguments()[0], f"--local={path}"], capture_output=True, text=True, timeout=TIMEOUT, cwd=daemon.folder
    )
    assert done.returncode == 2 and "--local" in done.stderr
    assert not (daemon.folder / "~").exists()


# ---- Start and end


def test_sigterm_ends_cleanly_and_removes_sockets(daemon: Any) -> None:
    daemon.start()
    for path in (daemon.socket, pathlib.Path(f"{daemon.socket}.handoff")):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o660
    assert daemon.end() == 0
    assert sorted(path.name for path in daemon.folder.iterdir()) == ["ckptd.txtpb", "log", "state"]


def test_size_with_unit_is_accepted_and_missing_directory_is_noted(daemon: Any) -> None:
    done = run(*daemon.arguments("--check_config", "--pool_bytes=64MiB", "--socket_path=/nowhere/at/all/s"))
    assert (done.returncode, done.stdout) == (0, "ok\n")
    assert "there is no directory /nowhere/at/all yet" in done.stderr
    done = run(*daemon.arguments("--pool_bytes=64MiB", "--socket_path=/nowhere/at/all/s"))
    assert done.returncode == 1 and "its directory is missing: make it" in done.stderr


def test_sighup_reloads_log_level_and_names_what_needs_a_restart(daemon: Any, trainer: Callable[..., Any]) -> None:
    daemon.start()
    root = daemon.folder / "root"
    root.mkdir()
    rank = trainer(daemon, root)
    text = daemon.configuration.read_text()
    daemon.configuration.write_text(text + 'max_sessions: 40\nlog { level: "warning" }\n')
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_log("fields=max_sessions")
    rank.save("quiet", b"x")  # Still the same daemon, which logs no committed checkpoint any more.
    daemon.configuration.write_text("pool { bytes: lots }\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_log("the configuration is not valid, and nothing was changed")
    daemon.configuration.write_text(text)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_log("read the configuration again log_level=info")
    rank.save("loud", b"x")
    daemon.wait_log("tag=loud")
    assert "tag=quiet" not in daemon.log()
    assert daemon.end() == 0


def test_sighup_while_draining_loses_no_sealed_save(daemon: Any, trainer: Callable[..., Any]) -> None:
    daemon.start()
    root = daemon.folder / "root"
    root.mkdir()
    data = os.urandom(20 << 20)
    trainer(daemon, root).seal("step_1", data)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.send_signal(signal.SIGHUP)
    assert daemon.process.wait(TIMEOUT) == 0
    assert (root / "step_1" / "model.bin").read_bytes() == data


def test_second_daemon_on_same_state_directory_is_refused(daemon: Any, other: Any) -> None:
    daemon.start()
    done = run(*other.arguments(f"--state_directory={daemon.folder / 'state'}"))
    assert done.returncode == 1
    assert f"another ckptd uses the state directory {daemon.folder / 'state'}" in done.stderr
    daemon.status()


def test_second_daemon_on_same_socket_is_refused(daemon: Any, other: Any) -> None:
    daemon.start()
    done = run(*other.arguments(f"--socket_path={daemon.socket}"))
    assert done.returncode == 1
    assert f"another process listens on {daemon.socket}" in done.stderr
    daemon.status()
    assert pathlib.Path(f"{daemon.socket}.handoff").exists()


def test_starts_over_leftovers_of_killed_daemon(daemon: Any) -> None:
    daemon.start()
    instance = daemon.status().daemon_instance
    daemon.end(signal.SIGKILL)
    assert daemon.socket.exists()
    daemon.start()
    assert daemon.status().daemon_instance != instance


def test_taken_metrics_port_is_reported_and_used_when_it_is_free(daemon: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon.start(f"--metrics_port={port}")
        daemon.wait_log("/metrics is not served: another program has the port")
        assert f"127.0.0.1:{port}" in daemon.log() and "metrics.port" in daemon.log()
        daemon.status()
    daemon.wait_log("/metrics is served")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT) as answer:
        assert b"ckptd_pool_total_bytes" in answer.read()


def test_daemon_serves_without_metrics_if_their_token_is_readable_by_others(daemon: Any) -> None:
    token = daemon.folder / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o644)
    config = daemon.configuration
    config.write_text(config.read_text().replace("port: -1", f'port: 0 token_file: "{token}"'))
    daemon.start()
    daemon.status()
    daemon.wait_log("/metrics is not served")
    assert f"run `chmod 600 {token}`" in daemon.log() and "metrics_port=" not in daemon.log()


# ---- The service manager


@pytest.mark.parametrize("abstract", [False, True])
def test_service_manager_receives_every_notification(daemon: Any, abstract: bool) -> None:
    name = f"@ckptd-test-{os.getpid()}" if abstract else str(daemon.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1) if abstract else name)
        manager.settimeout(TIMEOUT)
        daemon.start(environment={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000000"})
        heard: list[str] = []
        while heard.count("WATCHDOG=1") < 3 or not any(word.startswith("STATUS=SERVING: 0 runs") for word in heard):
            heard += manager.recv(4096).decode().split("\n")
        assert "READY=1" in heard and "STOPPING=1" not in heard
        assert daemon.end() == 0
        manager.settimeout(0)
        with pytest.raises(BlockingIOError):
            while True:
                heard += manager.recv(4096).decode().split("\n")
        assert "STOPPING=1" in heard


def test_stopped_daemon_does_not_feed_watchdog(daemon: Any) -> None:
    name = str(daemon.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(TIMEOUT)
        daemon.start(environment={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
        while manager.recv(4096) != b"WATCHDOG=1":
            pass
        daemon.process.send_signal(signal.SIGSTOP)
        manager.settimeout(2)
        with pytest.raises(TimeoutError):
            while True:
                manager.recv(4096)
        daemon.process.send_signal(signal.SIGCONT)
        manager.settimeout(TIMEOUT)
        while manager.recv(4096) != b"WATCHDOG=1":
            pass


# ---- Health, reflection, metrics, log


def raw(channel: grpc.Channel, method: str, request: bytes) -> bytes:
    answer: bytes = channel.unary_unary(method, lambda b: b, lambda b: b)(request, timeout=TIMEOUT)
    return answer


def test_health_and_reflection_services_answer(daemon: Any) -> None:
    daemon.start()
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        for service in (b"", b"ckptd.v1.Checkpoints", b"ckptd.v1.Admin"):
            request = b"\x0a" + bytes([len(service)]) + service if service else b""
            assert raw(channel, "/grpc.health.v1.Health/Check", request) == b"\x08\x01"
        reflect = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", lambda b: b, lambda b: b
        )
        answer = next(reflect(iter([b"\x3a\x01*"]), timeout=TIMEOUT))
        assert b"ckptd.v1.Checkpoints" in answer and b"ckptd.v1.Admin" in answer


def metrics(daemon: Any) -> str:
    port = re.findall(r"metrics_port=(\d+)", daemon.log())[-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = answer.read().decode()
        return text


def test_metrics_count_a_save(daemon: Any, trainer: Callable[..., Any]) -> None:
    daemon.start("--metrics_port=0")
    root = daemon.folder / "root"
    root.mkdir()
    rank = trainer(daemon, root)
    rank.save("step_7", b"x" * 5000, step=7)
    text = metrics(daemon)
    labels = f'{{run="{rank.run}"}}'
    assert str(root) not in text
    assert f"ckptd_last_committed_sequence{labels} 1\n" in text
    assert f"ckptd_last_committed_step{labels} 7\n" in text
    assert 'ckptd_saves_total{outcome="committed",reason=""} 1\n' in text
    assert "ckptd_written_bytes_total 5000\n" in text
    assert re.search(rf'ckptd_root_io_backend_info{{run="{rank.run}",backend="(io_uring|threads)"}} 1\n', text)
    assert "ckptd_pool_total_bytes" in text and "ckptd_save_committed_seconds_count 1\n" in text


def test_metrics_are_off_when_port_is_minus_one(daemon: Any) -> None:
    daemon.start()
    assert "metrics_port" not in daemon.log()


def test_checkpoint_is_one_log_line(daemon: Any, trainer: Callable[..., Any]) -> None:
    config = daemon.configuration
    config.write_text(config.read_text() + 'log { format: "json" }\n')
    daemon.start()
    root = daemon.folder / "root"
    root.mkdir()
    rank = trainer(daemon, root)
    rank.save("step_7", b"x" * 5000, step=7)
    lines = [json.loads(line) for line in daemon.log().splitlines()]
    (line,) = [line for line in lines if line.get("tag") == "step_7"]
    assert line["level"] == "info" and line["outcome"] == "committed" and line["reason"] == ""
    assert (line["run"], line["step"], line["sequence"], line["attempt"]) == (rank.run, 7, 1, 1)
    assert line["bytes"] == 5000 and line["slowest_rank"] == 0
    assert 0 <= line["staged_ms"] <= line["written_ms"] <= line["committed_ms"]
    assert "stall_ms" in line


# ---- What must not be lost


def test_sealed_save_is_published_before_exit(daemon: Any, trainer: Callable[..., Any]) -> None:
    daemon.start()
    root = daemon.folder / "root"
    root.mkdir()
    data = os.urandom(20 << 20)
    trainer(daemon, root).seal("step_1", data)
    assert daemon.end() == 0
    assert (root / "step_1" / "model.bin").read_bytes() == data
    assert (root / "step_1" / ".ckptd" / "manifest").exists()


def test_known_roots_are_recovered_at_start(daemon: Any, trainer: Callable[..., Any]) -> None:
    daemon.start()
    root = daemon.folder / "root"
    root.mkdir()
    trainer(daemon, root).save("step_1", b"x" * 5000)
    daemon.end(signal.SIGKILL)
    daemon.start()
    (known,) = daemon.status().runs
    assert known.latest.tag == "step_1" and known.path == str(root)


def test_sealed_save_lost_with_killed_daemon_is_failed_in_history(daemon: Any, trainer: Callable[..., Any]) -> None:
    daemon.start()
    root = daemon.folder / "root"
    root.mkdir()
    rank = trainer(daemon, root)
    rank.save("step_1", b"x" * 5000)
    rank.seal("step_2", os.urandom(40 << 20))
    daemon.end(signal.SIGKILL)
    assert not (root / "step_2").exists(), "the daemon was too quick for this test"
    daemon.start()
    (known,) = daemon.status().runs
    assert (known.latest.tag, known.last_failure.tag) == ("step_1", "step_2")
    assert known.last_failure.error.reason == "STAGED_LOST" and "daemon ended" in known.last_failure.error.message


def test_missing_root_does_not_block_recovery_of_others(daemon: Any, trainer: Callable[..., Any]) -> None:
    daemon.start()
    for name in ("one", "two"):
        (daemon.folder / name).mkdir()
        trainer(daemon, daemon.folder / name).save("step_1", b"x")
    assert daemon.end() == 0
    (daemon.folder / "one").rename(daemon.folder / "moved")
    daemon.start()
    daemon.wait_log("a known root is not recovered")
    assert [known.path for known in daemon.status().runs] == [str(daemon.folder / "two")]


# ---- A private daemon


def test_private_daemon_ends_when_last_keeper_leaves(daemon: Any, session: Callable[..., Any]) -> None:
    daemon.start("--private")
    keepers = [session(daemon, keeper=True) for _ in range(2)]
    keepers[0].goodbye()
    daemon.status()
    assert daemon.process.poll() is None
    keepers[1].goodbye()
    assert daemon.wait() == 0
    assert "the last keeper has left" in daemon.log()


@pytest.mark.parametrize("how", ["goodbye", "close"])
def test_private_daemon_serves_who_is_connected_after_the_last_keeper_has_left(
    how: str, daemon: Any, session: Callable[..., Any]
) -> None:
    daemon.start("--private")
    keeper, other = session(daemon, keeper=True), session(daemon)
    keeper.goodbye()
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(3)  # Longer than the daemon takes to look.
    getattr(other, how)()
    assert daemon.wait() == 0
    assert "the last keeper has left" in daemon.log()


def test_private_daemon_outlives_killed_users(daemon: Any, session: Callable[..., Any]) -> None:
    daemon.start("--private", "--idle_timeout=2")
    keeper = session(daemon, keeper=True)
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(4)  # Longer than the idle timeout: the daemon has a user.
    keeper.close()
    assert daemon.wait() == 0
    assert "this private daemon had no session for idle_timeout" in daemon.log()


def test_private_daemon_publishes_sealed_save_before_exit(
    daemon: Any, session: Callable[..., Any], trainer: Callable[..., Any]
) -> None:
    daemon.start("--private")
    root = daemon.folder / "root"
    root.mkdir()
    data = os.urandom(20 << 20)
    keeper = session(daemon, keeper=True)
    saver = trainer(daemon, root)
    saver.seal("step_1", data)
    keeper.goodbye()
    saver.close()
    assert daemon.wait() == 0
    assert (root / "step_1" / "model.bin").read_bytes() == data


def test_service_daemon_outlives_its_keepers(daemon: Any, session: Callable[..., Any]) -> None:
    daemon.start("--idle_timeout=0")
    session(daemon, keeper=True).goodbye()
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(3)
    daemon.status()
