"""Which process may be a rank: the same one again, another job, and a reader that is no rank."""

from __future__ import annotations

import gc
import logging
import pathlib
import threading
import weakref
from typing import Any, List

import ckptd
import grpc
import pytest
from ckptd._membership import membership as membership_module


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    (tmp_path / "root").mkdir()
    return str(tmp_path / "root")


def in_use() -> Any:
    return grpc.StatusCode.FAILED_PRECONDITION, "RUN_IN_USE", "attempt 1 of another job still runs"


def joins(daemon: Any) -> List[Any]:
    return list(daemon.requests["JoinRun"])


def test_newer_run_of_a_process_takes_the_rank_and_the_older_one_says_so(
    daemon: Any, client: ckptd.Client, root: str
) -> None:
    older = client.run(root, rank=0, world_size=1)
    with ckptd.connect(daemon.endpoint) as other:
        newer = other.run(root, rank=0, world_size=1)
        first, second = joins(daemon)
        assert first.process == second.process != ""
        with pytest.raises(ckptd.Refused, match="was replaced: the process has made a newer one") as caught:
            older.save("one", files={"a.bin": b"x"})
        assert caught.value.reason == "RANK_TAKEN" and caught.value.ranks == (0,)
        newer.save("one", files={"a.bin": b"x"}).wait()


def test_save_of_a_replaced_run_is_heard_to_its_end(daemon: Any, client: ckptd.Client, root: str) -> None:
    daemon.hold = True
    save = client.run(root, rank=0, world_size=1).save("one", files={"a.bin": b"x"})
    with ckptd.connect(daemon.endpoint) as other:
        other.run(root, rank=0, world_size=1)
        daemon.commit("one")
        save.wait(timeout=20)


def test_replaced_run_is_not_joined_again_with_the_next_daemon(
    daemon: Any, client: ckptd.Client, root: str
) -> None:
    older = client.run(root, rank=0, world_size=1)
    with ckptd.connect(daemon.endpoint) as other:
        newer = other.run(root, rank=0, world_size=1)
        daemon.restart()
        newer.save("one", files={"a.bin": b"x"}).wait()
        client.status()  # Its session is new, too.
        assert len(joins(daemon)) == 3
    assert older.root == newer.root


def test_two_runs_of_one_client_number_their_saves_together(daemon: Any, client: ckptd.Client, root: str) -> None:
    for _ in range(2):
        client.run(root, rank=0, world_size=1).save("one", files={"a.bin": b"x"}).wait()
    assert [request.key.ordinal for request in daemon.requests["Begin"]] == [1, 2]


def test_saves_of_some_ranks_are_numbered_apart(daemon: Any, client: ckptd.Client, root: str) -> None:
    run = client.run(root, rank=0, world_size=1)
    for ranks in (None, [0], [0], None):
        run.save("one", files={"a.bin": b"x"}, ranks=ranks).wait()
    begun = daemon.requests["Begin"]
    assert [list(request.ranks) for request in begun] == [[], [0], [0], []]
    ordinals = [request.key.ordinal for request in begun]
    assert (ordinals[0], ordinals[3]) == (1, 2) and ordinals[2] == ordinals[1] + 1 > 1 << 24


def test_rank_that_ranks_does_not_name_is_refused(client: ckptd.Client, root: str) -> None:
    run = client.run(root, rank=1, world_size=2)
    with pytest.raises(ckptd.Refused, match="this process is rank 1, and ranks is \\[0\\]"):
        run.save("one", files={}, ranks=[0])


