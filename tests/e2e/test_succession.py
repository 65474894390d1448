"""Promise 2 under a service manager with a descriptor store: a sealed save is published even if the daemon is
killed.
"""

import collections
import contextlib
import os
import random
import re
import signal
import time

import pytest
from harness import ckptctl, tags, together, until, until_equal
from manager import ServiceManager

import ckptd

MIB = 1 << 20
POOL_BYTES = 128 * MIB
STORED = 17  # Segments of 8 MiB, and the journal.
RANK_BYTES = 24 * MIB
BEGIN = """
part = run.begin({tag!r}, step={step})
part.add(f"r{{rank}}.bin", bytes([{step} % 251, rank]) * ({size} // 2))
"""
# Runs on the last rank; the daemon is killed before anything else happens.
SEAL_AND_KILL = """
save = part.seal()
time.sleep({delay})
os.kill({pid}, 9)
"""
TAKEN_OVER = re.compile(r"the sealed save (\S+) of \S+ \(sequence \d+\) of an earlier daemon is taken over")


@pytest.fixture
def manager(folder):
    made = ServiceManager(folder)
    yield made
    made.close()


@pytest.fixture
def ranks(manager, trainers, root):
    """Starts the processes of one launch."""
    return lambda launch, world, **more: trainers(launch, world, endpoint=manager.endpoint, **more)


@pytest.fixture
def daemon():
    """Overrides the private daemon of the other tests."""


def seal_all_and_kill(manager, ranks, tag, step, delay=0.0, size=RANK_BYTES, then=""):
    """Kills the daemon `delay` seconds after the last seal of its two ranks was acknowledged."""
    together(ranks, BEGIN.format(tag=tag, step=step, size=size), 90)
    ranks[0].do("save = part.seal()")
    ranks[1].start(SEAL_AND_KILL.format(pid=manager.pid, delay=delay) + then)
    assert manager.process.wait(60) == -signal.SIGKILL


def kill_everything_after_the_last_seal(manager, ranks, tag, step):
    first, last = ranks("a", 2)
    seal_all_and_kill(manager, (first, last), tag, step, then="os.kill(os.getpid(), 9)")
    first.kill()
    last.process.wait(60)


