"""Promises 5 and 6: a save without room is refused before a byte is copied; a full or hung disk affects no
other root.
"""

import os
import subprocess
import time

import pytest
from harness import tags, together_failing, until, until_equal

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts loop images: needs root")


class Image:
    """A small file system in a file."""

    def __init__(self, folder, mebibytes):
        self.file = os.path.join(folder, "disk.img")
        self.path = os.path.join(folder, "disk")
        with open(self.file, "wb") as file:
            file.truncate(mebibytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", self.file], check=True)
        os.mkdir(self.path)
        subprocess.run(["mount", "-o", "loop", self.file, self.path], check=True)
        self.root = os.path.join(self.path, "ckpts")
        os.mkdir(self.root)

    def freeze(self):
        subprocess.run(["fsfreeze", "--freeze", self.path], check=True)

    def thaw(self):
        subprocess.run(["fsfreeze", "--unfreeze", self.path], check=False, stderr=subprocess.DEVNULL)

    def close(self):
        self.thaw()
        deadline = time.monotonic() + 30
        while subprocess.run(["umount", self.path], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            if time.monotonic() > deadline:
                subprocess.run(["umount", "-l", self.path], check=True)
                return
            time.sleep(0.1)


@pytest.fixture
def image(folder):
    made = []

    def make(mebibytes):
        made.append(Image(folder, mebibytes))
        return made[-1]

    yield make
    for one in made:
        one.close()


@needs_root
def test_save_is_refused_at_begin_and_writes_nothing_when_disk_is_too_small(image, make_daemon, trainers):
    disk = image(48)
    daemon = make_daemon("room")
    ranks = trainers("a", 2, where=disk.root, endpoint=daemon.endpoint)
    errors = together_failing(ranks, "run.save('t', files={f'r{rank}.bin': b'x' * (40 << 20)})")
    assert [error.kind for error in errors] == ["NoSpace", "NoSpace"]
    assert "disk" in errors[0].message
    assert os.listdir(f"{disk.root}/.ckptd/nodes/local/inflight") == []
    ranks[0].do("1")
    daemon.close()


@needs_root
def test_save_waits_for_trash_and_succeeds_on_disk_of_n_plus_one_checkpoints(image, make_daemon, trainers):
    disk = image(96)  # Two checkpoints of 30 MiB, and one more in flight.
    daemon = make_daemon("room")
    rank = trainers("a", 1, where=disk.root, endpoint=daemon.endpoint, options=", num_kept_ckpts=1")[0]
    for i in range(5):
        rank.do(f"s = run.save('s{i}', files={{'m.bin': bytes([{i}]) * (30 << 20)}}, timeout=30)")
    rank.do("s.wait('committed', 60)")
    until_equal(lambda: tags(disk.root), ["s4"], "retention")
    daemon.close()


def test_save_larger_than_pool_is_refused_at_once(make_daemon, trainers):
    daemon = make_daemon("small", pool_bytes=8 << 20)
    rank = trainers("a", 1, endpoint=daemon.endpoint)[0]
    for busy in ("wait", "skip", "supersede"):
        error = rank.fails(f"run.save('t', busy='{busy}', files={{'m.bin': b'x' * (32 << 20)}})")
        assert error.kind == "NoSpace" and error.reason == "POOL_TOO_SMALL", busy


def test_full_pool_follows_busy_policy(make_daemon, trainers):
    daemon = make_daemon("small", pool_bytes=8 << 20)
    rank = trainers("a", 1, endpoint=daemon.endpoint)[0]
    rank.do("part = run.begin('held')\npart.add('h.bin', b'x' * (6 << 20))")
    error = rank.fails("run.save('t', files={'m.bin': b'x' * (6 << 20)}, timeout=1.0)")
    assert error.kind == "Busy" and error.reason == "ADMISSION_TIMEOUT" and "memory" in error.message
    assert rank.do("run.save('u', busy='skip', files={'m.bin': b'x' * (6 << 20)}).level") == "skipped"
    rank.do("part.__exit__(None, None, None)\npart.wait()")
    rank.do("run.save('v', files={'m.bin': b'x' * (6 << 20)}, timeout=20).wait()")


@needs_root
def test_hung_root_blocks_no_other_root_and_continues_when_it_answers(image, make_daemon, trainers, root):
    disk = image(200)
    daemon = make_daemon("room")
    stuck = trainers("a", 1, where=disk.root, endpoint=daemon.endpoint)[0]
    healthy = trainers("b", 1, endpoint=daemon.endpoint)[0]
    stuck.do("run.save('before', files={'m.bin': b'x' * (1 << 20)}).wait()")
    disk.freeze()
    try:
        stuck.do("s = run.save('during', files={'m.bin': b'y' * (20 << 20)}, timeout=20)")
        assert stuck.fails("s.wait('committed', 1.0)").kind == "WaitTimeout"
        for i in range(3):
            healthy.do(f"run.save('s{i}', files={{'m.bin': b'z' * (20 << 20)}}).wait('committed', 20)")
        until(lambda: daemon.run_status(disk.root).degraded, "DEGRADED", 30)
        assert not daemon.run_status(root).degraded
        assert daemon.status().state == "DEGRADED"
    finally:
        disk.thaw()
    stuck.do("s.wait('committed', 60)")
    assert tags(disk.root) == ["during", "before"]
    until(lambda: not daemon.run_status(disk.root).degraded, "recovery")
    daemon.close()
