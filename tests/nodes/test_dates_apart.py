"""Nodes whose clocks are hours apart, and from etcd's: what the date decides on no node, and what it tells.

Each node coordinates once in these tests, so that what one of them says is judged by the others.
"""

import contextlib
import datetime
import os
import re
import subprocess
import time

import pytest
from launches import Launch, words
from shifted_dates import DatesApart, why_no_dates
from test_doctor import examine
from test_kills import (  # noqa: F401 - run again here, with these clocks
    test_coordinator_lost_in_a_save_of_its_ranks_ends_it_by_another_one,
    test_member_lost_in_a_save_ends_it_on_all_nodes_after_the_grace,
)
from test_lost_time import (  # noqa: F401
    test_node_that_sleeps_longer_than_its_lease_is_lost_and_goes_on_when_it_wakes,
)

from harness import closing, tags, temporary_folder, until_equal

WHY_NOT = why_no_dates()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
HOUR = 3600
AHEAD, BEHIND, RIGHT = SHIFTS = (5 * HOUR, -7 * HOUR, 0)  # Of gpu1, gpu2 and gpu3.
SLACK_SECONDS = 120


@pytest.fixture
def places():
    with temporary_folder() as folder:
        yield DatesApart(folder, SHIFTS)


@contextlib.contextmanager
def coordinated_by(cluster, node, launch_id, keep=None):
    """A launch of two ranks on one node, which coordinates the run, because no other daemon runs meanwhile."""
    others = [other for other in cluster.nodes if other is not node]
    for other in others:
        assert other.end() == 0, other.log()
    with closing(Launch(launch_id, cluster.root, [node], keep=keep)) as job:
        assert node.coordinator(cluster.root) == node.name
        yield job
    for other in others:
        other.start()
    cluster.wait_until_registered()


def seconds_from_here(checkpoint):
    """How far a checkpoint's time is from now, by this machine's clock."""
    committed = datetime.datetime.fromisoformat(checkpoint["commit_time"].replace("Z", "+00:00"))
    return committed.timestamp() - time.time()


def test_order_of_checkpoints_is_that_of_their_commits_and_their_times_rise(cluster):
    for number, (node, shift) in enumerate(zip(cluster.nodes, SHIFTS), 1):
        told = subprocess.run([*node.wrapper, "date", "+%s"], capture_output=True, text=True, check=True)
        assert abs(int(told.stdout) - time.time() - shift) < SLACK_SECONDS
        with coordinated_by(cluster, node, f"alone-{number}") as job:
            resumed = job.do("me.resume()")
            assert [found and found[0] for found in resumed] == [f"step_{number - 1}" if number > 1 else None] * 2
            assert words(job.save(f"step_{number}", number)) == {"committed"}
    assert tags(cluster.root) == ["step_3", "step_2", "step_1"]
    for node in cluster.nodes:
        listed = node.listed(cluster.root)
        assert [checkpoint["tag"] for checkpoint in listed] == ["step_3", "step_2", "step_1"]
        # The first was committed by the clock that is ahead, and no later one has an earlier time.
        times = [seconds_from_here(checkpoint) for checkpoint in listed]
        assert times == sorted(times, reverse=True)
        assert all(abs(seconds - AHEAD) < SLACK_SECONDS for seconds in times), (node.name, listed)
    with closing(Launch("all", cluster.root, cluster.nodes)) as job:
        assert [found[:2] for found in job.do("me.resume()")] == [["step_3", 3]] * 6
        assert words(job.save("step_4", 4)) == {"committed"}
        assert words(job.save("step_1", 5)) == {"committed"}  # Replaces the one from the future.
    assert tags(cluster.root) == ["step_1", "step_4", "step_3", "step_2"]


def test_retention_keeps_the_newest_and_no_ended_save_is_forgotten_early(cluster):
    for number, node in enumerate([*cluster.nodes, *cluster.nodes], 1):
        with coordinated_by(cluster, node, f"alone-{number}", keep=2) as job:
            assert words(job.save(f"step_{number}", number)) == {"committed"}
            kept = [f"step_{each}" for each in (number, number - 1) if each > 0]
            until_equal(lambda kept=kept: tags(cluster.root), kept, "retention to keep two")
    # Each has ended minutes ago at most, by a clock that says nothing of the date; they are forgotten after an hour.
    (run,) = os.listdir(f"{cluster.root}/.ckptd/shared/run")
    assert cluster.etcd.count(f"/ckptd/runs/{run}/index/") == 6


def test_doctor_of_several_nodes_says_how_far_their_clocks_are_apart(cluster):
    root = cluster.shared / "examined"
    root.mkdir()
    for _, answer in examine(cluster, str(root)):
        (finding,) = [each for each in answer["findings"] if each["subject"] == "clocks"]
        assert finding["verdict"] == "WARNING", finding
        apart = re.match(r"([\d.]+) ms apart at most \(gpu1 and gpu2;", finding["what"])
        assert apart and abs(float(apart[1]) / 1000 - (AHEAD - BEHIND)) < SLACK_SECONDS, finding


def test_newer_than_counts_by_the_coordinators_clock_and_last_by_none(cluster):
    """A limit that docs/retention.md names: two seconds are twelve hours for a coordinator whose clock is that far ahead."""
    ahead, behind, _ = cluster.nodes
    with coordinated_by(cluster, behind, "behind") as job:
        behind.ask("retention", cluster.root, "--set=last=2,newer_than=2h")
        for step in (1, 2, 3):
            assert words(job.save(f"step_{step}", step)) == {"committed"}
        assert tags(cluster.root) == ["step_3", "step_2", "step_1"]
    with coordinated_by(cluster, ahead, "ahead") as job:
        assert words(job.save("step_4", 4)) == {"committed"}
        until_equal(lambda: tags(cluster.root), ["step_4", "step_3"], "retention by the age")
