"""The adapters in jobs whose ranks are on two nodes: any assignment of ranks, each kind of launcher, and what all ranks hear
where it cannot work. The suites of the adapters run on two nodes, too (job_nodes.py).
"""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import time

import nxd_job  # noqa: F401 - The ranks import it.
import pytest
from job_nodes import pair_of_nodes  # noqa: F401

from harness import TESTS, Daemon, Trainer, tags, together, together_failing
from harness.session_fixtures import *  # noqa: F403

_IMPORTS = (
    "import torch.distributed as dist, torch.distributed.checkpoint as dcp, ckptd.dcp, dcp_states as states, nxd_job\n"
    "import ckptd.nxd as nxd\nfrom ckptd.dcp import Writer\n"
)
_SECONDS = 10  # Within so many all ranks hear that they cannot save together.


def by_torchrun(rank, layout):
    first, count = layout.index(layout[rank]), layout.count(layout[rank])
    of_node = {"LOCAL_RANK": rank - first, "LOCAL_WORLD_SIZE": count}
    return {"TORCHELASTIC_RUN_ID": "job", "RANK": rank, "WORLD_SIZE": len(layout), **of_node}


def by_srun(rank, layout):
    here = [str(other) for other, node in enumerate(layout) if node == layout[rank]]
    step = {"SLURM_STEP_NUM_TASKS": len(layout), "SLURM_STEP_NUM_NODES": 2, "SLURM_STEP_ID": 0, "SLURM_JOB_ID": 7}
    return {"SLURM_PROCID": rank, "SLURM_GTIDS": ",".join(here), **step}


def one_by_one(rank, layout):
    return {}


class Job:
    """Ranks with a process group. layout: the endpoint of each."""

    def __init__(self, endpoints, address, environments, temporary):
        path = os.pathsep.join([str(TESTS / "dcp"), str(TESTS / "e2e"), os.environ.get("PYTHONPATH", "")])
        base = {"CKPTD_TEST_IMPORTS": _IMPORTS, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(temporary)}
        self.ranks = []
        for endpoint, environment in zip(endpoints, environments):
            more = {name: str(value) for name, value in environment.items()}
            self.ranks.append(Trainer(endpoint, {**base, **more}))
        for rank, trainer in enumerate(self.ranks):
            trainer.start(
                f"rank = {rank}; where = nxd_job.topology(rank, tp=2, dp=2)\n"
                f"dist.init_process_group('gloo', init_method={address!r}, rank=rank, world_size={len(self.ranks)})"
            )
        for trainer in self.ranks:
            trainer.result(120)

    def do(self, code):
        return together(self.ranks, code)

    def close(self):
        for trainer in self.ranks:
            trainer.close()


@pytest.fixture
def start(tmp_path):
    """Starts a job: start(endpoints, environments)."""
    made = []

    def begin(endpoints, environments=None):
        address = f"tcp://127.0.0.1:{free_port()}" if environments else f"file://{tmp_path}/store-{len(made)}"
        made.append(Job(endpoints, address, environments or [{}] * len(endpoints), tmp_path))
        return made[-1]

    yield begin
    for job in made:
        job.close()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def root(pair_of_nodes, request):  # noqa: F811
    return f"{pair_of_nodes.shared}/{request.node.name.partition('[')[0]}-{time.monotonic_ns()}"


STATE = "states.sharded_state({})"


