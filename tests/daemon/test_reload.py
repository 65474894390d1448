"""SIGHUP: what a daemon takes from its configuration while it runs, what it leaves for a restart, and what it says of both."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import uuid
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from ckptd.v1 import messages_pb2, service_pb2_grpc
from harness import TIMEOUT, until


def reload(daemon: Any, more: str, replaced: tuple[str, str] = ("", "")) -> str:
    """Adds to the configuration that the daemon was started with; returns what the daemon logs of it."""
    if not hasattr(daemon, "first_text"):
        daemon.first_text = daemon.configuration.read_text()
    daemon.configuration.write_text(daemon.first_text.replace(*replaced) + more)
    before = len(daemon.log())
    daemon.process.send_signal(signal.SIGHUP)
    until(
        lambda: any(
            words in daemon.log()[before:]
            for words in ("read the configuration again", "nothing was changed")
        ),
        "the end of the reload",
    )
    return daemon.log()[before:]


def join(rank: Any, root: pathlib.Path, world_size: int) -> None:
    handle = rank.call(rank.stub.OpenRoot, messages_pb2.OpenRootRequest(path=str(root))).root
    rank.call(
        rank.stub.JoinRun,
        messages_pb2.JoinRunRequest(root=handle, rank=0, world_size=world_size, launch_id=f"of {world_size}"),
    )


def test_limits_count_at_once_and_the_log_says_what_they_were(
    daemon: Any, trainer: Callable[..., Any]
) -> None:
    daemon.start()
    root, other = daemon.folder / "root", daemon.folder / "other"
    root.mkdir()
    other.mkdir()
    rank = trainer(daemon, root)
    log = reload(daemon, "limits { ranks_per_run: 2 }\n")
    assert "a setting has changed field=limits.ranks_per_run was=1024 is=2\n" in log
    assert "when the daemon is restarted" not in log
    with pytest.raises(grpc.RpcError, match="limits.ranks_per_run"):
        join(rank, other, 3)
    log = reload(daemon, "limits { ranks_per_run: 3 sessions_per_uid: 1 }\n")
    assert (
        "field=limits.ranks_per_run was=2 is=3\n" in log
        and "field=limits.sessions_per_uid was=768 is=1\n" in log
    )
    join(rank, other, 3)
    with pytest.raises(grpc.RpcError, match="limits.sessions_per_uid"):
        trainer(daemon, root)
    log = reload(daemon, "limits { calls_per_uid: 1 }\n")  # The stream of the session is one call.
    assert "field=limits.sessions_per_uid was=1 is=768\n" in log
    with pytest.raises(grpc.RpcError, match="limits.calls_per_uid"):
        join(rank, other, 3)
    assert "field=limits.calls_per_uid was=1 is=4096\n" in reload(daemon, "")
    rank.save("step_1", b"x")
    assert "setting has changed" not in reload(daemon, "")


def test_what_needs_a_restart_is_named_and_takes_nothing_else_with_it(daemon: Any) -> None:
    daemon.start()
    log = reload(daemon, "limits { streams_per_connection: 7 saves_per_uid: 5 }\n")
    assert "fields=limits.streams_per_connection\n" in log
    assert "field=limits.saves_per_uid was=256 is=5\n" in log
    # Three quarters of max_sessions is the default of limits.sessions_per_uid: it waits with max_sessions.
    log = reload(daemon, "max_sessions: 40\n")
    assert "has changed field=limits.s" in log and "has changed field=limits.sessions" not in log
    assert "fields=max_sessions," in log and "limits.sessions_per_uid" in log


def pool(daemon: Any) -> Any:
    return daemon.status().pool


def test_pool_grows_and_shrinks_while_ranks_save(daemon: Any, trainer: Callable[..., Any]) -> None:
    daemon.start()
    root = daemon.folder / "root"
    root.mkdir()
    rank = trainer(daemon, root)
    with pytest.raises(grpc.RpcError, match="the whole pool has"):
        rank.save("step_1", bytes(100 << 20))
    log = reload(daemon, "", ("bytes: 67108864", "bytes: 268435456"))
    assert "field=pool.bytes was=67108864 is=268435456\n" in log
    assert "fields=pool.segment_bytes\n" in log  # Its default follows from the budget, at a restart.
    until(lambda: pool(daemon).total_bytes == 256 << 20, "the larger pool")
    rank.save("step_2", bytes(100 << 20))
    assert pool(daemon).lent_bytes + pool(daemon).resident_bytes >= 100 << 20
    reload(daemon, "", ("bytes: 67108864", "bytes: 33554432"))
    until(lambda: pool(daemon).total_bytes == 32 << 20, "the smaller pool")
    assert pool(daemon).lent_bytes + pool(daemon).resident_bytes + pool(daemon).ready_bytes <= 32 << 20
    rank.save("step_3", bytes(20 << 20))


def test_pool_of_less_than_four_segments_is_refused_and_stays_as_it_was(daemon: Any) -> None:
    daemon.configuration.write_text(daemon.configuration.read_text().replace("67108864", "1073741824"))
    daemon.start()  # With segments of 16 MiB.
    log = reload(daemon, "", ("1073741824", "33554432"))
    assert "the pool stays as it was bytes=1073741824" in log and "set it to 67108864 or more" in log
    assert "fields=pool.bytes,pool.segment_bytes," in log
    assert pool(daemon).total_bytes == 1 << 30


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("limits { saves_per_uid: 70000 }", "limits.saves_per_uid: 70000 is not in [1, 65536]"),
        ("limits { saves_per_uid: 9 } log { level: 'loud' }", 'log.level: \\"loud\\" is none of'),
        ("limits { saves_per_uid: many }", "Expected integer"),
    ],
)
def test_a_wrong_file_changes_nothing_and_the_value_is_named(daemon: Any, text: str, wrong: str) -> None:
    daemon.start()
    log = reload(daemon, text)
    assert "nothing was changed" in log and wrong in log and "setting has changed" not in log
    shown = pathlib.Path(f"{daemon.socket}.config").read_text()
    assert "saves_per_uid: 256" in shown


def test_configuration_in_force_is_written_down_anew(daemon: Any) -> None:
    daemon.start()
    shown = pathlib.Path(f"{daemon.socket}.config")
    assert "saves_per_uid: 256" in shown.read_text()
    reload(daemon, "limits { saves_per_uid: 9 }\n")
    until(lambda: "saves_per_uid: 9" in shown.read_text(), "the new configuration in force")


@pytest.fixture
def clustered(daemon: Any) -> Any:
    """Of a cluster whose etcd never answers: which roots are shared does not depend on it."""
    daemon.cluster = 'cluster {{ node_name: "n" etcd_endpoints: "http://127.0.0.1:9" {} }}\n'
    daemon.first_text = daemon.configuration.read_text()
    daemon.configuration.write_text(daemon.first_text + daemon.cluster.format(""))
    return daemon.start()


def shared_roots(daemon: Any) -> list[str]:
    return [run.root for run in daemon.status().cluster.shared_runs]


def open_root(daemon: Any, root: pathlib.Path) -> contextlib.AbstractContextManager[Any]:
    """A session that has attached the root, until it is left."""
    channel = grpc.insecure_channel(daemon.endpoint)
    stub = service_pb2_grpc.CheckpointsStub(channel)
    session = stub.OpenSession(
        messages_pb2.OpenSessionRequest(min_version=1, max_version=1, client_instance=uuid.uuid4().hex)
    )
    metadata = (("ckptd-token", next(session).token),)
    stub.OpenRoot(messages_pb2.OpenRootRequest(path=str(root)), metadata=metadata, timeout=TIMEOUT)
    stack = contextlib.ExitStack()
    stack.callback(channel.close)
    stack.callback(session.cancel)
    return stack


def test_folders_become_shared_and_cease_to_be_at_a_reload(clustered: Any) -> None:
    daemon = clustered
    folder = daemon.folder / "shared"
    for name in ("one", "two", "three"):
        (folder / name).mkdir(parents=True)
    with open_root(daemon, folder / "one"):
        assert shared_roots(daemon) == []
        # A root that a job uses stays what it is, and with it the setting.
        log = reload(daemon, daemon.cluster.format(f'shared_folders: "{folder}"'))
        assert "cluster.shared_folders stays as it was" in log and f"be shared: {folder}/one;" in log
        with open_root(daemon, folder / "two"):
            assert shared_roots(daemon) == []
    # An idle one is closed, and is a shared one at its next use.
    until(
        lambda: "stays as it was" not in reload(daemon, daemon.cluster.format(f'shared_folders: "{folder}"')),
        "the end of the jobs",
    )
    assert 'field=cluster.shared_folders was="" is=' in daemon.log()
    with open_root(daemon, folder / "one"), open_root(daemon, folder / "three"):
        assert sorted(shared_roots(daemon)) == [f"{folder}/one", f"{folder}/three"]
        log = reload(daemon, daemon.cluster.format(""))
        assert "cluster.shared_folders stays as it was" in log


def test_a_wrong_shared_folder_changes_nothing(clustered: Any) -> None:
    daemon = clustered
    log = reload(daemon, daemon.cluster.format('shared_folders: "/a/../b"'))
    assert "nothing was changed" in log and "/a/../b" in log
    log = reload(daemon, daemon.cluster.format(f'shared_folders: "{daemon.folder}/none"'))
    assert "field=cluster.shared_folders" in log
    daemon.wait_log("a shared folder cannot be used folder=")
