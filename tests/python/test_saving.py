"""Saves from save() to their end, with a fake daemon in this process."""

from __future__ import annotations

import collections
import concurrent.futures
import gc
import logging
import os
import pathlib
import signal
import threading
import time
from typing import Any, Iterator, List

import ckptd
import grpc
import pytest
from ckptd._memory.image import Image
from ckptd._session.session import Session, is_transient
from ckptd._wire.protocol import messages, types
from harness import until

BIG = os.urandom((2 << 20) + 100_001)  # It lies in three segments of the daemon.


def two_ranks(daemon: Any, tmp_path: pathlib.Path) -> List[ckptd.Run]:
    return [ckptd.connect(daemon.endpoint).run(tmp_path / "root", rank=rank, world_size=2) for rank in (0, 1)]


def refusal(code: grpc.StatusCode, reason: str) -> Any:
    return lambda: (code, reason)


# ---- the usual


def test_daemon_gets_the_bytes_that_are_saved(daemon: Any, run: ckptd.Run, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(BIG[::-1])
    files = {"a": BIG, "b": b"", "c/d": ckptd.File(tmp_path / "file"), "e": BIG[:7]}
    save = run.save("t", step=7, files=files, metrics={"loss": 0.5}).wait(timeout=20)
    assert save.level == "committed" and save.transport == "shm" and save.sequence == 1
    assert daemon.committed["t"] == {"a": BIG, "b": b"", "c/d": BIG[::-1], "e": BIG[:7]}
    begin = daemon.requests["Begin"][0]
    assert (
        begin.step == 7 and begin.metrics == {"loss": 0.5} and begin.busy == types.WAIT and not begin.growing
    )
    assert daemon.calls.count("Begin") == daemon.calls.count("Seal") == 1 and "Extend" not in daemon.calls


def test_pointers_go_along_with_begin(daemon: Any, run: ckptd.Run) -> None:
    run.save("t", files={"a": b"x"}, pointers={"latest": "t"}).wait(timeout=20)
    with run.begin("u", pointers={"latest": "u", "best": "t"}) as part:
        part.add("a", b"x")
    assert [dict(begin.pointers) for begin in daemon.requests["Begin"]] == [
        {"latest": "t"},
        {"latest": "u", "best": "t"},
    ]
    with pytest.raises(TypeError, match="latest"):
        run.save("v", files={}, pointers={"latest": 7})  # type: ignore[dict-item]


def test_later_save_reuses_the_mapping(daemon: Any, run: ckptd.Run) -> None:
    for i in range(5):
        content = bytes([i]) * len(BIG)
        run.save(f"t{i}", files={"x": content}).wait(timeout=20)
        assert daemon.committed[f"t{i}"] == {"x": content}
    assert daemon.calls.count("fetch_segments") == 1


def test_part_filled_file_by_file_has_all_files(daemon: Any, run: ckptd.Run) -> None:
    with run.begin("t", step=1) as part:
        data = bytearray(b"first")
        part.add("a", data)
        data[:] = b"later"
        part.add("b", BIG)
        assert part.level == "open"
        with pytest.raises(TypeError):
            part.add("c", object())
        with pytest.raises(ckptd.Refused, match="already has"):
            part.add("a", b"")
    assert part.wait(timeout=20).level == "committed"
    assert daemon.committed["t"] == {"a": b"first", "b": BIG}
    with pytest.raises(ckptd.Refused, match="sealed"):
        part.add("d", b"")


def test_files_that_fit_the_memory_of_the_last_part_are_placed_without_a_call(daemon: Any, run: ckptd.Run) -> None:
    daemon.ahead = 4
    with run.begin("t", files={"a": b"first"}) as part:
        part.add("b", BIG)
        part.add("c", b"")
        part.add("d", BIG[:5000])
    assert part.wait(timeout=20).level == "committed"
    assert daemon.committed["t"] == {"a": b"first", "b": BIG, "c": b"", "d": BIG[:5000]}
    assert "Extend" not in daemon.calls


def test_files_that_do_not_fit_the_memory_of_the_last_part_are_placed_behind_it(daemon: Any, run: ckptd.Run) -> None:
    daemon.ahead = 1
    with run.begin("t") as part:
        part.add("a", BIG[:5000])
        part.add("b", BIG)
        part.add("c", BIG[:7])
    assert part.wait(timeout=20).level == "committed"
    assert daemon.committed["t"] == {"a": BIG[:5000], "b": BIG, "c": BIG[:7]}
    (extend,) = daemon.requests["Extend"]
    assert [file.path for file in extend.files] == ["a", "b"]


def test_file_that_could_not_be_written_leaves_its_place_to_the_next_one(daemon: Any, run: ckptd.Run) -> None:
    class Unreadable(Image):
        size = 5000

        def write(self, memory: Any, base: int, threads: int, overlaps: bool = False) -> None:
            raise OSError("as the test wants")

    daemon.ahead = 2
    with run.begin("t") as part:
        part.add("a", b"first")
        with pytest.raises(OSError, match="as the test wants"):
            part.add("b", Unreadable())
        part.add("c", BIG[:5000])
    assert part.wait(timeout=20).level == "committed"
    assert daemon.committed["t"] == {"a": b"first", "c": BIG[:5000]}


def test_part_that_the_daemon_places_elsewhere_is_not_saved(daemon: Any, run: ckptd.Run) -> None:
    daemon.ahead = 1
    with pytest.raises(RuntimeError, match='file "a" lies at 0 in its part'), run.begin("t") as part:
        part.add("a", BIG[:5000])
        daemon.saves["t", 1].parts[0].end = 4096
        part.add("b", BIG)
    assert "t" not in daemon.committed


def test_growing_part_goes_on_with_the_next_daemon_where_it_placed_files_itself(daemon: Any, run: ckptd.Run) -> None:
    daemon.ahead = 4
    with run.begin("t") as part:
        part.add("a", BIG[:5000])
        daemon.restart()
        part.add("b", BIG)
        part.add("c", BIG[:7])
    assert part.wait(timeout=20).level == "committed"
    assert daemon.committed["t"] == {"a": BIG[:5000], "b": BIG, "c": BIG[:7]}


def test_files_that_are_there_at_begin_are_announced_and_copied_then(daemon: Any, run: ckptd.Run) -> None:
    data = bytearray(b"first")
    with run.begin("t", files={"a": data, "big": BIG}) as part:
        assert [(f.path, f.size_bytes) for f in daemon.requests["Begin"][-1].files] == [("a", 5), ("big", len(BIG))]
        assert daemon.requests["Begin"][-1].growing
        data[:] = b"later"
        part.add("b", b"more")
    assert part.wait(timeout=20).level == "committed"
    assert daemon.committed["t"] == {"a": b"first", "big": BIG, "b": b"more"}


def test_part_has_a_save_and_shows_its_state(daemon: Any, run: ckptd.Run) -> None:
    with run.begin("t") as part:
        part.add("a", BIG)
    save = part.seal()
    assert save is part.save and isinstance(save, ckptd.Save)
    assert part.wait(timeout=20) is save and part.future().result(20) is save
    assert part.level == save.level == "committed" and part.tag == save.tag == "t"
    assert part.transport == save.transport == "shm" and part.sequence == save.sequence == 1
    assert part.stall_seconds == save.stall_seconds >= part.copy_seconds == save.copy_seconds > 0


def test_a_part_may_be_empty(daemon: Any, run: ckptd.Run) -> None:
    run.save("t", files={}).wait(timeout=20)
    with run.begin("u") as part:
        pass
    part.wait(timeout=20)
    assert daemon.committed == {"t": {}, "u": {}}


def test_each_save_of_a_tag_has_the_next_ordinal(daemon: Any, run: ckptd.Run) -> None:
    for tag in ("a", "b", "a", "a"):
        run.save(tag, files={}).wait(timeout=20)
    assert [(r.key.tag, r.key.ordinal) for r in daemon.requests["Begin"]] == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("a", 3),
    ]


