"""Saves that were sealed with a daemon that has ended are recovered by the next one; both are fakes in this
process.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pathlib
import threading
import time
import weakref
from typing import Any, List

import ckptd
import grpc
import pytest
from ckptd._wire.protocol import types
from harness import until

SEGMENT = 1 << 20  # Bytes of the fake daemon's segments.
BIG = os.urandom((2 << 20) + 100_001)  # It lies in three of them.
PUNCH = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def refusal(code: grpc.StatusCode, reason: str) -> Any:
    return lambda: (code, reason)


def begun(daemon: Any) -> List[str]:
    return [request.key.tag for request in daemon.requests["Begin"]]


def next_daemon(daemon: Any, hold: bool = False) -> None:
    daemon.stop()
    daemon.hold = hold
    daemon.start()


def recovering() -> List[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ckptd-save-recovery"]


def lost(save: ckptd.Save) -> ckptd.CkptdError:
    with pytest.raises(ckptd.CheckpointFailed) as caught:
        save.wait(timeout=20)
    assert caught.value.reason == "STAGED_LOST"
    return caught.value


def punch(daemon: Any) -> None:
    """Gives the memory of all segments back, as a daemon does."""
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor, _ in daemon.memory.values():
        assert libc.fallocate(descriptor, PUNCH, ctypes.c_long(0), ctypes.c_long(SEGMENT)) == 0


def test_sealed_save_that_the_next_daemon_does_not_know_is_recovered_unchanged(
    daemon: Any, run: ckptd.Run
) -> None:
    daemon.hold = True
    data = bytearray(BIG)
    save = run.save("t", step=3, metrics={"loss": 1.0}, files={"a": data, "b": b"", "c/d": BIG[:7]})
    stall, data[:] = save.stall_seconds, bytes(len(data))
    next_daemon(daemon)
    assert save.wait(timeout=20).level == "committed"
    assert daemon.committed["t"] == {"a": BIG, "b": b"", "c/d": BIG[:7]}
    first, again = daemon.requests["Begin"]
    assert (first.key, first.step, first.metrics) == (again.key, again.step, again.metrics)
    assert save.stall_seconds == stall and [len(join.orphaned) for join in daemon.requests["JoinRun"]] == [0, 0]
    assert run.failures() == []
    until(lambda: not recovering(), "the end of the thread")


def test_part_filled_file_by_file_is_recovered_whole_and_not_skipped(
    daemon: Any, run: ckptd.Run
) -> None:
    daemon.hold = True
    with run.begin("t", busy="skip") as part:
        part.add("a", BIG)
        part.add("b", BIG[::-1])
    next_daemon(daemon)
    part.wait(timeout=20)
    assert daemon.committed["t"] == {"a": BIG, "b": BIG[::-1]}
    again = daemon.requests["Begin"][1]
    assert again.busy == types.WAIT and not again.growing and [file.path for file in again.files] == ["a", "b"]
    assert daemon.calls.count("Extend") == 2  # Both with the first daemon.


def test_saves_are_recovered_in_order_and_no_later_begin_overtakes_them(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    first, second = run.save("one", files={"a": BIG}), run.save("two", files={"a": BIG[1:]})
    daemon.stop()
    daemon.hold = False
    daemon.script["Begin"].append(lambda: time.sleep(0.5))  # Meanwhile the third save begins.
    daemon.start()
    third = run.save("three", files={"a": BIG[2:]})
    for save in (third, second, first):
        save.wait(timeout=20)
    assert begun(daemon) == ["one", "two", "one", "two", "three"]
    assert [daemon.committed[tag]["a"] for tag in ("one", "two", "three")] == [BIG, BIG[1:], BIG[2:]]


def test_save_behind_a_recovery_times_out(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    run.save("one", files={"a": b"1"})
    daemon.stop()
    daemon.script["Begin"] += [refusal(grpc.StatusCode.UNAVAILABLE, "DRAINING")] * 1000
    daemon.start()
    with pytest.raises(ckptd.Unavailable):
        run.save("two", files={"a": b"2"}, timeout=0.5)
    assert set(begun(daemon)) == {"one"}


@pytest.mark.parametrize("level", ["committed", "sealed", "failed"])
def test_save_that_the_next_daemon_knows_is_not_uploaded_again(daemon: Any, run: ckptd.Run, level: str) -> None:
    daemon.hold = True
    save = run.save("t", files={"a": BIG})

    def inherit() -> None:
        daemon.inherit(daemon.requests["Begin"][0].key)
        if level == "failed":
            daemon.fail("t")

    daemon.script["JoinRun"].append(inherit)
    if level == "committed":
        daemon.script["JoinRun"][0] = lambda: (inherit(), daemon.commit("t"))[2:] or None
    daemon.restart()
    if level == "failed":
        with pytest.raises(ckptd.CheckpointFailed) as caught:
            save.wait(timeout=20)
        assert caught.value.reason == "IO_ERROR"
    else:
        until(lambda: any(not asked.sequence for asked in daemon.requests["Wait"]), "the question")
        daemon.commit("t")
        save.wait(timeout=20)
    assert daemon.calls.count("Begin") == daemon.calls.count("Seal") == 1


def test_save_that_would_overtake_a_newer_checkpoint_is_not_recovered(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    save = run.save("t", files={"a": BIG})
    daemon.latest = save.sequence + 1  # Published by the next daemon, for instance.
    next_daemon(daemon)
    assert "would no longer be the latest one" in str(lost(save))
    assert begun(daemon) == ["t"] and "t" not in daemon.committed
    # The other ranks are told.
    assert [[key.tag for key in join.orphaned] for join in daemon.requests["JoinRun"]] == [[], [], ["t"]]


def test_overwritten_bytes_are_not_recovered(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    first = run.save("one", files={"a": BIG})
    # The save failed, but the rank has not heard of it: its memory is lent again.
    daemon.free += daemon.saves["one", 1].parts[0].segments
    second = run.save("two", files={"a": BIG[::-1]})
    next_daemon(daemon)
    lost(first)
    second.wait(timeout=20)
    assert daemon.committed == {"two": {"a": BIG[::-1]}}
    assert [[key.tag for key in join.orphaned] for join in daemon.requests["JoinRun"]] == [[], ["one"]]


def test_freed_bytes_are_not_recovered_as_zeros(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    save = run.save("t", files={"a": BIG})
    punch(daemon)
    next_daemon(daemon)
    lost(save)
    assert daemon.committed == {} and begun(daemon) == ["t"]


def test_bytes_freed_during_admission_are_not_recovered_as_zeros(
    daemon: Any, run: ckptd.Run
) -> None:
    daemon.hold = True
    save = run.save("t", files={"a": BIG})
    old = dict(daemon.memory)

    def free() -> None:
        now, daemon.memory = daemon.memory, old
        punch(daemon)
        daemon.memory = now

    daemon.stop()
    daemon.hold = False
    daemon.script["Begin"].append(free)
    daemon.start()
    assert "given back" in str(lost(save))
    assert daemon.committed == {} and "Abort" in daemon.calls


def test_refused_recovery_is_lost_and_says_why(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    saves = [run.save(tag, files={"a": BIG}) for tag in ("one", "two", "three")]
    daemon.stop()
    daemon.hold = False
    daemon.script["Begin"].append(refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_SPACE"))
    daemon.script["Begin"].append(refusal(grpc.StatusCode.FAILED_PRECONDITION, "FENCED"))
    daemon.start()
    assert "NO_SPACE: as the test wants" in str(lost(saves[0]))
    with pytest.raises(ckptd.Fenced):
        saves[1].wait(timeout=20)
    saves[2].wait(timeout=20)
    assert [error.reason for error in run.failures()] == ["STAGED_LOST", "FENCED"]


def test_fenced_recovery_in_a_job_of_several_nodes_ends_as_unknown(
    daemon: Any, client: ckptd.Client, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of all nodes may have been durable before the daemon ended: then the coordinator still publishes the save."""
    monkeypatch.setenv("CKPTD_LAUNCH_ID", "one")
    run = client.run(tmp_path / "root", rank=0, world_size=2, local_ranks=[0])
    daemon.hold = True
    save = run.save("t", files={"a": BIG})
    daemon.stop()
    daemon.script["Begin"].append(refusal(grpc.StatusCode.FAILED_PRECONDITION, "FENCED"))
    daemon.start()
    with pytest.raises(ckptd.Unavailable, match="a newer launch of the job has begun or resumed.*becomes a checkpoint"):
        save.wait(timeout=20)
    assert daemon.requests["Abort"] == []  # It would end the save for all ranks.


