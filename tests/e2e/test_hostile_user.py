"""Two users share a daemon: one job that behaves, and one user who does whatever he can to be in its way.

The daemon runs as a service: as root with the capabilities of its unit, with a manager that keeps its descriptors. The job's
trainers save over and over meanwhile. After each attack: every save has committed within the job's own busy policy, the
daemon is the same process, within its bounds, and has given everything back; and after it was killed and started again, it
has recovered the job's root before the job comes.
"""

import contextlib
import functools
import os
import socket
import tempfile
import threading

import attacks
import pytest
from attacker import descriptors_of, memory_of
from harness import Trainer, alive, ckptctl, tags, until
from manager import ServiceManager

import ckptd

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")

MIB = 1 << 20
POOL = 64 * MIB
JOB, HOSTILE = 20_001, 20_002  # Users.
UNIT_CAPABILITIES = (6, 7, 14)  # CAP_SETGID, CAP_SETUID, CAP_IPC_LOCK: deploy/systemd.
BUSY_SECONDS = 10  # The job's busy policy: how long a save waits for room.
RANK_BYTES = 2 * MIB
# Low enough for each attack to reach its limit, and for the bounds below to follow from them.
LIMITS = """limits {
  roots_per_uid: 64 sessions_per_uid: 128 connections_per_uid: 256 leases_per_uid: 64 files_per_uid: 200000
  call_memory_bytes_per_uid: 67108864 grpc_memory_bytes: 268435456 over_share_grace_seconds: 2
}
"""
MOST_MEMORY = 256 * MIB  # Outside the pool.
MOST_THREADS = 160
MOST_DESCRIPTORS = 2500
ROOTS = 600  # Descriptors of the hostile user's roots, which stay open for a while.

# A save after the other; `last` is where all ranks stop, so that none waits for another. A failure ends it.
LOOP = """
client = ckptd.connect()
run = client.run({root!r}, rank={rank}, world_size={world}, num_kept_ckpts=3)
data, saves, failures, last = bytes([{rank}]) * {size}, [], [], [0]

def loop(first):
    number = first
    while number <= last[0]:
        begun = time.monotonic()
        try:
            save = run.save(f"s{{number}}", step=number, files={{f"r{{run.rank}}": data}}, busy="wait", timeout={busy})
            staged = time.monotonic() - begun
            save.wait("committed", timeout=60)
            saves.append((number, staged))
        except BaseException as error:
            failures.append(f"s{{number}} after {{time.monotonic() - begun:.1f}} s: {{type(error).__name__}}: {{error}}")
            return
        number += 1
"""
GO = """
last[0] = 1 << 30
thread = threading.Thread(target=loop, args=(len(saves) + 1,))
thread.start()
"""


class Job:
    """Trainers of one user that save, and what has become of it."""

    def __init__(self, endpoint, root, world=2):
        self.root = root
        self.ranks = []
        for rank in range(world):
            self.ranks.append(Trainer(endpoint, {"CKPTD_LAUNCH_ID": "job", "CKPTD_TEST_UID": str(JOB)}))
            self.ranks[-1].start(
                "os.umask(0o077)\n" + LOOP.format(root=root, rank=rank, world=world, size=RANK_BYTES, busy=BUSY_SECONDS)
            )
        for trainer in self.ranks:
            trainer.result()
        self.done = 0

    def save(self, count):
        """So many saves of all ranks, and some; each must commit within its policy."""
        self.start()
        self.finish(count)

    def start(self):
        for trainer in self.ranks:
            trainer.do(GO)

    def finish(self, more):
        """So many more saves, then none. No save has failed, or waited for longer than its policy says, since start()."""
        last = max(trainer.do("len(saves)") for trainer in self.ranks) + more + 1
        for trainer in self.ranks:
            trainer.do(f"last[0] = {last}")
        for trainer in self.ranks:
            saves, failures = trainer.do("thread.join()\nsaves, failures", timeout=(more + 2) * (BUSY_SECONDS + 60))
            assert not failures, failures
            assert [number for number, _ in saves] == list(range(1, last + 1))
            assert max(staged for _, staged in saves) < BUSY_SECONDS
        self.done = last

    def stop(self, number):
        for trainer in self.ranks:
            trainer.send(number)

    def close(self):
        for trainer in self.ranks:
            trainer.close()