def test_run_in_use_is_waited_for_and_said(
    daemon: Any, client: ckptd.Client, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.script["JoinRun"].extend([in_use, in_use])
    client.run(root, rank=0, world_size=1)
    assert len([r for r in caplog.records if "still runs; waiting up to 10 s for its end" in r.getMessage()]) == 1


def test_run_that_stays_in_use_is_refused(
    daemon: Any, client: ckptd.Client, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "_IN_USE_SECONDS", 0.0)
    daemon.script["JoinRun"].append(in_use)
    with pytest.raises(ckptd.Refused) as caught:
        client.run(root, rank=0, world_size=1)
    assert caught.value.reason == "RUN_IN_USE"
    client.run(root, rank=0, world_size=1, takeover=True)
    assert [request.takeover for request in joins(daemon)] == [False, True]
    assert joins(daemon)[0].job == joins(daemon)[1].job != ""


def test_warnings_of_the_daemon_are_logged_once(
    daemon: Any, client: ckptd.Client, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.warnings = ["the root is in memory"]
    run = client.run(root, rank=0, world_size=1)
    daemon.restart()
    run.save("one", files={"a.bin": b"x"}).wait()
    found = [r for r in caplog.records if r.getMessage() == "ckptd: the root is in memory"]
    assert [record.levelno for record in found] == [logging.WARNING]


def test_reader_without_rank_lists_and_joins_nothing(daemon: Any, client: ckptd.Client, root: str) -> None:
    run = client.run(root, rank=0, world_size=1)
    run.save("one", files={"a.bin": b"x"}).wait()
    with ckptd.connect(daemon.endpoint) as other:
        reader = other.open(root)
        assert [info.tag for info in reader.list()] == ["one"]
        daemon.restart()
        assert [info.tag for info in reader.list()] == ["one"]  # It attaches again.
    assert {request.process for request in joins(daemon)} == {joins(daemon)[0].process}
    assert reader.root == root


def test_reader_does_not_make_the_root(client: ckptd.Client, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ckptd.NotFound, match="No such file or directory"):
        client.open(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    "root, said",
    [
        ("gs://bucket/run", "a URL; ckptd saves into directories of this machine only"),
        ("file:///data/ckpts", "a URL"),
        ("gs:/bucket", "a URL"),
        ("", 'the root is ""; name a directory'),
        ("  ", "name a directory"),
        ("~nobody-of-that-name/ckpts", "no home directory is known"),
    ],
)
def test_root_that_is_no_local_directory_is_refused_everywhere(
    client: ckptd.Client, root: str, said: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (lambda: client.run(root), lambda: client.open(root), lambda: ckptd.open_root(root)):
        with pytest.raises(ckptd.Refused) as caught:
            use()
        assert said in str(caught.value) and caught.value.reason == "INVALID_ARGUMENT"
    with pytest.raises(ckptd.Refused, match="the folder is"):
        ckptd.LocalDaemon(root)
    assert list(tmp_path.iterdir()) == []


def test_root_in_a_bucket_is_not_opened_beside_its_job_and_needs_a_good_url(client: ckptd.Client) -> None:
    with pytest.raises(ckptd.Refused, match=r"ckptd\.open_root\('s3://bucket/run'\)"):
        client.open("s3://bucket/run")
    with pytest.raises(ckptd.Refused, match="no name of a bucket"):
        client.run("s3://Bucket/run")


def test_tilde_in_a_root_is_the_home_directory(
    client: ckptd.Client, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert client.run("~/ckpts", rank=0, world_size=1).root == str(tmp_path / "ckpts")
    assert ckptd.open_root("~/ckpts").path == str(tmp_path / "ckpts")


@pytest.mark.parametrize(
    "arguments, said",
    [({"tag": 1.5}, "tag is 1.5"), ({"tag": True}, "tag is True"), ({"tag": None}, "tag is None"), ({"step": "7"}, "step is '7'"), ({"step": 7.9}, "step is 7.9")],
)
def test_tag_and_step_of_another_type_are_refused(
    client: ckptd.Client, root: str, arguments: Any, said: str
) -> None:
    run = client.run(root, rank=0, world_size=1)
    with pytest.raises(TypeError, match=said):
        run.save(**{"tag": "one", "files": {"a.bin": b"x"}, **arguments})


def test_refused_save_is_among_the_failures(daemon: Any, client: ckptd.Client, root: str) -> None:
    run = client.run(root, rank=0, world_size=1)
    daemon.script["Begin"].append(lambda: (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_SPACE", "the disk is full"))
    with pytest.raises(ckptd.NoSpace):
        run.save("one", files={"a.bin": b"x"})
    assert [failure.reason for failure in run.failures()] == ["NO_SPACE"]


def test_failures_do_not_keep_the_state_in_memory(daemon: Any, client: ckptd.Client, root: str) -> None:
    class State(bytearray):
        pass

    run = client.run(root, rank=0, world_size=1)
    daemon.script["Begin"].append(lambda: (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_SPACE", "the disk is full"))
    state = State(1000)
    alive = weakref.ref(state)
    with pytest.raises(ckptd.NoSpace):
        run.save("one", files={"a.bin": state})
    del state
    gc.collect()
    assert alive() is None
    assert str(run.failures()[0]) == "the disk is full" and run.failures()[0].reason == "NO_SPACE"


def test_state_dict_under_a_name_of_safetensors_says_what_to_write(client: ckptd.Client, root: str) -> None:
    with pytest.raises(TypeError, match="write safetensors.torch.save"):
        client.run(root, rank=0, world_size=1).save("one", files={"m.safetensors": {"a": 1}})


def test_connect_with_a_timeout_waits_for_a_daemon_that_is_started(daemon: Any) -> None:
    daemon.stop()
    with pytest.raises(ckptd.Unavailable):
        ckptd.connect(daemon.endpoint)
    with pytest.raises(ckptd.Unavailable):
        ckptd.connect(daemon.endpoint, timeout=0.2)
    starting = threading.Timer(0.3, daemon.start)
    starting.start()
    ckptd.connect(daemon.endpoint, timeout=20).close()
    starting.join()