def test_saves_from_several_threads_do_not_mix(daemon: Any, run: ckptd.Run) -> None:
    contents = {f"t{i}": bytes([i]) * (500_000 + i) for i in range(16)}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        saves = list(pool.map(lambda tag: run.save(tag, files={"f": contents[tag]}), contents))
    for save in saves:
        save.wait(timeout=20)
    assert {tag: files["f"] for tag, files in daemon.committed.items()} == contents


def test_wrong_arguments_are_refused_before_the_daemon_hears_of_them(
    daemon: Any, client: ckptd.Client, run: ckptd.Run
) -> None:
    with pytest.raises(ValueError, match='busy is "never"'):
        run.save("t", files={}, busy="never")
    with pytest.raises(ValueError, match="timeout is 0"):
        run.save("t", files={}, timeout=0)
    with pytest.raises(ValueError, match='views is "all"'):
        run.save("t", files={}, views="all")
    with pytest.raises(ValueError, match='level is "done"'):
        run.save("t", files={}).wait("done")
    for kept in (0, -2):
        with pytest.raises(ckptd.Refused, match=f"num_kept_ckpts is {kept}"):
            client.run(run.root, num_kept_ckpts=kept)
    assert daemon.calls.count("Begin") == 1


# ---- waiting


def test_wait_returns_at_each_level_or_times_out(daemon: Any, tmp_path: pathlib.Path) -> None:
    daemon.hold = True
    first, second = two_ranks(daemon, tmp_path)
    save = first.save("t", files={"a": b"1"})
    assert save.level == "staged" and save.wait("staged", timeout=0) is save
    with pytest.raises(ckptd.WaitTimeout) as caught:
        save.wait("sealed", timeout=0.1)
    assert isinstance(caught.value, TimeoutError) and caught.value.tag == "t" and caught.value.ranks == (1,)
    assert "ranks 1 have not sealed" in str(caught.value)
    future = save.future("sealed")
    second.save("t", files={"b": b"2"})
    assert save.wait("sealed", timeout=20).level == "sealed" and future.result(20) is save
    with pytest.raises(ckptd.WaitTimeout):
        save.wait("committed", timeout=0.1)
    daemon.commit("t")
    assert save.wait("committed", timeout=20).level == "committed"
    assert save.wait("staged", timeout=0) is save