class Node:
    """A service with its job and its hostile user."""

    def __init__(self, folder):
        self.folder = folder
        os.chmod(folder, 0o755)
        os.mkdir(f"{folder}/service", 0o755)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.manager = ServiceManager(
            f"{folder}/service",
            config=f'socket_mode: "0666"\nmax_sessions: 256\n{LIMITS}',
            pool_bytes=POOL,
            io="",
            metrics=f"port: {self.port}",
            capabilities=UNIT_CAPABILITIES,
        )
        self.manager.start().await_ready()
        self.root = self.directory("job", JOB)
        self.own = self.directory("hostile", HOSTILE)
        self.job = Job(self.manager.endpoint, self.root)
        self.hostile = Trainer(
            self.manager.endpoint,
            {"CKPTD_LAUNCH_ID": "h", "CKPTD_TEST_UID": str(HOSTILE), "CKPTD_TEST_IMPORTS": "from attacks import *"},
        )
        self.client = ckptd.connect(self.manager.endpoint)  # root's.
        self.job.save(3)
        self.watch()

    def directory(self, name, uid):
        path = f"{self.folder}/{name}"
        os.mkdir(path, 0o755)
        os.chown(path, uid, uid)
        return path

    @property
    def pid(self):
        return self.manager.pid

    def run_of(self, root):
        """As root sees it, or None."""
        found = [run for run in self.client.status().runs if run.path == root]
        return found[0] if found else None

    # ---- what it takes

    def watch(self):
        self.daemon, self.most, self.over = self.pid, [0, 0, 0], threading.Event()
        self.base = descriptors_of(self)
        self.watcher = threading.Thread(target=self.look, args=(self.daemon,))
        self.watcher.start()

    def look(self, pid):
        while not self.over.wait(0.05):
            with contextlib.suppress(OSError, AssertionError):
                threads = len(os.listdir(f"/proc/{pid}/task"))
                self.most = [max(pair) for pair in zip(self.most, (memory_of(self), threads, descriptors_of(self)))]

    def judge(self):
        """The daemon is the one that it was, and stayed within its bounds."""
        self.over.set()
        self.watcher.join()
        memory, threads, descriptors = self.most
        assert alive(self.daemon) and self.pid == self.daemon, self.manager.log()[-3000:]
        assert memory < MOST_MEMORY, f"{memory >> 20} MiB outside the pool"
        assert threads < MOST_THREADS, f"{threads} threads"
        assert descriptors < MOST_DESCRIPTORS, f"{descriptors} descriptors"

    def everything_is_back(self):
        self.hostile.do("release()", timeout=120)
        until(lambda: descriptors_of(self) < self.base + ROOTS, "the end of the attack's descriptors")
        # His own limits let him go on, too: roots of sessions that have ended are idle, and make way.
        until(lambda: not do(self, f"opens({self.own + '/after'!r})"), "one more root for the hostile user")

    def restart(self):
        """Kills the daemon and starts it anew. It has the job's root before the job's trainers come, and they go on."""
        newest = tags(self.root)[0]
        self.job.stop(19)
        try:
            self.manager.kill()
            self.manager.start().await_ready()

            def recovered():
                with contextlib.suppress(ckptd.CkptdError):
                    run = self.run_of(self.root)
                    return run is not None and run.latest is not None and run.latest.tag == newest

            until(recovered, f"the recovery of {self.root} with {newest}")
        finally:
            self.job.stop(18)
        self.job.save(2)

    def close(self):
        self.over.set()
        self.job.close()
        self.hostile.close()
        self.client.close()
        self.manager.close()