@pytest.mark.parametrize(
    "launcher, layout",
    [(by_torchrun, [0, 0, 0, 1]), (by_srun, [0, 1, 0, 1]), (one_by_one, [0, 1, 1, 0])],
    ids=["torchrun, unequal", "srun, cyclic", "one by one"],
)
def test_ranks_of_any_assignment_save_are_killed_and_resume(start, pair_of_nodes, root, launcher, layout):  # noqa: F811
    endpoints = [pair_of_nodes.nodes[node].endpoint for node in layout]
    environments = [launcher(rank, layout) for rank in range(4)]
    job = start(endpoints, environments)
    if launcher is not one_by_one:
        # The launcher tells a group where the other ranks are, which are not asked.
        job.do("group = dist.new_group([1, 3])")
        mesh = "states.DeviceMesh.from_group(group, 'cpu')"
        save = f"dcp.save(states.sharded_state(1, {mesh}), storage_writer=Writer({root + '/some-1'!r}), process_group=group)"
        together([job.ranks[rank] for rank in (1, 3)], save)
    job.do(f"dcp.save({STATE.format(2)}, storage_writer=Writer({root + '/all-2'!r}))")
    job.do(f"nxd.configure(topology=where); nxd_job.save(nxd, {root + '-nxd'!r}, 3, where, True, async_save=True)")
    job.do(f"saved = ckptd.dcp.async_save({STATE.format(3)}, checkpoint_id={root + '/all-3'!r})")
    job.close()
    again = start(endpoints, environments)
    again.do(f"into = states.emptied({STATE.format(3)}); dcp.load(into, storage_reader=ckptd.dcp.Reader({root + '/all-3'!r}))")
    assert again.do(f"states.differences({STATE.format(3)}, into)") == [[]] * 4
    again.do("nxd.configure(topology=where)")
    assert again.do(f"nxd_job.loaded_wrong(nxd, {root + '-nxd'!r}, 3, where, True)") == [[]] * 4
    again.do(f"nxd_job.save(nxd, {root + '-nxd'!r}, 4, where, True)")
    again.do(f"dcp.save({STATE.format(4)}, storage_writer=Writer({root + '/all-4'!r}))")
    assert tags(root)[:3] == ["all-4", "all-3", "all-2"] and tags(root + "-nxd") == ["step_4", "step_3"]


@pytest.fixture(scope="module")
def alone(session_folder):  # noqa: F811
    """A daemon that knows no other node."""
    made = Daemon(os.path.join(session_folder, "alone"))
    yield made
    made.close()


def test_example_of_two_nodes_trains_with_fsdp_under_torchrun(pair_of_nodes, root):  # noqa: F811
    where = f"127.0.0.1:{free_port()}"
    command = [str(TESTS.parent / "examples/two_nodes/launch.sh"), where, "fsdp-1", f"--root={root}", "--steps=2", "--save_every=1"]
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    common = {**os.environ, "PATH": path, "JOB": "examples.training.train_fsdp", "RANKS": "2", "OMP_NUM_THREADS": "1"}
    launchers = [
        subprocess.Popen(command, cwd=TESTS.parent, env={**common, "CKPTD_ENDPOINT": node.endpoint}) for node in pair_of_nodes.nodes
    ]
    try:
        assert [launcher.wait(200) for launcher in launchers] == [0, 0]
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    assert len(tags(root)) == 2
    assert all(node.log().count("checkpoint committed") for node in pair_of_nodes.nodes)


def test_rank_that_does_not_save_is_named_to_the_others(start, pair_of_nodes, root):  # noqa: F811
    job = start([pair_of_nodes.nodes[rank % 2].endpoint for rank in range(3)])
    save = f"dcp.save({{'w': torch.ones(3)}}, storage_writer=Writer({root + '/s-1'!r}, timeout=1))"
    for failure in together_failing(job.ranks[:2], save):
        assert failure.reason == "RANKS_MISSING" and failure.ranks == [2], failure
    # The next save does not begin anew: the ranks wait for each other where they were.
    job.do(save.replace("timeout=1", "timeout=60"))
    assert tags(root) == ["s-1"]


SAVES = {
    "dcp.save": "dcp.save({'w': torch.ones(3)}, storage_writer=Writer(root + '/s-1'))",
    "dcp.save, installed": "ckptd.dcp.install(); dcp.save({'w': torch.ones(3)}, checkpoint_id=root + '/s-1')",
    "async_save": "ckptd.dcp.async_save({'w': torch.ones(3)}, checkpoint_id=root + '/s-1').result(60)",
    "dcp.async_save": "dcp.async_save({'w': torch.ones(3)}, storage_writer=Writer(root + '/s-1')).result(60)",
    "no collectives": "dcp.save({'w': torch.ones(3)}, storage_writer=Writer(root + '/s-1'), use_collectives=False)",
    "nxd": "nxd.configure(topology=where); nxd.save_checkpoint(root, 's-1', model={'x': torch.ones(3)})",
}