def check(root, tag, step, size=RANK_BYTES):
    with ckptd.open_root(root).open(tag) as checkpoint:
        for rank in range(2):
            assert checkpoint.read(f"r{rank}.bin") == bytes([step % 251, rank]) * (size // 2)


def descriptors_of(manager):
    """Counts the daemon's descriptors by kind, once it has all of its segments."""

    def held():
        kinds = collections.Counter()
        for fd in os.listdir(f"/proc/{manager.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # Closed meanwhile.
                kinds[re.sub(r"[0-9]+", "N", os.readlink(f"/proc/{manager.pid}/fd/{fd}"))] += 1
        return kinds

    until(lambda: len(manager.names()) == STORED, "the segments of the pool, and the journal")
    # The last barrier's pipe may still be there.
    return {kind: count for kind, count in held().items() if not kind.startswith("pipe:")}


def test_next_daemon_publishes_when_daemon_and_trainers_are_killed_after_last_seal(manager, ranks, root):
    manager.start().await_ready()
    kill_everything_after_the_last_seal(manager, ranks, "step_1", 1)
    assert tags(root) == []  # A scan of the disk could not have found anything.
    manager.start().await_ready()
    until_equal(lambda: tags(root), ["step_1"], "the checkpoint")
    assert TAKEN_OVER.findall(manager.log()) == ["step_1"]
    check(root, "step_1", 1)
    assert ckptctl("verify", root).returncode == 0


def test_sealed_save_is_published_whenever_daemons_are_killed_and_nothing_leaks(manager, ranks, root):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    manager.start().await_ready()
    restarts, kept_at_most = 0, manager.kept_bytes()
    size = 8 * MIB
    step = 0
    trainers = ranks("a", 2)
    while restarts < 50:
        step += 1
        tag = f"step_{step}"
        seal_all_and_kill(manager, trainers, tag, step, chance.choice((0, 0.005, 0.02)), size)
        trainers[1].result()
        for _ in range(chance.randrange(4)):  # The next daemons are killed, too.
            manager.start()
            time.sleep(chance.uniform(0, 0.25))
            kept_at_most = max(kept_at_most, manager.kept_bytes())
            manager.kill()
            restarts += 1
        manager.start().await_ready()
        restarts += 1
        until(lambda expected=tag: expected in tags(root), f"{tag} after {restarts} restarts")
        assert tags(root)[0] == tag
        together(trainers, "save.wait('committed', 60)", 90)
        check(root, tag, step, size)
    taken_over = len(set(TAKEN_OVER.findall(manager.log())))
    assert taken_over > step / 2, f"{taken_over} of {step}: the disk was too fast for this test to be meaningful"
    assert ckptctl("verify", root).returncode == 0
    assert os.listdir(os.path.join(root, ".ckptd/nodes/local/inflight")) == []
    for trainer in trainers:
        trainer.kill()
    # The daemon and the manager have as many descriptors and as much memory as with a daemon that inherits
    # nothing.
    manager.kill()
    manager.start().await_ready()
    heir = descriptors_of(manager)
    assert max(kept_at_most, manager.kept_bytes()) <= POOL_BYTES + MIB
    manager.kill()
    manager.drop()
    manager.start().await_ready()
    assert heir == descriptors_of(manager)


def test_living_trainer_waits_across_restart_and_receives_commit(manager, ranks, root):
    manager.start().await_ready()
    (rank,) = ranks("a", 1)
    rank.do(f"s = run.save('one', files={{'m.bin': b'x' * {RANK_BYTES}}})\nos.kill({manager.pid}, 9)")
    manager.process.wait(60)
    manager.start().await_ready()
    rank.do("s.wait('committed', 60)", 90)
    rank.do("run.save('two', files={'m.bin': b'y'}).wait('committed', 60)", 90)
    assert tags(root) == ["two", "one"] and rank.do("run.attempt") == 1


def test_partly_sealed_save_is_reported_lost_and_returns_its_memory(manager, ranks, root):
    manager.start().await_ready()
    first, second = ranks("a", 2)
    together((first, second), BEGIN.format(tag="one", step=1, size=RANK_BYTES))
    first.do("s = part.seal()")
    manager.kill()
    manager.start().await_ready()
    assert first.fails("s.wait('committed', 60)", 90).reason == "STAGED_LOST"
    assert tags(root) == [] and TAKEN_OVER.findall(manager.log()) == []
    until(lambda: manager.kept_bytes() <= POOL_BYTES + MIB, "the memory")


def test_save_without_time_to_drain_is_left_to_next_daemon(folder, trainers, root):
    manager = ServiceManager(folder, config="drain_timeout_seconds: 0")
    try:
        manager.start().await_ready()
        (rank,) = trainers("a", 1, endpoint=manager.endpoint)
        rank.do(f"s = run.save('one', files={{'m.bin': b'x' * {RANK_BYTES}}})\nos.kill({manager.pid}, 15)")
        assert manager.process.wait(60) == 1
        assert tags(root) == [] and "leaving sealed saves to the next daemon saves=1" in manager.log()
        manager.start().await_ready()
        rank.do("s.wait('committed', 60)", 90)
        assert tags(root) == ["one"]
    finally:
        manager.close()


def test_damaged_journal_is_refused_and_nothing_of_it_is_published(manager, ranks, root):
    manager.start().await_ready()
    kill_everything_after_the_last_seal(manager, ranks, "step_1", 1)
    journal = manager.descriptor("ckptd-journal")
    for head in (0, 4096):
        os.pwrite(journal, b"\xff", head + 20)
    manager.start().await_ready()
    assert "the sealed saves of an earlier daemon are lost: damaged seal journal" in manager.log()
    (rank,) = ranks("b", 1)
    rank.do("run.save('two', files={'m.bin': b'y'}).wait('committed', 60)")
    assert tags(root) == ["two"]
    until(lambda: len(manager.names()) == STORED, "a journal and segments of its own")


def test_store_that_is_too_small_is_reported_and_saves_continue_without_it(folder, trainers, root):
    manager = ServiceManager(folder, most=3)
    try:
        manager.start().await_ready()
        until(lambda: "raise FileDescriptorStoreMax" in manager.log(), "the warning")
        (rank,) = trainers("a", 1, endpoint=manager.endpoint)
        rank.do(f"run.save('one', files={{'m.bin': b'x' * {RANK_BYTES}}}).wait('committed', 60)")
        assert tags(root) == ["one"]
    finally:
        manager.close()