@pytest.fixture(scope="module")
def nodes():
    """One for all tests, as long as none fails: a test that fails leaves it to nobody."""
    made = []

    def node():
        if not made:
            folder = tempfile.mkdtemp(prefix="ckptd-hostile-")
            made.append(Node(folder))
        return made[0]

    def drop():
        if made:
            broken = made.pop()
            broken.close()
            attacks.remove(broken.folder)

    yield node, drop
    drop()


@pytest.fixture
def node(nodes, request):
    get, drop = nodes
    made = get()
    made.over.set()
    made.watcher.join()
    made.watch()
    yield made
    if request.node.failed:
        drop()


def beside_the_job(attack):
    """The test of one attack: the job saves from before it until what it holds was held for some saves, and goes on."""

    @functools.wraps(attack)
    def test(node, tmp_path):
        node.job.start()
        seen = attack(node)
        node.job.finish(5)  # While the attacker holds what it has.
        node.judge()
        node.everything_is_back()
        node.restart()
        if callable(seen):
            seen()

    del test.__wrapped__
    return test


def do(node, code, timeout=120):
    return node.hostile.do(code, timeout)


# ---- 1 to 12


@beside_the_job
def test_1_directories_nested_too_deep_are_their_owners_own_trouble(node):
    do(node, f"copy_with_deep_trash({node.own + '/deep'!r}, {node.own + '/deeper'!r}, 19_000)")


@beside_the_job
def test_2_roots_that_others_claim_are_not_forgotten(node):
    reasons = do(node, f"attach_as({node.root!r}, {node.own!r}, {node.own + '/removed'!r})")
    assert reasons[0] == "WRONG_UID", reasons
    do(node, f"attach_many({node.own + '/long'!r}, 300)")


def test_3_paths_of_another_mount_namespace_are_not_opened_and_descriptors_are(node):
    apart = Trainer(
        node.manager.endpoint,
        {
            "CKPTD_TEST_UID": str(HOSTILE),
            "CKPTD_TEST_IMPORTS": "from attacks import *",
            "CKPTD_TEST_MOUNT_NAMESPACE": "1",
        },
    )
    try:
        path = f"{node.own}/apart"
        do(node, f"os.mkdir({path!r})")
        by_path, by_descriptor = apart.do(f"open_by_path_and_descriptor({path!r})")
        assert by_path and not by_descriptor, (by_path, by_descriptor)
        assert do(node, f"open_by_path_and_descriptor({path!r})") == ["", ""]
    finally:
        apart.close()
    node.judge()


@beside_the_job
def test_4_saves_that_hold_and_want_memory_keep_nobody_else_waiting(node):
    do(node, f"hog_the_pool({node.own + '/hog'!r}, {POOL})")


@beside_the_job
def test_4_saves_of_the_whole_pool_that_are_never_sealed_give_it_back(node):
    do(node, f"hold_memory({node.own + '/hold'!r}, {POOL // 8}, 8)")


@beside_the_job
def test_5_large_worlds_and_many_files_stay_within_memory(node):
    do(node, f"large_worlds({node.own + '/worlds'!r}, 12)")
    do(node, f"many_files({node.own + '/files'!r}, 15, 10_000)", 300)


@beside_the_job
def test_5_and_readers_that_do_not_read(node):
    do(node, f"slow_readers({node.own + '/slow'!r}, {8 * MIB}, 40)")


@beside_the_job
def test_6_roots_by_the_hundred_take_neither_threads_nor_descriptors_from_others(node):
    do(node, f"attach_many({node.own + '/many'!r}, 1000)")


@beside_the_job
def test_7_descriptors_that_nobody_reads_end_nobodys_session(node):
    do(node, f"unread_descriptors({node.own + '/unread'!r}, 16)")


