"""A rank's membership in a run, with a fake connection: what it counts, and what a new daemon is told of
unended saves.
"""

from __future__ import annotations

import pathlib
import socket
from types import SimpleNamespace
from typing import Any, List, cast

import ckptd
import pytest
from ckptd._membership.launch import Launch
from ckptd._membership.membership import JoinOptions, Membership
from ckptd._session.connection import Connection
from ckptd._wire.protocol import messages, types


class Session:
    """A session with one daemon, which is a list of JoinRun requests."""

    handoff = None
    checkpoints = SimpleNamespace(JoinRun="JoinRun")

    def __init__(self, daemon_instance: str, attempt: int = 1) -> None:
        self.daemon_instance = daemon_instance
        self.attempt = attempt
        self.joins: List[Any] = []

    def attach_root(self, descriptor: Any, path: str, timeout: float) -> str:
        return "roots/1"

    def call(self, method: Any, request: Any, timeout: float) -> Any:
        assert method == "JoinRun"
        self.joins.append(request)
        return messages.JoinRunResponse(run="runs/1", attempt=self.attempt, run_id="r")


class FakeConnection:
    def __init__(self) -> None:
        self.present = Session("first")

    def session(self, timeout: float = 30.0) -> Session:
        return self.present


class FakeSave:
    """An unended save of the first daemon."""

    def __init__(self, tag: str, is_recoverable: bool) -> None:
        self.key = types.SaveKey(run="runs/1", rank=0, tag=tag, ordinal=1)
        self.attempt = 1
        self.daemon_instance = "first"
        self._is_recoverable = is_recoverable

    def is_recoverable(self) -> bool:
        return self._is_recoverable

    def assign_to(self, daemon_instance: str) -> None:
        self.daemon_instance = daemon_instance


class Recorder:
    """Stands for the save recovery and for the save watcher."""

    def __init__(self) -> None:
        self.recovered: List[Any] = []
        self.followed: List[Any] = []

    def add(self, saves: Any) -> None:
        self.recovered += saves

    def await_earlier(self, number: int, session: Any) -> None:
        pass

    def follow(self, save: Any) -> None:
        self.followed.append(save)


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def membership(connection: FakeConnection, recorder: Recorder, tmp_path: pathlib.Path) -> Membership:
    return Membership(
        cast(Connection, connection),
        str(tmp_path / "root"),
        Launch(rank=0, world_size=2, local_world_size=0, launch_id="l"),
        recorder,
        recorder,
        JoinOptions(),
        copy_threads=1,
        read_threads=1,
        keep_alive=None,
    )


def test_run_is_joined_once_in_each_session(membership: Membership, connection: FakeConnection) -> None:
    first = connection.present
    assert membership.present is None
    assert membership.joined() is membership.joined()
    connection.present = Session("second", attempt=2)
    assert membership.joined().attempt == 2 and membership.present is membership.joined()
    assert len(first.joins) == len(connection.present.joins) == 1
    assert first.joins[0].world_size == 2 and first.joins[0].launch_id == "l"


def test_new_daemon_gets_orphaned_saves_and_the_recovery_the_others(
    membership: Membership, connection: FakeConnection, recorder: Recorder
) -> None:
    membership.joined()
    orphaned, recoverable, ended = FakeSave("o", False), FakeSave("r", True), FakeSave("e", False)
    for save in (orphaned, recoverable, ended):
        membership.add_unended(save)  # type: ignore[arg-type]
    membership.remove_unended(ended)  # type: ignore[arg-type]
    assert recorder.followed == [orphaned, recoverable, ended]
    connection.present = Session("second")
    membership.joined()
    assert [key.tag for key in connection.present.joins[0].orphaned] == ["o"]
    assert recorder.recovered == [recoverable]
    assert orphaned.daemon_instance == "second" and recoverable.daemon_instance == "first"
    connection.present = Session("third")
    membership.joined()
    assert not connection.present.joins[0].orphaned  # The second daemon has answered for it.


def test_save_that_cannot_be_recovered_is_reported_in_its_own_attempt_only(
    membership: Membership, connection: FakeConnection
) -> None:
    joined, session = membership.joined(), connection.present
    save, earlier = FakeSave("t", True), FakeSave("u", True)
    earlier.attempt = 7
    membership.report_orphaned(joined, save)  # type: ignore[arg-type]
    membership.report_orphaned(joined, earlier)  # type: ignore[arg-type]
    assert [[key.tag for key in join.orphaned] for join in session.joins] == [[], ["t"]]


def test_ordinals_count_each_tag_and_begin_again_with_the_attempt(membership: Membership) -> None:
    assert [membership.next_ordinal(tag, 1) for tag in ("a", "b", "a")] == [1, 1, 2]
    assert [membership.next_ordinal(tag, 2) for tag in ("a", "b", "a")] == [1, 1, 2]


def test_ordinal_follows_the_saves_that_the_other_ranks_have_begun_without_this_rank(membership: Membership) -> None:
    assert membership.next_ordinal("a", 1) == 1
    membership.advance_ordinal("a", 4)
    assert [membership.next_ordinal("a", 1), membership.next_ordinal("a", 1)] == [4, 5]
    membership.advance_ordinal("a", 2)
    assert [membership.next_ordinal("a", 1), membership.next_ordinal("b", 1)] == [6, 1]


def test_numbers_count_saves_in_all_attempts(membership: Membership) -> None:
    assert [membership.next_number() for _ in range(3)] == [1, 2, 3]


def test_last_hundred_failures_are_kept_oldest_first(membership: Membership) -> None:
    for number in range(150):
        membership.add_failure(ckptd.CheckpointFailed("no", tag=str(number)))
    assert [error.tag for error in membership.failures()] == [str(number) for number in range(50, 150)]


def test_root_that_cannot_be_made_names_the_host_and_the_directory_that_is_not_there(membership: Membership) -> None:
    root_directory = type(membership.directory)
    blocked = root_directory("/proc/shared/ckpts/gpt")  # Nobody makes a directory there.
    assert blocked.error == (
        f"there is no /proc/shared on {socket.gethostname()}, and this user cannot make it (No such file or directory); "
        "mount its file system there, or make it for this user"
    )
    assert root_directory("/proc/shared", make=False).error == "No such file or directory"


def test_root_that_cannot_be_opened_is_refused_where_its_descriptor_is_needed(
    membership: Membership, connection: FakeConnection, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    blocked = type(membership.directory)(str(tmp_path / "file" / "root"))
    assert blocked.descriptor is None and blocked.error == "it, or a part of its path, is a file and no directory"
    membership.directory = blocked
    assert membership.joined().run == "runs/1"  # Over gRPC the daemon opens the root by its path.
    connection.present = Session("second")
    connection.present.handoff = object()  # type: ignore[assignment]
    with pytest.raises(ckptd.Refused, match="cannot be opened: it, or a part of its path, is a file"):
        membership.joined()
