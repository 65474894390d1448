"""The trash: what is listed, what comes back, and what a save that needs the room may take."""

import json
import os

import pytest
from harness import ckptctl, tags, until
from test_room import image, needs_root  # noqa: F401


@pytest.fixture
def daemon(make_daemon):
    return make_daemon(trash_grace=3600)


def save(rank, tag, step, size=1, keep=""):
    rank.do(f"run.save({tag!r}, step={step}, files={{'a': b'{step}' * {size}}}{keep}).wait('committed', 60)", 90)


def in_trash(rank):
    return rank.do("sorted((each.checkpoint.tag, each.checkpoint.sequence) for each in run.trash())")


def test_checkpoint_comes_back_whole_pinned_and_in_its_place_after_a_restart(daemon, trainers, root):
    rank = trainers("a", 1, options=", num_kept_ckpts=1")[0]
    for step in range(3):
        save(rank, f"s{step}", step, 100_000)
    until(lambda: in_trash(rank) == [["s0", 1], ["s1", 2]], "retention")
    daemon.kill()
    daemon.restart()
    listed = json.loads(ckptctl("trash", root, "--output=json", endpoint=daemon.endpoint).stdout)["checkpoints"]
    assert [each["checkpoint"]["tag"] for each in listed] == ["s1", "s0"], "the last one deleted first"
    told = ckptctl("undelete", os.path.join(root, "s0"), endpoint=daemon.endpoint).stdout
    assert "is back, and pinned" in told
    assert rank.do("[(each.tag, each.pinned) for each in run.list()]", 90) == [["s2", False], ["s0", True]]
    assert rank.do("run.latest().tag") == "s2"
    assert rank.do("run.open('s0').read('a')[:3].decode()", 90) == "000"
    save(rank, "s3", 3)
    until(lambda: set(tags(root)) == {"s0", "s3"}, "retention")
    assert "s2" in ckptctl("trash", root, endpoint=daemon.endpoint).stdout


def test_refusals_say_what_is_in_the_way(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    save(rank, "twice", 1)
    save(rank, "twice", 2)
    save(rank, "other", 3)
    path = os.path.join(root, "twice")
    taken = ckptctl("undelete", path, endpoint=daemon.endpoint, check=False)
    assert taken.returncode == 4 and "taken by the checkpoint of sequence 2" in taken.stderr
    assert "[TAG_TAKEN]" in taken.stderr
    ckptctl("delete", path, endpoint=daemon.endpoint)
    ckptctl("undelete", path, "--sequence=1", endpoint=daemon.endpoint)
    assert rank.do("run.open('twice').read('a').decode()", 90) == "1"
    assert rank.do("[each.checkpoint.sequence for each in run.trash()]") == [2]
    assert "NO_CHECKPOINT" in str(rank.fails("run.undelete('never')"))
    assert "TAG_TAKEN" in str(rank.fails("run.undelete('twice')"))


def test_aborted_and_failed_saves_are_not_offered(trainers):
    rank = trainers("a", 1)[0]
    rank.do("part = run.begin('aborted', files={'a': b'x'})")
    rank.fails("exec('with part: raise ValueError()')")
    save(rank, "good", 1)
    assert in_trash(rank) == []


def test_without_a_grace_period_nothing_stays(make_daemon, trainers, root):
    plain = make_daemon("plain")
    rank = trainers("a", 1, endpoint=plain.endpoint, options=", num_kept_ckpts=1")[0]
    for step in range(3):
        save(rank, f"s{step}", step)
    until(lambda: tags(root) == ["s2"], "the last eviction")  # Before it the trash is empty, too.
    until(lambda: not os.listdir(os.path.join(root, ".ckptd/nodes/local/trash")), "an empty trash")
    until(lambda: "nothing in the trash" in ckptctl("trash", root, endpoint=plain.endpoint).stdout, "an empty list")


@needs_root
def test_saves_take_the_room_of_the_oldest_checkpoints_in_trash(image, daemon, trainers):  # noqa: F811
    disk = image(64)
    rank = trainers("a", 1, where=disk.root, options=", num_kept_ckpts=1")[0]
    for step in range(9):  # 90 MB on a disk of 64 MiB, where two checkpoints at a time have to be whole.
        save(rank, f"s{step}", step, 10_000_000)
    until(lambda: ["s7", 8] in in_trash(rank), "retention")
    assert ["s0", 1] not in in_trash(rank)
    assert tags(disk.root) == ["s8"]
