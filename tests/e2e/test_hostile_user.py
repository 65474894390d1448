"""Two users share a daemon: one runs an ordinary job, the other tries everything to disturb it.

The daemon runs as a service: as root with the capabilities of its unit, with a manager that keeps its
descriptors. The job's trainers save continuously. After each attack: every save has committed within the
job's busy policy, the daemon is the same process, within its bounds, and has got everything back; and after a
kill and a restart it has recovered the job's root before the job reconnects.
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

# Saves continuously; `last` is where all ranks stop, so that none waits for another. A failure ends the loop.
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
    """The saving trainers of one user, and their results."""

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
        """Does this many saves on all ranks, and some more; each must commit within its policy."""
        self.start()
        self.finish(count)

    def start(self):
        for trainer in self.ranks:
            trainer.do(GO)

    def finish(self, more):
        """Does this many more saves, then stops. Since start(), no save may have failed or waited longer than
        its policy allows.
        """
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
        self.client = ckptd.connect(self.manager.endpoint)  # Root's client.
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
        """Returns the run as root sees it, or None."""
        found = [run for run in self.client.status().runs if run.path == root]
        return found[0] if found else None

    # ---- Resources

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
        """Asserts that the daemon is the same process and stayed within its bounds."""
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
        # The user's own limits let it continue, too: roots of ended sessions are idle and are closed for new
        # ones.
        until(lambda: not do(self, f"opens({self.own + '/after'!r})"), "one more root for the hostile user")

    def restart(self):
        """Kills and restarts the daemon. It must recover the job's root before the job's trainers reconnect,
        and they continue.
        """
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
    """Provides one node for all tests, as long as none fails; a failed test's node is not reused."""
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
    """The test of one attack: the job saves before it, while the attacker holds what it has, and after it."""

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
def test_1_deeply_nested_directories_affect_only_their_owner(node):
    do(node, f"copy_with_deep_trash({node.own + '/deep'!r}, {node.own + '/deeper'!r}, 19_000)")


@beside_the_job
def test_2_roots_claimed_by_other_users_are_not_forgotten(node):
    reasons = do(node, f"attach_as({node.root!r}, {node.own!r}, {node.own + '/removed'!r})")
    assert reasons[0] == "WRONG_UID", reasons
    do(node, f"attach_many({node.own + '/long'!r}, 300)")


def test_3_paths_of_other_mount_namespace_are_not_opened_but_descriptors_are(node):
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
def test_4_saves_that_hold_and_want_memory_block_no_other_user(node):
    do(node, f"hog_the_pool({node.own + '/hog'!r}, {POOL})")


@beside_the_job
def test_4_unsealed_saves_of_the_whole_pool_return_its_memory(node):
    do(node, f"hold_memory({node.own + '/hold'!r}, {POOL // 8}, 8)")


@beside_the_job
def test_5_large_worlds_and_many_files_stay_within_memory_limits(node):
    do(node, f"large_worlds({node.own + '/worlds'!r}, 12)")
    do(node, f"many_files({node.own + '/files'!r}, 15, 10_000)", 300)


@beside_the_job
def test_5_clients_that_do_not_read_stay_within_memory_limits(node):
    do(node, f"slow_readers({node.own + '/slow'!r}, {8 * MIB}, 40)")


@beside_the_job
def test_6_hundreds_of_roots_take_no_threads_or_descriptors_from_others(node):
    do(node, f"attach_many({node.own + '/many'!r}, 1000)")


@beside_the_job
def test_7_unread_descriptors_end_no_other_session(node):
    do(node, f"unread_descriptors({node.own + '/unread'!r}, 16)")


def test_8_archive_that_would_run_code_is_not_loaded_from_other_users_root(node):
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
def test_9_reader_of_root_cannot_take_its_lock(node):
    do(node, f"squat_lock({node.root!r})")
    do(node, f"squat_lock_again_and_again({node.root!r})")
    node.job.finish(1)
    node.judge()
    node.restart()  # Also after a restart.
    node.watch()
    node.job.start()


def test_10_path_names_the_run_whose_directory_it_is(node):
    node.job.save(1)
    do(node, f"attach_as({node.root!r}, {node.own!r}, {node.own + '/gone'!r})")
    do(node, f"saved({node.own!r}, 'forged')")
    listed = ckptctl("list", node.root, endpoint=node.manager.endpoint).stdout
    assert "forged" not in listed and f"s{node.job.done}" in listed, listed
    status = ckptctl("status", endpoint=node.manager.endpoint).stdout
    assert status.count(node.root) == 1 or "uid" in status.lower() or "owner" in status.lower(), status
    node.judge()


def test_11_metrics_show_no_paths_or_tags_of_other_users(node):
    node.job.save(1)
    told = do(node, f"metrics({node.port})")
    assert "ckptd" in told and node.root not in told and f"s{node.job.done}" not in told, told
    node.judge()


def test_12_files_have_the_umask_of_the_trainer(node):
    node.job.save(1)
    found = do(node, f"readable({node.root!r})")
    assert found == []


# ---- Further attacks


@beside_the_job
def test_pipes_links_and_sockets_in_a_root_block_no_other_user(node):
    do(node, f"copy_with_special_files({node.own + '/special'!r}, {node.own + '/specials'!r}, {node.root!r})", 300)


@beside_the_job
def test_root_with_thousands_of_tags_blocks_no_other_user(node):
    do(node, f"copy_with_many_tags({node.own + '/tag'!r}, {node.own + '/tags'!r}, 10_000)", 300)


@beside_the_job
def test_records_of_a_terabyte_allocate_no_memory(node):
    do(node, f"copy_with_huge_files({node.own + '/huge'!r}, {node.own + '/huges'!r})", 300)


@beside_the_job
def test_directories_exchanged_for_links_are_not_followed(node):
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
def test_requests_with_contradictory_fields_are_refused(node):
    answers = do(node, "bombs()", 300)
    assert all(answers[:5]), answers


@beside_the_job
def test_process_stopped_during_save_blocks_no_other_user(node):
    do(node, f"hold_memory({node.own + '/stopped'!r}, {POOL // 4}, 2)")
    node.hostile.send(19)
    try:
        node.job.finish(5)
    finally:
        node.hostile.send(18)
    node.job.start()
