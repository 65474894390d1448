"""Promises 2 and 3: sealed saves are published, others leave nothing; attempts fence old trainers."""

import os
import signal

from harness import tags, together, until, until_equal

SAVE = 'save = run.save("{tag}", step={step}, files={{f"r{{rank}}.pt": {{"x": torch.full((1000,), {step}.0)}}}})'


def test_trainer_killed_before_seal_leaves_nothing_and_returns_its_memory(daemon, trainers, root):
    ranks = trainers("a", 1)
    # A DataLoader's worker, forked with everything open, outlives the trainer.
    ranks[0].do("child = os.fork()\nif child == 0:\n    time.sleep(120)\n    os._exit(0)")
    child = ranks[0].do("child")
    try:
        ranks[0].do('part = run.begin("step_1", step=1)\npart.add("a.pt", {"x": torch.ones(1000)})')
        assert daemon.status().pool.used_bytes > 0
        ranks[0].kill()
        until(lambda: daemon.status().pool.used_bytes == 0 and daemon.status().pool.lent_bytes == 0, "the memory's return")
        assert tags(root) == []
        inflight = os.path.join(root, ".ckptd/nodes/local/inflight")
        # After the memory, because the disk has to answer first.
        until(lambda: os.listdir(inflight) == [], "the directory's way to trash")
        failure = until(lambda: daemon.run_status(root).HasField("last_failure"), "the failure") and daemon.run_status(root).last_failure
        assert failure.error.reason == "SESSION_LOST" and list(failure.error.ranks) == [0]
    finally:
        os.kill(child, signal.SIGKILL)


def test_checkpoint_is_published_when_all_trainers_are_killed_after_last_seal(daemon, trainers, root):
    ranks = trainers("a", 2)
    for trainer in ranks:
        trainer.do('state = {"x": torch.arange(8 << 20, dtype=torch.float32) + rank}')
    together(ranks, 'save = run.save("step_1", step=1, files={f"r{rank}.pt": state})')
    for trainer in ranks:
        trainer.send(signal.SIGKILL)
    until_equal(lambda: tags(root), ["step_1"], "the checkpoint")
    back = trainers("b", 2)
    assert together(
        back,
        "with run.resume() as c:\n    loaded = c.load(f'r{rank}.pt')\n"
        "bool(torch.equal(loaded['x'], torch.arange(8 << 20, dtype=torch.float32) + rank))",
    ) == [True, True]


def test_rank_that_never_seals_is_named_at_deadline_and_latest_is_unchanged(trainers, root):
    ranks = trainers("a", 2, options=", commit_timeout=2.0")
    together(ranks, SAVE.format(tag="step_1", step=1) + '\nsave.wait("committed", 30)')
    ranks[1].do('part = run.begin("step_2", step=2)')
    ranks[0].do(SAVE.format(tag="step_2", step=2))
    failure = ranks[0].fails('save.wait("committed", 30)')
    assert failure.reason == "RANKS_MISSING" and failure.ranks == [1] and failure.tag == "step_2"
    assert "ranks 1" in failure.message
    assert tags(root) == ["step_1"]
    late = ranks[1].fails('part.add("a.pt", {})\npart.seal()')  # The file fits where the last part's was, without a call.
    assert late.reason == "RANKS_MISSING"


def test_trainer_of_older_attempt_is_refused_and_changes_nothing(trainers, root):
    zombie = trainers("launch 1", 1)[0]
    zombie.do(SAVE.format(tag="step_1", step=1) + "\nsave.wait()")
    zombie.do('part = run.begin("step_2", step=2)\npart.add("a.pt", {"x": torch.zeros(10)})')
    new = trainers("launch 0", 1)[0]  # A lower number: names do not order launches.
    assert new.do("with run.resume() as c: tag = c.tag\ntag") == "step_1"
    assert zombie.fails("part.__exit__(None, None, None)").kind == "Fenced"
    assert zombie.fails(SAVE.format(tag="step_3", step=3)).kind == "Fenced"
    new.do(SAVE.format(tag="step_2", step=2) + "\nsave.wait()")
    assert tags(root) == ["step_2", "step_1"]


def test_reconnect_of_same_launch_is_accepted(trainers, root):
    rank = trainers("a", 1)[0]
    rank.do(SAVE.format(tag="step_1", step=1) + "\nsave.wait()")
    # The connection breaks; the process lives.
    rank.do("client._connection.session().handoff._socket.shutdown(2)")
    rank.do(SAVE.format(tag="step_2", step=2) + "\nsave.wait()")
    assert rank.do("run.attempt") == 1
    assert tags(root) == ["step_2", "step_1"]


def test_new_process_of_rank_starts_attempt_that_other_ranks_join(trainers, root):
    first = trainers("a", 2)
    for trainer in first:
        trainer.kill()
    second = trainers("a", 2)
    assert together(second, "run.attempt") == [2, 2]


def test_late_writes_of_revoked_trainer_change_no_checkpoint(daemon, trainers, root):
    old = trainers("old", 1, options=", commit_timeout=2.0")[0]
    old.do('part = run.begin("stalled", step=1)\npart.add("a.bin", b"z" * (8 << 20))')
    old.do(
        "import ctypes\nsegments = list(client._connection.session().segments._segments.values())\n"
        "def scribble():\n"
        "    for segment in segments: ctypes.memset(segment.address, 0xff, segment.size)\n"
        "    return len(segments)\n"
    )
    old.send(signal.SIGSTOP)
    new = trainers("new", 1)[0]
    new.do("run.resume().close()")
    new.do('save = run.save("good", step=2, files={"a.bin": b"g" * (64 << 20)})')
    old.send(signal.SIGCONT)
    assert old.do("scribble()") > 0
    new.do('save.wait("committed", 60)')
    assert new.do('with run.open("good") as c: data = c.read("a.bin")\ndata == b"g" * (64 << 20)') is True
