"""Retention policies: what stays after random histories is what a model of a few lines keeps; and the commands that
show and change what a run keeps.
"""

import json
import math
import os
import random
import signal

import ckptd
import pytest
from harness import ckptctl, tags, until, until_equal


def kept(history, last=1, best=0, metric="", highest=False, every=0, pins=()):
    """The model: which of the committed checkpoints, [(tag, step, metrics, suspect)] oldest first, a policy keeps."""
    good = [(tag, step, metrics) for tag, step, metrics, suspect in history if not suspect]
    stays = set(pins) | {tag for tag, _, _ in good[-last:]}
    rated = []
    for place, (tag, _, metrics) in enumerate(good):
        value = metrics.get(metric, math.nan)
        if not math.isnan(value):
            rated.append((value if highest else -value, place, tag))
    stays |= {tag for _, _, tag in sorted(rated, reverse=True)[:best]}
    stays |= {tag for tag, step, _ in good if every and step % every == 0}
    return stays | {history[-1][0]}  # The newest one, even if it is suspect.


POLICIES = [
    ("last=2", {"last": 2}),
    ("last=1,best=2:loss:min", {"last": 1, "best": 2, "metric": "loss"}),
    ("best=3:loss:max", {"best": 3, "metric": "loss", "highest": True}),
    ("last=3,every=5", {"last": 3, "every": 5}),
    ("last=2,best=1:loss:min,every=4", {"last": 2, "best": 1, "metric": "loss", "every": 4}),
]
LOSSES = [0.0, -0.0, 1e-05, 0.5, 0.5, 2.0, -1.0, math.inf, math.nan, None]


@pytest.mark.parametrize("seed", range(3))
def test_what_stays_after_a_random_history_is_what_the_model_keeps(seed, daemon, trainers, root):
    dice = random.Random(seed)
    rank = trainers("a", 1, options=", retention=ckptd.Keep(last=4)")[0]
    policy, history, pins = {"last": 4}, [], set()
    for step in range(24):
        event = dice.choice(["save", "save", "save", "policy", "pin", "unpin", "kill"])
        if event == "policy":
            text, policy = dice.choice(POLICIES)
            ckptctl("retention", root, f"--set={text}", endpoint=daemon.endpoint)
        elif event == "pin" and history:
            pins.add(dice.choice(history)[0])
            for tag in pins:
                rank.do(f"run.pin({tag!r})")
        elif event == "unpin" and pins:
            pins.discard(tag := dice.choice(sorted(pins)))
            rank.do(f"run.unpin({tag!r})")
            continue  # What an unpinned checkpoint lost is decided by the policy in force, which the next save settles.
        elif event == "kill":
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.restart()
        loss = dice.choice(LOSSES)
        metrics = {} if loss is None else {"loss": loss}
        told = "{}" if loss is None else f"{{'loss': float('{loss}')}}"
        suspect = dice.random() < 0.3
        options = f"step={step}, metrics={told}, check=ckptd.Finite('suspect')"
        state = f"{{'w': torch.tensor(float('{'nan' if suspect else '1'}'))}}"
        rank.do(f"run.save('s{step}', {options}, files={{'a.pt': {state}}}).wait('committed', 60)", 90)
        history.append((f"s{step}", step, metrics, suspect))
        stays = kept(history, pins=pins, **policy)
        history = [each for each in history if each[0] in stays]
        until(lambda: set(tags(root)) == stays, f"retention after step {step} with {policy}")


