"""Promises 3 and 4: saving a tag again is atomic, and nothing foreign or pinned is touched."""

import os
import signal

import pytest
from harness import ckptctl, tags, until, until_equal

import ckptd


def test_resave_replaces_checkpoint_atomically(trainers, root):
    rank = trainers("a", 1)[0]
    rank.do("run.save('t', step=1, files={'m.bin': b'old', 'gone.bin': b'x'}).wait()")
    rank.do("run.save('t', step=2, files={'m.bin': b'new'}).wait()")
    assert tags(root) == ["t"]
    with ckptd.open_root(root).open("t") as c:
        assert (c.step, c.read("m.bin"), list(c.files)) == (2, b"new", ["m.bin"])


@pytest.mark.parametrize("written", [0.0, 0.3, 0.9])
def test_daemon_killed_during_resave_leaves_old_or_new_whole(daemon, trainers, root, written):
    rank = trainers("a", 1)[0]
    rank.do("old = b'o' * (64 << 20)\nrun.save('t', step=1, files={'m.bin': old}).wait()")
    rank.do("new = b'n' * (64 << 20)\ns = run.save('t', step=2, files={'m.bin': new})")

    def far_enough():
        in_flight = daemon.run_status(root).in_flight
        return not in_flight or in_flight[0].written_bytes >= written * in_flight[0].size_bytes

    until(far_enough, "some of the bytes")
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    until(lambda: daemon.run_status(root).HasField("latest"), "the recovery of the known root")
    assert daemon.run_status(root).latest.tag == "t" and tags(root) == ["t"]
    assert ckptctl("verify", root).returncode == 0
    with ckptd.open_root(root).open("t") as c:
        data = c.read("m.bin")
        assert data in (b"o" * (64 << 20), b"n" * (64 << 20)) and (c.step == 1) == (data[:1] == b"o")


def test_foreign_directory_is_refused_and_untouched(trainers, root):
    os.mkdir(f"{root}/theirs")
    with open(f"{root}/theirs/file", "w", encoding="ascii") as file:
        file.write("precious")
    rank = trainers("a", 1)[0]
    error = rank.fails("run.save('theirs', files={'m.bin': b'x'})")
    assert "Refused" in error.bases and error.reason == "TAG_FOREIGN"
    assert os.listdir(f"{root}/theirs") == ["file"]


def test_pinned_checkpoint_is_neither_replaced_nor_evicted(daemon, trainers, root):
    rank = trainers("a", 1, options=", num_kept_ckpts=1")[0]
    rank.do("run.save('keep', files={'m.bin': b'1'}).wait()")
    ckptctl("pin", f"{root}/keep", endpoint=daemon.endpoint)
    assert rank.fails("run.save('keep', files={'m.bin': b'2'})").reason == "PINNED"
    rank.do("run.save('b', files={'m.bin': b'2'}).wait()\nrun.save('c', files={'m.bin': b'3'}).wait()")
    until_equal(lambda: tags(root), ["c", "keep"], "retention")
    ckptctl("unpin", f"{root}/keep", endpoint=daemon.endpoint)
    until_equal(lambda: tags(root), ["c"], "retention after unpin")


def test_save_over_empty_directory_succeeds(trainers, root):
    os.mkdir(f"{root}/t")
    trainers("a", 1)[0].do("run.save('t', files={'m.bin': b'x'}).wait()")
    assert tags(root) == ["t"]


def test_retention_never_leaves_fewer_than_n(trainers, root):
    rank = trainers("a", 1, options=", num_kept_ckpts=2")[0]
    for i in range(6):
        rank.do(f"run.save('s{i}', step={i}, files={{'m.bin': b'x' * 100000}}).wait()")
        assert len(tags(root)) >= min(2, i + 1)
    until_equal(lambda: tags(root), ["s5", "s4"], "retention")
    until(lambda: os.listdir(f"{root}/.ckptd/nodes/local/trash") == [], "the trash")