def check_refusal(job, root, temporary, words, saves=tuple(SAVES), reasons=("MULTI_NODE_UNSUPPORTED",)):
    """All saves are refused on all ranks at once, for one of the reasons, with these words at the top, and leave nothing."""
    job.do(f"root = {str(root)!r}")
    for name in saves:
        begin = time.monotonic()
        failures = together_failing(job.ranks, SAVES[name])
        assert time.monotonic() - begin < _SECONDS, name
        for failure in failures:
            assert "Refused" in failure.bases and failure.reason in reasons, (name, failure)
            assert [word for word in words if word not in failure.message.partition("\n")[0]] == [], (name, failure.message)
        job.do("ckptd.dcp.uninstall()")
    assert not [path for path in pathlib.Path(temporary).glob("ckptd-*")], "a private daemon was started"
    assert not os.path.exists(f"{root}/s-1")


def test_node_without_a_service_is_named_on_all_ranks(start, pair_of_nodes, root, tmp_path):  # noqa: F811
    node = pair_of_nodes.nodes[0]
    job = start([node.endpoint, node.endpoint, "", ""])
    elsewhere = "import socket; from ckptd._membership import launch\nlaunch.boot_id = lambda: 'another'; socket.gethostname = lambda: 'gpu2'"
    together(job.ranks[2:], elsewhere)
    words = ["ranks 2, 3 on gpu2: no service", "systemctl start ckptd", "shared_folders", "etcd_endpoints"]
    check_refusal(job, root, tmp_path, words)
    together(job.ranks[2:], f"os.environ['CKPTD_ENDPOINT'] = {f'unix:{tmp_path}/none'!r}")
    check_refusal(job, root, tmp_path, [f"no ckptd answers at unix:{tmp_path}/none", "ranks 2, 3 on gpu2"])


def test_root_that_the_nodes_do_not_share_is_refused_on_all_ranks(start, pair_of_nodes, tmp_path):  # noqa: F811
    endpoints = [pair_of_nodes.nodes[rank // 2].endpoint for rank in range(4)]
    # The daemon of one node waits some seconds for the lock that the other one has.
    words, saves = ["does not share this root", "shared_folders"], ["dcp.save", "nxd"]
    check_refusal(start(endpoints), tmp_path / "elsewhere", tmp_path, words, saves)


def test_daemon_that_knows_no_other_node_is_refused_on_all_ranks(start, pair_of_nodes, alone, root, tmp_path):  # noqa: F811
    node = pair_of_nodes.nodes[0]
    job = start([node.endpoint, node.endpoint, alone.endpoint, alone.endpoint])
    # Either daemon may open the root first. The one that knows no other node then hears of them by the ranks or by the root.
    reasons = ["MULTI_NODE_UNSUPPORTED", "ROOT_SHARING_CHANGED"]
    check_refusal(job, root, tmp_path, ["etcd_endpoints", "shared_folders"], reasons=reasons)


def test_daemon_that_knows_no_other_node_is_refused_in_a_root_that_nodes_share(start, pair_of_nodes, alone, root, tmp_path):  # noqa: F811
    node = pair_of_nodes.nodes[0]
    start([node.endpoint]).do(f"dcp.save({{'w': torch.ones(3)}}, storage_writer=Writer({root + '/s-0'!r}))")
    job = start([node.endpoint, node.endpoint, alone.endpoint, alone.endpoint])
    words = ["several nodes share this root", "etcd_endpoints", "shared_folders"]
    check_refusal(job, root, tmp_path, words, reasons=["ROOT_SHARING_CHANGED"])
    assert tags(root) == ["s-0"]
