"""Promise 9: clients reconnect after a restart, and a repeated request takes effect once. Promise 2 without a
descriptor store: the surviving clients recover sealed saves with the next daemon.
"""

import os
import pathlib
import shlex
import signal

import pytest
from ckptd.local_daemon import find_program
from harness import Killer, alive, ckptctl, tags, together, until, until_equal

import ckptd

RANK_BYTES = 32 << 20
BEGIN = """
part = run.begin({tag!r}, step={step})
part.add(f"r{{rank}}.bin", bytes([{step} % 251, rank]) * ({size} // 2))
"""


def test_clients_reconnect_after_sigkill_of_daemon(daemon, trainers, root):
    ranks = trainers("a", 2)
    together(ranks, "run.save('one', step=1, files={f'r{rank}.bin': b'x' * 100000}).wait()")
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    together(ranks, "run.save('two', step=2, files={f'r{rank}.bin': b'y' * 100000}).wait('committed', 60)", 90)
    assert tags(root) == ["two", "one"]
    assert together(ranks, "run.attempt") == [1, 1]
    assert len([line for line in os.listdir(root) if not line.startswith(".")]) == 2


def test_commit_time_of_a_checkpoint_is_the_same_after_a_restart_and_on_the_disk(daemon, trainers, root):
    (rank,) = trainers("a", 1)
    rank.do("run.save('one', step=1, files={'a': b'x'}).wait()")
    listed = rank.do("run.list()[0].time.isoformat()")
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    assert rank.do("run.list()[0].time.isoformat()") == listed
    assert ckptd.open_root(root).list()[0].time.isoformat() == listed


@pytest.fixture
def killer(folder, monkeypatch):
    """Runs every daemon of the test, and can hold one of its threads."""
    killer = Killer(pathlib.Path(folder, "killer"))
    programs = pathlib.Path(folder, "bin")
    programs.mkdir()
    command = [*killer.wrapper(), find_program()]
    (programs / "ckptd").write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    (programs / "ckptd").chmod(0o755)
    (programs / "ckptctl").symlink_to(find_program("ckptctl"))
    monkeypatch.setenv("CKPTD_BIN", str(programs / "ckptd"))
    return killer


@pytest.fixture
def daemon(killer, make_daemon):
    daemon = make_daemon()
    daemon.killer = killer
    return daemon


def kill_after_the_last_seal(daemon, ranks, tag, step, size=RANK_BYTES, before=""):
    """Kills the daemon before it can make the system call `before`, by default the one that commits.

    The daemon is held there: otherwise a fast disk may have everything before the signal arrives.
    """
    daemon.killer.arm_to_hold(before or f"^renameat2 .*/{tag}$")
    together(ranks, BEGIN.format(tag=tag, step=step, size=size), 90)
    together(ranks[:-1], "save = part.seal()")
    ranks[-1].do(f"save = part.seal()\nos.kill({daemon.pid}, 9)")
    until(lambda: not alive(daemon.pid), "the daemon's end")
    daemon.killer.disarm()  # The next daemon may commit.


