"""ckptctl drain with real trainers: what is refused, what goes on, and that a restart after it loses nothing."""

import json

from harness import ckptctl, tags, until


def drain(daemon, *arguments, check=True):
    return ckptctl("drain", *arguments, endpoint=daemon.endpoint, check=check)


def test_drained_daemon_restarts_without_a_loss_and_takes_saves_again(daemon, trainers, root):
    (rank,) = trainers("a", 1)
    rank.do("run.save('s1', step=1, files={'a': b'x' * 100_000}).wait()", 60)
    assert "DRAINED after" in drain(daemon, "--message=a new kernel").stdout
    refused = rank.fails("run.save('s2', step=2, files={'a': b'x'})")
    assert refused.reason == "NODE_DRAINED"
    assert "a new kernel" in str(refused)
    assert rank.do("run.restore(lambda c: len(c.read('a')))") == 100_000, "restores go on"
    daemon.kill()
    daemon.restart()
    rank.do("run.save('s3', step=3, files={'a': b'x'}).wait()", 60)
    assert tags(root) == ["s3", "s1"]


def test_drain_waits_for_the_save_that_has_begun_and_says_what_would_be_lost(daemon, trainers, root):
    first, second = trainers("a", 2)
    first.start("part = run.begin('s1', step=1, files={'a': b'x' * 1000})")  # It waits for the other rank.
    until(lambda: "s1" in ckptctl("list", str(root), "--all", endpoint=daemon.endpoint).stdout, "the save")
    early = drain(daemon, "--deadline=0.1s", check=False)
    assert early.returncode == 5
    assert f"{root}/s1" in early.stdout and "lost: not all ranks have sealed their part" in early.stdout
    second.do("save = run.save('s1', step=1, files={'b': b'x' * 1000})")  # It has begun: no new save.
    first.result(60)
    assert second.fails("run.save('s2', step=2, files={'b': b'x'})").reason == "NODE_DRAINED"
    first.do("part.seal().wait()", 60)
    done = drain(daemon, "--deadline=60s", "--output=json")
    assert json.loads(done.stdout)["drain"]["drained"]
    until(lambda: tags(root) == ["s1"], "the checkpoint")
    drain(daemon, "--undo")
    for rank in (first, second):
        rank.start("run.save('s3', step=3, files={f'{run.rank}': b'x'}).wait()")
    for rank in (first, second):
        rank.result(60)
    assert tags(root) == ["s3", "s1"]
