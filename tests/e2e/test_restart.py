"""Promise 9: clients reconnect after a restart, and a repeated request takes effect once."""

import os
import signal

from harness import alive, ckptctl, tags, together, until

import ckptd


def test_attached_clients_reconnect_after_sigkill_of_the_daemon(daemon, trainers, root):
    ranks = trainers("a", 2)
    together(ranks, "run.save('one', step=1, files={f'r{rank}.bin': b'x' * 100000}).wait()")
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    together(ranks, "run.save('two', step=2, files={f'r{rank}.bin': b'y' * 100000}).wait('committed', 60)", 90)
    assert tags(root) == ["two", "one"]
    assert together(ranks, "run.attempt") == [1, 1]
    assert len([line for line in os.listdir(root) if not line.startswith(".")]) == 2


def test_save_that_the_daemon_took_along_is_reported_to_every_rank(daemon, trainers, root):
    ranks = trainers("a", 2)
    together(ranks, "run.save('one', step=1, files={f'r{rank}.bin': b'x'}).wait()")
    ranks[0].do("s = run.save('two', step=2, files={'r0.bin': b'y' * (32 << 20)})")   # Rank 1 has not sealed.
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    error = ranks[0].fails("s.wait('committed', 60)", 90)
    assert error.kind == "CheckpointFailed" and error.reason == "STAGED_LOST"
    error = ranks[1].fails("run.save('two', step=2, files={'r1.bin': b'y'})", 90)
    assert error.reason == "STAGED_LOST"
    together(ranks, "run.save('two', step=2, files={f'r{rank}.bin': b'z'}).wait('committed', 60)", 90)
    assert tags(root) == ["two", "one"]
    assert ckptctl("verify", root).returncode == 0


def test_wait_over_a_restart_hears_of_the_commit(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    rank.do("s = run.save('one', files={'m.bin': b'x'})")
    until(lambda: tags(root) == ["one"], "the commit")
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    rank.do("s.wait('committed', 60)", 90)
    assert rank.do("s.level") == "committed"


def test_sigterm_drains_what_is_sealed_and_ends_cleanly(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    rank.do("s = run.save('one', files={'m.bin': b'x' * (100 << 20)})")
    os.kill(daemon.pid, signal.SIGTERM)
    until(lambda: not alive(daemon.pid), "the daemon's end", 40)
    assert tags(root) == ["one"]


def test_private_daemon_ends_with_its_last_user_and_a_new_one_finds_everything(folder, root):
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


def test_private_daemon_outlives_users_that_died_until_its_idle_timeout(folder, root, trainers):
    trainer = trainers("a", 1, join=False)[0]
    trainer.do(
        f"local = ckptd.LocalDaemon({os.path.join(folder, 'q')!r}, pool_bytes=64 << 20, idle_timeout=1).start()\n"
        f"run = ckptd.connect(local.endpoint).run({root!r}, rank=0, world_size=1)\n"
        "s = run.save('t', files={'a.bin': b'x' * (30 << 20)})"
    )
    pid = trainer.do("local.pid")
    trainer.kill()
    until(lambda: tags(root) == ["t"], "the commit")
    until(lambda: not alive(pid), "the daemon's end", 30)