def check(root, tag, step, ranks=2, size=RANK_BYTES):
    with ckptd.open_root(root).open(tag) as checkpoint:
        for rank in range(ranks):
            assert checkpoint.read(f"r{rank}.bin") == bytes([step % 251, rank]) * (size // 2)


def segments_of(pid):
    """Returns the inodes of the segments that a process has mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as lines:
        return {line.split()[4] for line in lines if "memfd:ckptd-segment" in line}


def test_save_sealed_by_every_rank_is_recovered_by_next_daemon_and_committed(daemon, trainers, root):
    ranks = trainers("a", 2)
    together(ranks, "run.save('one', step=1, files={f'r{rank}.bin': b'x'}).wait()")
    kill_after_the_last_seal(daemon, ranks, "two", 2)
    assert tags(root) == ["one"]
    daemon.restart()
    together(ranks, "save.wait('committed', 60)", 90)
    assert tags(root) == ["two", "one"]
    check(root, "two", 2)
    assert ckptctl("verify", root).returncode == 0
    assert together(ranks, "run.failures()") == [[], []]


def test_rank_that_had_not_sealed_continues_with_ranks_that_recover(daemon, trainers, root):
    ranks = trainers("a", 2)
    together(ranks, BEGIN.format(tag="one", step=1, size=RANK_BYTES))
    ranks[0].do("save = part.seal()")
    daemon.kill()
    daemon.restart()
    ranks[1].do("save = part.seal()", 90)
    together(ranks, "save.wait('committed', 60)", 90)
    assert tags(root) == ["one"]
    check(root, "one", 1)


def test_recovery_without_rank_that_died_with_daemon_ends_as_staged_lost_with_reason(daemon, trainers, root):
    ranks = trainers("a", 2, options=", commit_timeout=3.0")
    kill_after_the_last_seal(daemon, ranks, "one", 1, before="/part-00001")  # Its part is not durable.
    ranks[1].kill()
    daemon.restart()
    error = ranks[0].fails("save.wait('committed', 60)", 90)
    assert error.kind == "CheckpointFailed" and error.reason == "STAGED_LOST" and error.ranks == [1]
    assert "RANKS_MISSING" in error.message
    until(lambda: ranks[0].do("[f.reason for f in run.failures()]") == ["STAGED_LOST"], "the failure in the list")
    assert tags(root) == []


def test_later_save_does_not_overtake_recovered_one(daemon, trainers, root):
    ranks = trainers("a", 2)
    together(ranks, BEGIN.format(tag="one", step=1, size=RANK_BYTES) + "one = part.seal()")
    kill_after_the_last_seal(daemon, ranks, "two", 2)
    assert "two" not in tags(root)
    daemon.restart()
    together(ranks, "three = run.save('three', step=3, files={f'r{rank}.bin': b'z'})", 90)
    together(ranks, "[s.wait('committed', 60) for s in (one, save, three)]", 90)
    assert tags(root) == ["three", "two", "one"]
    check(root, "one", 1)
    check(root, "two", 2)


def test_save_recovery_that_loses_its_daemon_repeats_with_next_one(daemon, trainers, root):
    ranks = trainers("a", 2)
    kill_after_the_last_seal(daemon, ranks, "one", 1)
    for _ in range(3):
        daemon.restart()
        # During the recovery or after it: when this rank's part is sealed again.
        ranks[1].do(
            f"daemon = save._state.daemon_instance\nwhile save._state.daemon_instance == daemon and save.level != 'committed': pass\nos.kill({daemon.pid}, 9)"
        )
        until(lambda: not alive(daemon.pid), "the daemon's end")
    daemon.restart()
    together(ranks, "save.wait('committed', 60)", 90)
    assert tags(root) == ["one"]
    check(root, "one", 1)


def test_memory_of_recovered_save_is_returned_when_it_ends(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    rank.do("run.save('zero', files={'r0.bin': b'z' * (8 << 20)}).wait()")
    first = segments_of(rank.pid)
    assert first
    kill_after_the_last_seal(daemon, [rank], "one", 1)
    old = first | segments_of(rank.pid)
    daemon.restart()
    rank.do("save.wait('committed', 60)", 90)  # The save is still referenced.
    until(lambda: not segments_of(rank.pid) & old, "the old segments' end")
    check(root, "one", 1, ranks=1)


def test_save_lost_with_daemon_is_reported_to_every_rank(daemon, trainers, root):
    ranks = trainers("a", 2, env={"CKPTD_TRANSPORT": "grpc"})  # The bytes are not in the trainers' memory.
    together(ranks, "run.save('one', step=1, files={f'r{rank}.bin': b'x'}).wait()")
    ranks[0].do("s = run.save('two', step=2, files={'r0.bin': b'y' * (32 << 20)})")  # Rank 1 has not sealed.
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    error = ranks[0].fails("s.wait('committed', 60)", 90)
    assert error.kind == "CheckpointFailed" and error.reason == "STAGED_LOST"
    error = ranks[1].fails("run.save('two', step=2, files={'r1.bin': b'y'})", 90)
    assert error.reason == "STAGED_LOST"
    together(ranks, "run.save('two', step=2, files={f'r{rank}.bin': b'z'}).wait('committed', 60)", 90)
    assert tags(root) == ["two", "one"]
    assert ckptctl("verify", root).returncode == 0


def test_wait_across_restart_returns_commit(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    rank.do("s = run.save('one', files={'m.bin': b'x'})")
    until_equal(lambda: tags(root), ["one"], "the commit")
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    rank.do("s.wait('committed', 60)", 90)
    assert rank.do("s.level") == "committed"


def test_sigterm_drains_sealed_saves_and_exits_cleanly(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    rank.do("s = run.save('one', files={'m.bin': b'x' * (100 << 20)})")
    os.kill(daemon.pid, signal.SIGTERM)
    until(lambda: not alive(daemon.pid), "the daemon's end", 40)
    assert tags(root) == ["one"]


def test_new_private_daemon_finds_everything_after_last_user_left(folder, root):
    place = os.path.join(folder, "p")
    with ckptd.LocalDaemon(place, pool_bytes=64 << 20) as d, ckptd.LocalDaemon(place) as joined:
        assert joined.endpoint == d.endpoint
        client = ckptd.connect(d.endpoint)
        client.run(root, rank=0, world_size=1).save("t", files={"a.bin": b"x" * 1000000})
        pid = d.pid
        client.close()
    until(lambda: not alive(pid), "the daemon's end", 30)
    assert tags(root) == ["t"]
    with ckptd.LocalDaemon(place, pool_bytes=64 << 20) as d, ckptd.connect(d.endpoint) as client:
        run = client.run(root, rank=0, world_size=1)
        assert run.latest().tag == "t"


def test_private_daemon_rejoined_at_once_is_alive(folder, root):
    place = os.path.join(folder, "p")
    for number in range(25):
        with ckptd.LocalDaemon(place, pool_bytes=64 << 20) as d, ckptd.connect(d.endpoint) as client:
            run = client.run(root, rank=0, world_size=1, num_kept_ckpts=100)
            run.save(f"t{number}", files={"a.bin": b"x" * 1000}).wait("committed", 30)
    assert sorted(tags(root)) == sorted(f"t{number}" for number in range(25))


def test_private_daemon_outlives_killed_users_until_idle_timeout(folder, root, trainers):
    trainer = trainers("a", 1, join=False)[0]
    trainer.do(
        f"local = ckptd.LocalDaemon({os.path.join(folder, 'q')!r}, pool_bytes=64 << 20, idle_timeout=1).start()\n"
        f"run = ckptd.connect(local.endpoint).run({root!r}, rank=0, world_size=1)\n"
        "s = run.save('t', files={'a.bin': b'x' * (30 << 20)})"
    )
    pid = trainer.do("local.pid")
    trainer.kill()
    until_equal(lambda: tags(root), ["t"], "the commit")
    until(lambda: not alive(pid), "the daemon's end", 30)