def test_wait_shows_progress(daemon: Any, run: ckptd.Run, monkeypatch: Any) -> None:
    monkeypatch.setattr("ckptd._saving.save_state._PROGRESS_SECONDS", 0.01)
    daemon.hold = True
    save = run.save("t", files={"a": b"1" * 1000})
    checkpoint = daemon.saves[("t", 1)].checkpoint
    checkpoint.size_bytes, checkpoint.written_bytes = 1000, 250
    seen = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if len(seen) == 2:
            checkpoint.written_bytes = 900
        if len(seen) == 4:
            daemon.commit("t")

    assert save.wait("committed", timeout=20, progress=progress).level == "committed"
    assert seen[:2] == [(250, 1000)] * 2 and (900, 1000) in seen and seen[-1] == (1000, 1000)
    save.wait("committed", progress=progress)  # The save has ended: there is nothing to show.
    with pytest.raises(ckptd.WaitTimeout):
        run.save("u", files={"a": b"1"}).wait("committed", timeout=0.05, progress=lambda done, total: None)


def test_many_futures_need_no_thread_each(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    saves = [run.save(f"t{i}", files={}) for i in range(20)]
    before = threading.active_count()
    futures = [save.future() for save in saves for _ in range(5)]
    assert threading.active_count() <= before + 1
    for i in range(20):
        daemon.commit(f"t{i}")
    assert [future.result(20).tag for future in futures] == [save.tag for save in saves for _ in range(5)]
    assert saves[0].future().result(0) is saves[0]


def test_a_cancelled_future_does_not_disturb_the_save(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    save = run.save("t", files={})
    future = save.future()
    assert future.cancel()
    daemon.commit("t")
    assert save.wait(timeout=20).level == "committed"


def test_failure_is_raised_by_present_and_later_waits(
    daemon: Any, run: ckptd.Run, caplog: Any
) -> None:
    daemon.hold = True
    save = run.save("t", files={})
    future = save.future()
    daemon.fail("t", reason="RANKS_MISSING", ranks=[3])
    with pytest.raises(ckptd.CheckpointFailed) as caught:
        future.result(20)
    assert (caught.value.reason, caught.value.tag, caught.value.ranks) == ("RANKS_MISSING", "t", (3,))
    for level in ("staged", "committed"):
        with pytest.raises(ckptd.CheckpointFailed):
            save.wait(level, timeout=20)
    with pytest.raises(ckptd.CheckpointFailed):
        save.future().result(0)
    assert save.level == "failed" and not caplog.records
    assert [failure.tag for failure in run.failures()] == ["t"]


def test_failure_without_a_wait_is_logged_and_not_raised_by_a_later_save(
    daemon: Any, run: ckptd.Run, caplog: Any
) -> None:
    daemon.hold = True
    with caplog.at_level(logging.WARNING, "ckptd"):
        run.save("bad", files={})
        daemon.fail("bad", reason="IO_ERROR", ranks=[0])
        until(run.failures, "the failure to be heard")
        until(lambda: caplog.records, "the warning")
    assert [(r.levelname, "bad" in r.getMessage()) for r in caplog.records] == [("WARNING", True)]
    assert [(type(f), f.reason, f.tag, f.ranks) for f in run.failures()] == [
        (ckptd.CheckpointFailed, "IO_ERROR", "bad", (0,))
    ]
    daemon.hold = False
    assert run.save("good", files={}).wait(timeout=20).level == "committed"


@pytest.mark.parametrize(
    "level, kind",
    [(types.SUPERSEDED, ckptd.Superseded), (types.INDETERMINATE, ckptd.Indeterminate)],
)
def test_superseded_and_indeterminate_saves_have_their_own_class_and_level(
    daemon: Any, run: ckptd.Run, level: Any, kind: type
) -> None:
    daemon.hold = True
    save = run.save("t", files={})
    daemon.fail("t", level=level, reason="X")
    with pytest.raises(kind):
        save.wait(timeout=20)
    assert save.level == types.Level.Name(level).lower()


# ---- verdicts of the busy policy


def test_a_skipped_save_returns_and_its_wait_raises(daemon: Any, run: ckptd.Run, caplog: Any) -> None:
    daemon.skips = 2
    save = run.save("t", files={"a": BIG}, busy="skip")
    with run.begin("u", busy="skip") as part:
        part.add("a", BIG)
    for skipped in (save, part):
        assert skipped.level == "skipped"
        with pytest.raises(ckptd.Skipped, match="no memory"):
            skipped.wait("staged", timeout=20)
    assert "Seal" not in daemon.calls and not run.failures() and not caplog.records


@pytest.mark.parametrize("call", ["Begin", "Seal", "Extend"])
def test_save_that_is_superseded_during_upload_returns_superseded(
    daemon: Any, run: ckptd.Run, call: str
) -> None:
    daemon.script[call].append(refusal(grpc.StatusCode.ABORTED, "SUPERSEDED"))
    if call == "Extend":
        with run.begin("t") as save:
            save.add("a", b"1")
            save.add("b", b"2")
    else:
        save = run.save("t", files={"a": b"1"})
    assert save.level == "superseded"
    with pytest.raises(ckptd.Superseded):
        save.wait(timeout=20)
    assert "Abort" not in daemon.calls


def test_refused_save_raises_before_anything_is_copied(daemon: Any, run: ckptd.Run) -> None:
    for code, reason, kind in [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_SPACE", ckptd.NoSpace),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "ADMISSION_TIMEOUT", ckptd.Busy),
        (grpc.StatusCode.FAILED_PRECONDITION, "FENCED", ckptd.Fenced),
        (grpc.StatusCode.ALREADY_EXISTS, "FILE_CONFLICT", ckptd.FileConflict),
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_TAG", ckptd.Refused),
    ]:
        daemon.script["Begin"].append(refusal(code, reason))
        with pytest.raises(kind) as caught:
            run.save("t", files={"a": BIG})
        assert caught.value.reason == reason
    assert "Seal" not in daemon.calls and "fetch_segments" not in daemon.calls


# ---- aborting


def test_exception_inside_the_with_aborts_for_all_ranks_and_is_raised(
    daemon: Any, tmp_path: pathlib.Path
) -> None:
    first, second = two_ranks(daemon, tmp_path)
    other = second.save("t", files={"b": b"2"})
    with pytest.raises(KeyError, match="mine"), first.begin("t") as part:
        part.add("a", BIG)
        raise KeyError("mine")
    assert "KeyError" in daemon.requests["Abort"][0].message
    with pytest.raises(ckptd.CheckpointFailed) as caught:
        other.wait(timeout=20)
    assert caught.value.reason == "SAVE_ABORTED" and caught.value.ranks == (0,)
    with pytest.raises(ckptd.CheckpointFailed, match="KeyError"):
        part.wait(timeout=20)


def test_a_value_that_cannot_be_saved_ends_the_save_of_the_other_ranks_at_once(
    daemon: Any, tmp_path: pathlib.Path
) -> None:
    first, second = two_ranks(daemon, tmp_path)
    other = second.save("t", files={"b": b"2"})
    with pytest.raises(TypeError):
        first.save("t", files={"a": object()})
    with pytest.raises(ckptd.CheckpointFailed, match="as the test wants"):
        other.wait(timeout=20)


def test_ranks_that_save_after_the_abort_hear_of_it(daemon: Any, tmp_path: pathlib.Path) -> None:
    first, second = two_ranks(daemon, tmp_path)
    with pytest.raises(TypeError):
        first.save("t", files={"a": object()})
    with pytest.raises(ckptd.CheckpointFailed) as caught:
        second.save("t", files={"b": b"2"})
    assert caught.value.reason == "SAVE_ABORTED"
    assert first.save("t", files={"a": b""}).level == "staged"  # The next save is a new one on both ranks.
    second.save("t", files={"b": b""}).wait(timeout=20)


def test_ctrl_c_in_save_aborts_it_and_is_raised(daemon: Any, run: ckptd.Run) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    daemon.script["Begin"].append(lambda: time.sleep(5))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run.save("t", files={"a": BIG})
        assert time.monotonic() - started < 4
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "Abort" in daemon.calls
    run.save("u", files={}).wait(timeout=20)


def test_commit_that_an_abort_came_too_late_for_is_no_failure(daemon: Any, run: ckptd.Run, caplog: Any) -> None:
    part = run.begin("t")
    part.save._state.end_as_aborted("KeyboardInterrupt: ")
    part.save._state.update(types.Checkpoint(tag="t", level=types.COMMITTED))
    assert part.level == "committed"
    assert run.failures() == [] and caplog.records == []


# ---- a daemon that restarts


def test_save_goes_on_with_the_next_daemon_after_a_restart_at_any_step(
    daemon: Any, run: ckptd.Run
) -> None:
    for call in ("Begin", "Seal"):
        daemon.script[call].append(
            lambda: (threading.Thread(target=daemon.restart).start(), time.sleep(0.5))[2:] or None
        )
        save = run.save(f"at_{call}", files={"a": BIG, "b": b"x"}).wait(timeout=20)
        assert save.level == "committed"
        assert daemon.committed[f"at_{call}"] == {"a": BIG, "b": b"x"}
    keys = {(r.key.tag, r.key.ordinal) for r in daemon.requests["Begin"]}
    assert keys == {("at_Begin", 1), ("at_Seal", 1)}  # The same keys each time.


def test_files_that_were_added_before_a_restart_are_saved_as_they_were_then(
    daemon: Any, run: ckptd.Run
) -> None:
    data = bytearray(BIG)
    with run.begin("t") as part:
        part.add("a", data)
        data[:] = bytes(len(data))
        daemon.restart()
        part.add("b", b"later")
        daemon.restart()
    part.wait(timeout=20)
    assert daemon.committed["t"] == {"a": BIG, "b": b"later"}


def test_seal_whose_answer_was_lost_is_repeated_alone(daemon: Any, run: ckptd.Run) -> None:
    daemon.script["Seal"].append(refusal(grpc.StatusCode.UNAVAILABLE, ""))
    run.save("t", files={"a": BIG}).wait(timeout=20)
    assert daemon.calls.count("Seal") == 2 and daemon.calls.count("Begin") == 1
    assert daemon.calls.count("JoinRun") == 1


def test_new_daemon_is_told_which_saves_cannot_be_recovered(
    daemon: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTD_TRANSPORT", "grpc")
    run = ckptd.connect(daemon.endpoint).run(tmp_path / "root", rank=0, world_size=1)
    daemon.hold = True
    save = run.save("lost", files={"a": b"1"})
    daemon.restart()
    with pytest.raises(ckptd.CheckpointFailed) as caught:
        save.wait(timeout=20)
    assert caught.value.reason == "STAGED_LOST"
    joins = daemon.requests["JoinRun"]
    assert [[key.tag for key in join.orphaned] for join in joins[:2]] == [[], ["lost"]]
    run.save("next", files={"a": b"1"})
    daemon.restart()
    until(lambda: len(daemon.requests["JoinRun"]) >= 3, "the third daemon to be joined")
    assert [key.tag for key in daemon.requests["JoinRun"][2].orphaned] == ["next"]


def test_save_without_a_daemon_times_out(daemon: Any, run: ckptd.Run) -> None:
    daemon.stop()
    started = time.monotonic()
    with pytest.raises(ckptd.Unavailable):
        run.save("t", files={"a": b"1"}, timeout=0.5)
    assert 0.3 < time.monotonic() - started < 10
    daemon.start()


def test_request_to_a_draining_daemon_is_repeated(daemon: Any, run: ckptd.Run) -> None:
    daemon.script["Begin"] += [refusal(grpc.StatusCode.UNAVAILABLE, "DRAINING")] * 3
    run.save("t", files={}).wait(timeout=20)
    assert daemon.calls.count("Begin") == 4


# ---- sessions


def test_missing_daemon_is_unavailable_with_what_to_do(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ckptd.Unavailable, match="LocalDaemon") as caught:
        ckptd.connect(f"unix:{tmp_path}/none.sock")
    assert f"{tmp_path}/none.sock" in str(caught.value)
    monkeypatch.setenv("CKPTD_ENDPOINT", f"unix:{tmp_path}/other.sock")
    with pytest.raises(ckptd.Unavailable, match="other.sock"):
        ckptd.connect()
    for endpoint in ("localhost:80", "unix:relative", "unix:"):
        with pytest.raises(ckptd.Refused, match="unix:/path"):
            ckptd.connect(endpoint)


def test_socket_without_permission_is_refused_with_what_to_do(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ckptd._session.session.Handoff", refuse)
    with pytest.raises(ckptd.Refused, match="in the group") as caught:
        ckptd.connect(f"unix:{tmp_path}/none.sock")
    assert caught.value.reason == "EACCES"


def test_session_ends_with_the_with_block_and_with_the_last_reference(daemon: Any, tmp_path: pathlib.Path) -> None:
    with ckptd.connect(daemon.endpoint) as client:
        run = client.run(tmp_path / "root", rank=0, world_size=1)
    assert daemon.goodbyes == 1
    with pytest.raises(ckptd.CkptdError, match="closed"):
        run.save("t", files={})
    kept = ckptd.connect(daemon.endpoint).run(tmp_path / "root", rank=0, world_size=1)
    kept.save("t", files={}).wait(timeout=20)
    assert daemon.goodbyes == 1
    unended = kept._membership._unended
    until(lambda: not unended, "the save to have ended")
    del run, kept, client
    gc.collect()
    until(lambda: daemon.goodbyes == 2, "the session that nobody refers to any more to end")


def test_call_in_a_session_that_another_thread_has_closed_is_unavailable(daemon: Any, tmp_path: pathlib.Path) -> None:
    session = Session(daemon.endpoint, "instance", keeper=False, must_share=False, timeout=5)
    session.close()
    request = messages.ListCheckpointsRequest(parent="runs/x")
    for use in (session.call, session.start, lambda *arguments: list(session.stream(*arguments))):
        with pytest.raises(ckptd.Unavailable, match="has ended") as caught:
            use(session.checkpoints.ListCheckpoints, request, 5.0)
        assert is_transient(caught.value)


def test_use_after_fork_raises_in_the_child_and_leaves_the_parent_alone(
    daemon: Any, client: ckptd.Client, run: ckptd.Run
) -> None:
    daemon.hold = True
    save = run.save("t", files={})
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for use in (
            lambda: run.save("u", files={}),
            lambda: save.wait(timeout=1),
            run.latest,
            client.close,
        ):
            try:
                use()
                said.append("nothing")
            except ckptd.CkptdError as error:
                said.append(error.reason)
        os.write(writing, ",".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000) == b"FORKED,FORKED,FORKED,nothing"
    os.close(reading)
    os.close(writing)
    daemon.commit("t")
    assert save.wait(timeout=20).level == "committed" and daemon.goodbyes == 0


# ---- bytes over gRPC


@pytest.fixture
def remote(daemon: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ckptd.Run]:
    monkeypatch.setenv("CKPTD_TRANSPORT", "grpc")
    with ckptd.connect(daemon.endpoint) as client:
        yield client.run(tmp_path / "root", rank=0, world_size=1)


def test_bytes_go_over_grpc_where_it_is_asked_for(daemon: Any, remote: ckptd.Run) -> None:
    save = remote.save("t", files={"a": BIG, "b": b"", "c": b"x"}).wait(timeout=20)
    assert save.transport == "grpc" and "hello" not in daemon.calls
    with remote.begin("u") as part:
        part.add("a", BIG)
        part.add("b", b"y")
    assert part.wait(timeout=20).transport == "grpc"
    assert daemon.committed == {"t": {"a": BIG, "b": b"", "c": b"x"}, "u": {"a": BIG, "b": b"y"}}


def test_bytes_go_over_grpc_where_there_is_no_hand_off_socket(daemon: Any, tmp_path: pathlib.Path) -> None:
    daemon.stop()
    daemon.share_memory = False
    daemon.start()
    with ckptd.connect(daemon.endpoint) as client:
        save = (
            client.run(tmp_path / "root", rank=0, world_size=1).save("t", files={"a": BIG}).wait(timeout=20)
        )
        assert save.transport == "grpc"
    assert daemon.committed["t"] == {"a": BIG}


def test_save_over_grpc_survives_a_restart_of_the_daemon(daemon: Any, remote: ckptd.Run) -> None:
    daemon.script["Seal"].append(
        lambda: (threading.Thread(target=daemon.restart).start(), time.sleep(0.5))[2:] or None
    )
    remote.save("t", files={"a": BIG}).wait(timeout=20)
    assert daemon.committed["t"] == {"a": BIG}


def test_files_sent_over_grpc_before_a_restart_are_lost_and_raise(
    daemon: Any, remote: ckptd.Run
) -> None:
    with pytest.raises(ckptd.CheckpointFailed, match="save again") as caught, remote.begin("t") as part:
        part.add("a", b"1")
        daemon.restart()
        part.add("b", b"2")
    assert caught.value.reason == "SESSION_LOST"


def test_segment_revoked_before_it_is_mapped_raises_why_the_save_ended(
    daemon: Any, run: ckptd.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_first(*_: Any) -> None:
        daemon.fail("t", reason="SESSION_LOST", ranks=[1])
        raise ckptd.NotFound("segment 1 is not lent to this session", reason="UNKNOWN_SEGMENT")

    monkeypatch.setattr("ckptd._session.handoff.Handoff.fetch_segments", end_first)
    with pytest.raises(ckptd.CheckpointFailed) as caught:
        run.save("t", files={"a": BIG})
    assert caught.value.reason == "SESSION_LOST" and caught.value.ranks == (1,)


@pytest.mark.parametrize("call", ["Begin", "Seal"])
def test_save_to_a_daemon_that_does_not_answer_ends_at_its_timeout(daemon: Any, run: ckptd.Run, call: str) -> None:
    answer = threading.Event()
    daemon.script[call].append(lambda: answer.wait(60) and None)
    daemon.script["Abort"].append(lambda: answer.wait(60) and None)
    begin = time.monotonic()
    with pytest.raises(ckptd.Unavailable):
        run.save("one", files={"a.bin": b"x"}, timeout=0.5)
    waited = time.monotonic() - begin
    answer.set()
    assert waited < 3.0  # It has 1.5 s. Without the timeout it is 5 s for the Abort, and 30 s for the Seal.
    run.save("two", files={"a.bin": b"x"})


def test_requests_of_a_save_share_its_timeout(daemon: Any, run: ckptd.Run) -> None:
    run.begin("warm").seal()  # What the first save makes does not count.
    answer = threading.Event()
    daemon.script["Begin"].append(lambda: None if answer.wait(1.5) else None)
    daemon.script["Seal"].append(lambda: answer.wait(60) and None)
    begin = time.monotonic()
    with pytest.raises(ckptd.Unavailable):
        run.save("one", files={"a.bin": b"x"}, timeout=2.0)
    waited = time.monotonic() - begin
    answer.set()
    assert waited < 4.0  # It has 3 s in all, and not 2 s more for the Seal, nor 2 s to repeat it.


def test_daemon_is_asked_to_refuse_a_save_before_its_timeout(daemon: Any, run: ckptd.Run) -> None:
    def asked(tag: str, **options: Any) -> float:
        run.save(tag, files={"a.pt": Slow()}, **options)
        timeout = daemon.requests["Begin"][-1].timeout
        return float(timeout.seconds + timeout.nanos / 1e9)

    assert 28.0 < asked("default") <= 29.0
    # The time in which the file is made does not count.
    assert 0.7 < asked("short", timeout=1.0) <= 0.9


class Slow:
    def __reduce__(self) -> Any:
        time.sleep(0.5)
        return (collections.OrderedDict, ())