def test_recovery_that_fails_after_its_seal_or_is_skipped_is_lost_and_says_why(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    save = run.save("t", files={"a": BIG})
    next_daemon(daemon, hold=True)
    until(lambda: ("t", 1) in daemon.saves and daemon.saves["t", 1].checkpoint.level == types.SEALED, "the recovery")
    daemon.fail("t", reason="RANKS_MISSING", ranks=[1])
    error = lost(save)
    assert "RANKS_MISSING" in str(error) and error.ranks == (1,)
    save = run.save("u", files={"a": BIG})
    daemon.skips = 1
    next_daemon(daemon)
    assert "no memory" in str(lost(save)) and save.level == "failed"


def test_recovery_whose_seal_is_not_answered_ends_as_unknown(
    daemon: Any, run: ckptd.Run
) -> None:
    daemon.hold = True
    save = run.save("t", files={"a": BIG})
    daemon.stop()
    daemon.script["Seal"].append(refusal(grpc.StatusCode.DEADLINE_EXCEEDED, ""))
    daemon.start()
    with pytest.raises(ckptd.Unavailable, match="is not known"):
        save.wait(timeout=20)


@pytest.mark.parametrize("call", ["Wait", "GetCheckpoint", "Begin", "Seal"])
def test_recovery_interrupted_by_a_restart_goes_on_with_the_next_daemon(daemon: Any, run: ckptd.Run, call: str) -> None:
    daemon.hold = True
    save = run.save("t", files={"a": BIG})
    until(lambda: daemon.calls.count("Wait") >= 1, "the question of the first daemon")
    daemon.stop()
    daemon.hold = False
    daemon.script[call].append(
        lambda: (threading.Thread(target=daemon.restart).start(), time.sleep(0.5))[2:] or None
    )
    daemon.start()
    save.wait(timeout=30)
    assert daemon.started == 3 and daemon.committed["t"] == {"a": BIG}


def test_save_that_lost_its_second_daemon_is_recovered_before_a_later_one(
    daemon: Any, run: ckptd.Run
) -> None:
    daemon.hold = True
    first, second = run.save("one", files={"a": BIG}), run.save("two", files={"a": BIG[1:]})
    daemon.stop()
    one = daemon.requests["Begin"][0].key
    daemon.script["JoinRun"].append(lambda: daemon.inherit(one))  # The second daemon goes on with it.
    daemon.script["GetCheckpoint"].append(lambda: daemon.saves.pop((one.tag, one.ordinal)) and None)
    daemon.script["Begin"].append(
        lambda: (threading.Thread(target=daemon.restart).start(), time.sleep(0.5))[2:] or None
    )
    daemon.start()
    until(lambda: daemon.started == 3, "the third daemon")
    daemon.hold = False
    for tag in ("one", "two"):
        until(lambda tag=tag: (tag, 1) in daemon.saves and daemon.saves[tag, 1].files, "the recoveries")
        if tag not in daemon.committed:
            daemon.commit(tag)
    first.wait(timeout=20), second.wait(timeout=20)
    assert begun(daemon) == ["one", "two", "two", "one", "two"]


def test_recovered_save_is_recovered_again_by_each_next_daemon(daemon: Any, run: ckptd.Run) -> None:
    daemon.hold = True
    save = run.save("t", files={"a": BIG})
    for count in (2, 3, 4):
        next_daemon(daemon, hold=True)
        until(lambda count=count: daemon.calls.count("Seal") == count, "the recovery")
    next_daemon(daemon)
    save.wait(timeout=20)
    assert daemon.committed["t"] == {"a": BIG}


def test_memory_of_an_ended_session_is_kept_while_a_save_may_be_recovered_and_no_longer(
    daemon: Any, client: ckptd.Client, run: ckptd.Run
) -> None:
    run.save("zero", files={"a": BIG}).wait(timeout=20)
    daemon.hold = True
    save = run.save("t", files={"a": BIG[: SEGMENT // 2]})
    session = client._connection.peek()
    assert session is not None and session.segments is not None
    segments = [weakref.ref(segment) for segment in session.segments._segments.values()]
    assert len(segments) == 3
    daemon.stop()
    daemon.hold = False
    daemon.script["Begin"].append(refusal(grpc.StatusCode.UNAVAILABLE, "DRAINING"))
    daemon.start()
    save.wait(timeout=20)
    gc.disable()  # Reference counts alone must free the mappings.
    try:
        until(lambda: not any(segment() for segment in segments), "the end of the mappings")
    finally:
        gc.enable()
    assert save.level == "committed"


def test_close_ends_a_recovery(daemon: Any, client: ckptd.Client, run: ckptd.Run) -> None:
    daemon.hold = True
    save = run.save("t", files={"a": BIG})
    arrived, leave = threading.Event(), threading.Event()
    daemon.stop()
    daemon.script["Begin"].append(lambda: (arrived.set(), leave.wait(20))[2:] or None)
    daemon.start()
    assert arrived.wait(20)
    client.close()
    until(lambda: not recovering(), "the end of the thread")
    with pytest.raises(ckptd.Unavailable, match="closed"):
        save.wait(timeout=20)
    leave.set()