def test_stricter_policy_removes_nothing_before_the_next_commit(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    for step in range(3):
        rank.do(f"run.save('s{step}', step={step}, files={{'a': b'x'}}).wait('committed', 60)", 90)
    shown = ckptctl("retention", root, "--dry-run", "--set=last=1", endpoint=daemon.endpoint).stdout
    assert "policy: last=1" in shown and shown.count("nothing: goes at the next commit") == 2
    set_text = ckptctl("retention", root, "--set=last=1", endpoint=daemon.endpoint).stdout
    assert set_text == f"{os.path.realpath(root)} keeps last=1 from the next commit on\n"
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    assert rank.do("sorted(each.tag for each in run.list())", 90) == ["s0", "s1", "s2"]
    explained = ckptctl("retention", root, "--output=json", endpoint=daemon.endpoint)
    assert json.loads(explained.stdout)["policy"]["last"] == 1, "the policy survives the daemon"
    assert "from the next commit on: last=1" in ckptctl("status", "--verbose", endpoint=daemon.endpoint).stdout
    rank.do("run.save('s3', step=3, files={'a': b'x'}).wait('committed', 60)", 90)
    until_equal(lambda: tags(root), ["s3"], "retention")
    ckptctl("retention", root, "--clear", endpoint=daemon.endpoint)
    for step in (4, 5):
        rank.do(f"run.save('s{step}', step={step}, files={{'a': b'x'}}).wait('committed', 60)", 90)
    assert rank.do("[each.kept_by for each in run.explain_retention()]") == [["keeps all"]] * 3


def test_best_and_explanation_follow_the_same_rules(daemon, trainers, root):
    rank = trainers("a", 1, options=", retention=ckptd.Keep(last=1, best=1, metric='loss')")[0]
    for step, loss in enumerate([0.5, 0.25, 0.25, float("nan")]):
        rank.do(
            f"run.save('s{step}', step={step}, metrics={{'loss': float('{loss}')}}, files={{'a': b'x'}})"
            ".wait('committed', 60)",
            90,
        )
    until(lambda: set(tags(root)) == {"s2", "s3"}, "retention")
    assert rank.do("run.best('loss').tag") == "s2"
    assert rank.do("run.best('accuracy')") is None
    decisions = rank.do("[(each.tag, each.kept_by) for each in run.explain_retention()]")
    assert decisions == [["s3", ["last 1"]], ["s2", ["best 1 by lowest loss"]]]
    gone = rank.do("[each.kept_by for each in run.explain_retention(ckptd.Keep(last=1))]")
    assert gone == [["last 1"], []]


def test_deleting_keeps_what_is_needed(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    for step in range(3):
        rank.do(
            f"run.save('s{step}', step={step}, files={{'a': b'x'}}, pointers={{'latest': 's{step}'}})"
            ".wait('committed', 60)",
            90,
        )
    rank.do("other = client.open(run.root).open('s1')")  # Another object of the same process.
    error = rank.fails("run.delete('s1')")
    assert error.reason == "BEING_READ" and "this process has it open; call close()" in error.message
    rank.do("other.close()")
    with ckptd.connect(daemon.endpoint) as client, client.open(root).open("s1"):
        error = rank.fails("run.delete('s1')")
        assert error.reason == "BEING_READ" and f"pid {os.getpid()})" in error.message
    rank.do("run.pin('s0')")
    refused = ckptctl("delete", os.path.join(root, "s0"), endpoint=daemon.endpoint, check=False)
    assert refused.returncode == 4 and "it is pinned" in refused.stderr and "[CHECKPOINT_KEPT]" in refused.stderr
    error = rank.fails("run.delete('s2', force=True)")
    assert "newest checkpoint" in str(error)
    ckptctl("delete", os.path.join(root, "s0"), "--force", endpoint=daemon.endpoint)
    assert rank.do("run.delete('s1').tag") == "s1"
    until_equal(lambda: tags(root), ["s2"], "deletion")
    assert "NO_CHECKPOINT" in str(rank.fails("run.delete('s1')"))


def test_forced_deletion_moves_the_pointers(trainers, root):
    rank = trainers("a", 1)[0]
    save = "run.save({tag!r}, files={{'a': b'x'}}, pointers={pointers!r}).wait('committed', 60)"
    for tag, pointers in [("s0", {"best": "s0"}), ("s1", {"best": "s1", "only": "s1"}), ("s2", {})]:
        rank.do(save.format(tag=tag, pointers=pointers), 90)
    assert "a pointer file in the root names it" in str(rank.fails("run.delete('s1')"))
    rank.do("run.delete('s1', force=True)")
    with open(os.path.join(root, "best")) as best:
        assert best.read() == "s0"
    assert not os.path.exists(os.path.join(root, "only"))


def test_ranks_that_keep_differently_are_told(daemon, trainers, root):
    ranks = trainers("a", 2)
    for rank, policy in zip(ranks, ("ckptd.Keep(last=1)", "ckptd.Keep(last=1, every=10)")):
        rank.do(f"run.retention = {policy}")
    ranks[0].start("run.save('s', files={}).wait('committed', 60)")
    until(lambda: "OPEN" in ckptctl("list", root, "--all", endpoint=daemon.endpoint).stdout, "the first rank's save")
    error = ranks[1].fails("run.save('s', files={})")
    assert "keeps last 1, every 10 steps" in str(error) and "a rank that keeps last 1" in str(error)
