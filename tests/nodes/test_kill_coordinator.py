"""SIGKILL of the coordinator at each step by which it publishes a checkpoint and removes another one (docs/design.md, A save,
and Reading and removing). The ranks of the other nodes hear that the save has committed when the lease is over, those of its
own node when it is back; the root never shows what is not whole, and in the end has one checkpoint and nothing else. One test
holds the coordinator at such a step, as a file system that hangs does, until another node has published.

Before each of its calls here, etcd and the root are as the step before has left them. All cases run on one cluster.
`tools/soak coordinator` kills at every call.
"""

import contextlib

import pytest
from cluster import PROMPT_SECONDS
from coordinator_kills import Moment, new_job

MANIFEST_OF_TERM = r"IN_FLIGHT/\.ckptd/manifest\.\d+"
TO_THE_TAG = "^renameat2? IN_FLIGHT -> NEW$"
REMOVED = r"OLD/\.ckptd\.removed\.\d+"
NO_LONGER_A_CHECKPOINT = rf"^renameat2? OLD/\.ckptd -> {REMOVED}$"

# In the order in which they come. The save has another tag than the checkpoint before it.
PUBLISHES = {
    "all-are-durable": Moment("^open NEW$", "old"),
    "publishing-is-said": Moment(r"^open IN_FLIGHT/\.ckptd/node\.", "old"),
    "makes-manifest-of-its-term": Moment(f"^openat2 {MANIFEST_OF_TERM}$", "old"),
    "syncs-manifest": Moment(f"^f(data)?sync {MANIFEST_OF_TERM}$", "old"),
    "names-manifest": Moment(rf"^renameat2? {MANIFEST_OF_TERM} -> IN_FLIGHT/\.ckptd/manifest$", "old"),
    "syncs-tree": Moment(r"^fsync IN_FLIGHT/\.ckptd$", "old", since="^renameat2? .*/manifest$"),
    "renames-to-tag": Moment(TO_THE_TAG, "old"),
    "syncs-parents": Moment("^fsync ROOT$", "new old", since=TO_THE_TAG),
}
# COMMITTED is said. Retention removes the checkpoint before it.
REMOVES = {
    "writes-pointer": Moment(r"^openat2 .*/pointer\.new$", "new old"),
    "eviction-is-said": Moment("^open OLD$", "new old", since="^renameat2? .* -> ROOT/latest$"),
    "renames-its-directory": Moment(NO_LONGER_A_CHECKPOINT, "new old"),
    "unlinks-a-file": Moment(r"^unlinkat OLD/rank1\.raw$", "new"),
    "unlinks-what-was-the-manifest": Moment(f"^unlinkat {REMOVED}/manifest$", "new"),
    "removes-what-was-its-directory": Moment(f"^unlinkat {REMOVED}$", "new"),
    "removes-directory-of-tag": Moment("^unlinkat OLD$", "new"),
}
# The save has the tag of the checkpoint before it, and cannot have it before that one is removed.
REPLACES = {
    "finds-tag-taken": Moment(TO_THE_TAG, "old"),
    "renames-its-directory": Moment(NO_LONGER_A_CHECKPOINT, "old"),
    "unlinks-a-file": Moment(r"^unlinkat OLD/rank1\.raw$", ""),
    "removes-directory-of-tag": Moment("^unlinkat OLD$", ""),
    "renames-to-tag": Moment(TO_THE_TAG, "", at=2),
}


def moments(named):
    return pytest.mark.parametrize("moment", named.values(), ids=named)


class Jobs:
    """One job for all tests, until one of them fails."""

    def __init__(self):
        self.job = None
        self.stack = contextlib.ExitStack()

    def get(self):
        self.job = self.job or self.stack.enter_context(new_job())
        return self.job

    def close(self):
        self.job = None
        self.stack.close()


@pytest.fixture(scope="module")
def jobs():
    with contextlib.closing(Jobs()) as made:
        yield made


@pytest.fixture
def job(request, jobs):
    made = jobs.get()
    yield made
    if getattr(request.node, "failed", False):
        print(made.cluster.logs())
        jobs.close()


@moments(PUBLISHES)
def test_coordinator_killed_while_it_publishes_is_followed_by_one_that_goes_on(job, moment):
    job.save_and_kill(moment, replaces_tag=False)


@moments(REMOVES)
def test_coordinator_killed_after_a_commit_is_followed_by_one_that_ends_its_removals(job, moment):
    job.save_and_kill(moment, replaces_tag=False, seconds=PROMPT_SECONDS)


@moments(REPLACES)
def test_coordinator_killed_while_it_replaces_a_checkpoint_is_followed_by_one_that_goes_on(job, moment):
    job.save_and_kill(moment, replaces_tag=True)


def test_two_coordinators_killed_in_turn_at_the_rename_are_followed_by_the_third(job):
    job.save_and_kill(PUBLISHES["renames-to-tag"], replaces_tag=False, coordinators=2)


def test_two_coordinators_killed_in_turn_in_a_removal_are_followed_by_the_third(job):
    job.save_and_kill(REPLACES["unlinks-a-file"], replaces_tag=True, coordinators=2)


def test_coordinator_whose_file_system_hangs_at_the_rename_is_followed_by_another_node(job):
    job.save_and_hang(PUBLISHES["renames-to-tag"])