def test_8_an_archive_that_would_run_is_not_loaded_from_another_users_root(node):
    from test_nxd_pickles import script

    root = f"{node.own}/script"
    do(node, f"save_a_script({root!r}, {script()!r})")
    with pytest.raises(ckptd.Refused, match="TorchScript") as caught:
        with ckptd.open_root(root).open("t") as checkpoint:
            checkpoint.load("state.pt")
    assert caught.value.reason == "UNSAFE_GLOBALS"
    failure = node.job.ranks[0].fails(f"ckptd.open_root({root!r}).open('t').load('state.pt')")
    assert failure.reason == "UNSAFE_GLOBALS"


@beside_the_job
def test_9_the_lock_of_a_root_cannot_be_taken_by_who_can_only_read_it(node):
    do(node, f"squat_lock({node.root!r})")
    do(node, f"squat_lock_again_and_again({node.root!r})")
    node.job.finish(1)
    node.judge()
    node.restart()  # Now, too.
    node.watch()
    node.job.start()


def test_10_a_path_means_the_run_whose_directory_it_is(node):
    node.job.save(1)
    do(node, f"attach_as({node.root!r}, {node.own!r}, {node.own + '/gone'!r})")
    do(node, f"saved({node.own!r}, 'forged')")
    listed = ckptctl("list", node.root, endpoint=node.manager.endpoint).stdout
    assert "forged" not in listed and f"s{node.job.done}" in listed, listed
    status = ckptctl("status", endpoint=node.manager.endpoint).stdout
    assert status.count(node.root) == 1 or "uid" in status.lower() or "owner" in status.lower(), status
    node.judge()


def test_11_metrics_tell_no_paths_and_tags_of_others(node):
    node.job.save(1)
    told = do(node, f"metrics({node.port})")
    assert "ckptd" in told and node.root not in told and f"s{node.job.done}" not in told, told
    node.judge()


def test_12_files_are_made_with_the_trainers_umask(node):
    node.job.save(1)
    found = do(node, f"readable({node.root!r})")
    assert found == []


# ---- and beyond


@beside_the_job
def test_pipes_links_and_sockets_within_a_root_hold_up_nobody(node):
    do(node, f"copy_with_special_files({node.own + '/special'!r}, {node.own + '/specials'!r}, {node.root!r})", 300)


@beside_the_job
def test_a_root_with_thousands_of_tags_holds_up_nobody(node):
    do(node, f"copy_with_many_tags({node.own + '/tag'!r}, {node.own + '/tags'!r}, 10_000)", 300)


@beside_the_job
def test_records_of_a_terabyte_take_no_memory(node):
    do(node, f"copy_with_huge_files({node.own + '/huge'!r}, {node.own + '/huges'!r})", 300)


@beside_the_job
def test_directories_that_are_exchanged_for_links_lead_nowhere(node):
    do(node, f"swap_directories({node.own + '/swap'!r}, {node.root!r}, 3)", 300)
    return lambda: node.job.save(1)


@beside_the_job
def test_sessions_of_one_user_leave_some_to_others(node):
    do(node, "many_sessions(400)")
    late = Trainer(node.manager.endpoint, {"CKPTD_TEST_UID": str(JOB)})
    try:
        assert late.do("ckptd.connect().status() is not None")
    finally:
        late.close()


@beside_the_job
def test_connections_of_one_user_leave_some_to_others(node):
    do(node, "many_connections(1500)")


@beside_the_job
def test_requests_that_make_no_sense_are_refused(node):
    answers = do(node, "bombs()", 300)
    assert all(answers[:5]), answers


@beside_the_job
def test_a_process_that_is_stopped_within_a_save_keeps_nobody_waiting(node):
    do(node, f"hold_memory({node.own + '/stopped'!r}, {POOL // 4}, 2)")
    node.hostile.send(19)
    try:
        node.job.finish(5)
    finally:
        node.hostile.send(18)
    node.job.start()
