"""NxD's functions in jobs of real processes over gloo: every layout is restored bit for bit, whoever is
killed.
"""

import itertools
import os
import shutil
import signal

import nxd_job
import pytest
import torch
from harness import Trainer, tags, together, together_failing, until

START = """
import torch.distributed as dist, ckptd.nxd as nxd, nxd_job
dist.init_process_group("gloo", init_method="file://{folder}/gloo-{launch}", rank={rank}, world_size={world})
where = nxd_job.topology({rank}, {shape})
nxd.configure(topology=where, commit_timeout={commit_timeout})
root, rank = {root!r}, {rank}
"""


@pytest.fixture
def launch(daemon, folder, root):
    """Creates the processes of one launch; they start together and answer later."""
    made = []

    def start(name, world, shape, commit_timeout=60):
        ranks = []
        for rank in range(world):
            environment = {"CKPTD_LAUNCH_ID": name, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            ranks.append(Trainer(daemon.endpoint, environment))
            made.append(ranks[-1])
            ranks[-1].start(
                START.format(
                    folder=folder, launch=name, rank=rank, world=world, shape=shape, root=root, commit_timeout=commit_timeout
                )
            )
        return ranks

    yield start
    for trainer in made:
        trainer.close()


WAYS = list(itertools.product([False, True], repeat=3))  # use_xser, async_save, ZeRO-1


def save(step, use_xser, async_save, zero1, root="root", on_far=False):
    ways = f"use_xser={use_xser}, async_save={async_save}, on_far={on_far}"
    return f"nxd_job.save(nxd, {root}, {step}, where, {zero1}, {ways})"


def wrong(step, zero1, tag=True, root="root"):
    name = f'"step_{step}"' if tag else "None"
    return f"nxd_job.loaded_wrong(nxd, {root}, {step}, where, {zero1}, {name})"


def ready(ranks):
    for trainer in ranks:
        trainer.result()


@pytest.mark.parametrize(
    "world, shape, other",
    [(4, "tp=2, dp=2", ""), (8, "tp=2, pp=2, dp=2", "tp=4, dp=2, strided=True")],
    ids=["4 ranks", "8 ranks"],
)
def test_load_restores_every_bit_after_all_trainers_were_killed(launch, root, world, shape, other):
    first, second = launch("first", world, shape), launch("second", world, shape)
    ready(first + second)
    if other:
        # Neighbours are in one data-parallel group, as with tp=4 on trn1.
        elsewhere = f"{root}-strided"
        change = f"where = nxd_job.topology(rank, {other})\nnxd.configure(topology=where)"
        together(first, change)
        for step, use_xser in ((1, True), (2, False)):
            together(first, save(step, use_xser, False, True, root=repr(elsewhere)))
            assert together(first, wrong(step, True, root=repr(elsewhere))) == [[]] * world
        together(first, f"where = nxd_job.topology(rank, {shape})\nnxd.configure(topology=where)")
    steps = {}
    for step, (use_xser, async_save, zero1) in enumerate(WAYS, start=1):
        together(first, save(step, use_xser, async_save, zero1))
        steps[step] = zero1
    together(first, save(9, True, True, True))
    steps[9] = True
    for trainer in first:
        trainer.send(signal.SIGKILL)
    until(lambda: os.path.exists(f"{root}/step_9/done"), "the marker, without any further call")
    assert together(second, "nxd.has_checkpoint(root)") == [True] * world
    assert together(second, wrong(9, True, tag=False)) == [[]] * world
    for step, zero1 in steps.items():
        assert together(second, wrong(step, zero1)) == [[]] * world, f"step {step}"
    assert tags(root) == [f"step_{step}" for step in reversed(steps)]


@pytest.mark.parametrize(
    "shape, on_far",
    [("dp=4, ep=2", False), ("dp=4, ep=2", True), ("tp=2, dp=2", True)],
    ids=["experts", "experts on a far device", "far device"],
)
def test_every_layout_with_experts_and_device_tensors_is_restored_bit_for_bit(launch, root, shape, on_far):
    ranks = launch("a", 4, shape)
    ready(ranks)
    steps = {}
    for step, (use_xser, async_save, zero1) in enumerate(WAYS, start=1):
        together(ranks, save(step, use_xser, async_save, zero1, on_far=on_far))
        steps[step] = zero1
    together(ranks, "nxd.finalize_checkpoint()")
    for step, zero1 in steps.items():
        assert together(ranks, wrong(step, zero1)) == [[]] * 4, f"step {step}: {WAYS[step - 1]}"


def test_trainers_killed_while_overwriting_a_tag_leave_old_checkpoint_whole(launch, root):
    ranks = launch("a", 2, "dp=2")
    again = launch("b", 2, "dp=2")
    ready(ranks + again)
    together(ranks, save(1, True, False, True))
    # The same tag with other contents, of which only one rank's part arrives.
    ranks[0].do("nxd_job.Scheduler(7)")
    ranks[0].do(
        "model = nxd_job.Model(7, where)\n"
        "nxd.save_checkpoint(root, 'step_1', model, nxd_job.NeuronZero1Optimizer(model, 7, where), use_xser=True, async_save=True)"
    )
    for trainer in ranks:
        trainer.send(signal.SIGKILL)
    assert together(again, wrong(1, True, tag=False)) == [[], []]
    assert tags(root) == ["step_1"]


def test_load_waits_for_checkpoint_sealed_by_killed_launch(launch, root):
    """Otherwise ranks that look at different moments would not agree on whether there is one."""
    first, second = launch("a", 2, "dp=2"), launch("b", 2, "dp=2")
    ready(first + second)
    together(first, "state = {'x': torch.ones(12 << 20)}")
    together(first, "nxd.save_checkpoint(root, 'step_1', optimizer=state, zero1_optimizer=True, async_save=True)")
    for trainer in first:
        trainer.send(signal.SIGKILL)
    assert together(second, "nxd.has_checkpoint(root)") == [True, True]
    assert together(second, "state = {}\nnxd.load_checkpoint(root, optimizer=state)\nfloat(state['x'].sum())") == [12 << 20] * 2


FAILS = """
class Broken(nxd_job.NeuronZero1Optimizer):
    def state_dict(self):
        raise ArithmeticError("no state today")

model = nxd_job.Model({step}, where)
kind = Broken if rank == 1 else nxd_job.NeuronZero1Optimizer
nxd.save_checkpoint(root, "step_{step}", model, kind(model, {step}, where), async_save=True)
"""


def test_failed_async_save_raises_on_every_rank_and_writes_no_done_file(launch, root):
    ranks = launch("a", 2, "dp=2")
    ready(ranks)
    together(ranks, save(1, False, True, True))
    for trainer in ranks:
        trainer.start(FAILS.format(step=2))
    assert ranks[1].result_failing().kind == "ArithmeticError"
    try:
        ranks[0].result()  # The rank may already know of the failure, or not.
    except Exception as error:
        assert "no state today" in str(error)
    failures = together_failing(ranks, save(3, False, True, True))
    assert all("no state today" in failure.message for failure in failures), failures
    assert [failure.reason for failure in failures] == ["SAVE_ABORTED"] * 2
    assert tags(root) == ["step_1"]
    together(ranks, save(4, False, True, True) + "\nnxd.finalize_checkpoint()")
    assert tags(root) == ["step_4", "step_1"]
    assert not os.path.exists(f"{root}/step_2") and not os.path.exists(f"{root}/step_3")


def test_rank_that_never_saves_is_named_in_error(launch, root):
    ranks = launch("a", 2, "dp=2", commit_timeout=2)
    ready(ranks)
    failure = ranks[0].fails(save(1, False, False, True))
    assert failure.ranks == [1] and tags(root) == []


def test_two_processes_with_same_rank_are_refused_before_saving(launch, root):
    ranks = launch("a", 2, "dp=2")
    ready(ranks)
    together(ranks, "nxd.configure(topology=nxd.Topology(dp_rank=1, dp_size=2))")
    for failure in together_failing(ranks, "nxd.save_checkpoint(root, 'step_1', model={})"):
        assert failure.kind == "ValueError" and "ranks 0 and 1 have the same coordinates" in failure.message
    together(ranks, "nxd.configure(topology=where)\n" + save(2, False, False, True))
    assert tags(root) == ["step_2"]


def test_without_topology_all_ranks_are_data_parallel_and_load_with_other_world_size(launch, root):
    ranks, fewer = launch("a", 3, "dp=3"), launch("b", 2, "dp=2")
    ready(ranks + fewer)
    together(ranks, "nxd.configure()\n" + save(1, True, False, True))
    files = sorted(os.listdir(f"{root}/step_1/optim"))
    assert [name for name in files if name.endswith("_00.pt")] == [
        f"dp_rank_{dp:02d}_tp_rank_00_pp_rank_00.pt" for dp in range(3)
    ]
    assert together(fewer, wrong(1, True, tag=False)) == [[], []]


def test_link_to_a_tag_is_loaded_verified_and_a_tag_without_its_manifest_is_refused(launch, root, daemon):
    ranks = launch("a", 2, "tp=2, dp=1")
    ready(ranks)
    together(ranks, save(1, True, False, True))
    os.symlink("step_1", f"{root}/best")
    linked = 'nxd_job.loaded_wrong(nxd, root, 1, where, True, "best")'
    assert together(ranks, linked) == [[], []]
    shutil.copytree(f"{root}/step_1", f"{root}/copy", ignore=shutil.ignore_patterns(".ckptd"))
    for error in together_failing(ranks, linked.replace("best", "copy")):
        assert error.kind == "Corrupt" and "written by ckptd, and its manifest" in error.message
    daemon.kill()  # It has the bytes in memory, too.
    daemon.restart()
    name = f"{root}/step_1/optim/dp_rank_00_tp_rank_00_pp_rank_00.pt"
    with open(name, "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    errors = together_failing(ranks, linked)
    assert "Corrupt" in {error.kind for error in errors}, errors


def test_torch_alone_can_read_the_layout(launch, root):
    ranks = launch("a", 2, "tp=2, dp=1")
    ready(ranks)
    together(ranks, save(1, False, False, True))
    for tp in range(2):
        where = nxd_job.topology(tp, tp=2)
        read = torch.load(f"{root}/step_1/model/dp_rank_00_tp_rank_{tp:02d}_pp_rank_00.pt", weights_only=True)
        assert nxd_job.differences(read, dict(nxd_job.Model(1, where).state_dict())) == []
    for marker in ("checkpoint", "done"):
        with open(f"{root}/step_1/{marker}", "rb") as file:
            assert file.read() == b"1"


# ---- Loading ends together

TOGETHER = """
import os, time


class Slow(torch.nn.Module):
    def load_state_dict(self, state, strict=True):
        if rank == 1:
            await_file({folder!r} + "/rank-0")
        open(f"{folder}/rank-{{rank}}", "w").close()

def await_file(path):
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < deadline, path
        time.sleep(0.01)

nxd.load_checkpoint(root, "step_1", Slow())
os.path.exists({folder!r} + "/rank-1")
"""


def test_load_by_name_returns_when_every_rank_has_loaded(launch, root, folder):
    ranks = launch("a", 2, "dp=2")
    ready(ranks)
    together(ranks, save(1, False, False, True))
    assert together(ranks, TOGETHER.format(folder=folder)) == [True, True]


def test_load_fails_on_every_rank_when_one_rank_cannot_load_its_part(launch, root):
    ranks = launch("a", 2, "dp=2")
    ready(ranks)
    together(ranks, "nxd.save_checkpoint(root, 'step_1', model={'x': torch.ones(3)})")
    scheduler = "nxd_job.Scheduler(0) if rank else None"
    first, second = together_failing(ranks, f"nxd.load_checkpoint(root, 'step_1', model={{}}, scheduler={scheduler})")
    assert second.reason == "UNKNOWN_FILE" and "scheduler.pt" in second.message
    assert first.reason == "RESUME_FAILED" and first.ranks == [1] and "rank 1: NoFile" in first.message
    together(ranks, "nxd.load_checkpoint(root, 'step_1', model={})")  # The failure has no lasting effect.


def test_rank_that_never_loads_is_named_in_error(launch, root):
    ranks = launch("a", 2, "dp=2", commit_timeout=2)
    ready(ranks)
    together(ranks, save(1, False, False, True))
    failure = ranks[0].fails("nxd.load_checkpoint(root, 'step_1', model={})")
    assert failure.reason == "RESUME_INCOMPLETE" and failure.ranks == [1]


# ---- NxD's older functions

OLDER = """
from ckptd.nxd import checkpointing
def state(step):
    return nxd_job.NeuronZero1Optimizer(nxd_job.Model(step, where), step, where).expected(step)
"""


@pytest.mark.parametrize("save_xser", [False, True])
def test_older_functions_save_every_ranks_part_in_one_checkpoint(launch, root, save_xser):
    ranks = launch("a", 4, "tp=2, dp=2")
    ready(ranks)
    save_one = f"checkpointing.save(state(1), root + '/t', save_xser={save_xser}, master_dp_only=False)"
    together(ranks, OLDER + save_one)
    differing = f"nxd_job.differences(checkpointing.load(root + '/t', load_xser={save_xser}, master_dp_only=False), state(1))"
    assert together(ranks, differing) == [[]] * 4
    names = {name for name in os.listdir(f"{root}/t") if "tensors" not in name and not name.startswith(".")}
    assert names == {f"tp_rank_{tp:02d}_pp_rank_00_dp_rank_{dp:02d}" for tp in range(2) for dp in range(2)}


# ---- Ranks that do not do the same

LOGGED = """
import logging
logging.getLogger("ckptd").addHandler(logging.FileHandler(f"{folder}/log-{{rank}}"))
nxd._store.WARN_SECONDS = 0.3
"""


def logs(folder, rank):
    with open(f"{folder}/log-{rank}") as file:
        return file.read()


def test_rank_that_has_not_begun_the_save_is_named_in_the_log_while_others_wait(launch, root, folder):
    ranks = launch("a", 2, "dp=2")
    ready(ranks)
    together(ranks, save(1, False, False, True) + LOGGED.format(folder=folder))
    ranks[0].start(save(2, False, False, True))
    until(lambda: "ranks 1 have not begun a save; every rank must call" in logs(folder, 0), "the warning")
    ranks[1].start(save(2, False, False, True))
    ready(ranks)
    assert "to save step_2 in" in logs(folder, 0) and logs(folder, 1) == ""


def test_ranks_that_save_different_tags_are_named_in_the_log_while_they_wait(launch, root, folder):
    ranks = launch("a", 2, "dp=2")
    ready(ranks)
    together(ranks, save(1, False, False, True) + LOGGED.format(folder=folder))
    for rank, trainer in enumerate(ranks):
        trainer.start(save(2 + rank, False, False, True))
    for rank in range(2):
        until(lambda rank=rank: f"rank {1 - rank} saves step_{3 - rank} in {root}" in logs(folder, rank), "the warning")


PRIVATE = """
import tempfile
del os.environ["CKPTD_ENDPOINT"]
tempfile.tempdir = {folder!r} + f"/tmp-{{rank}}"
os.mkdir(tempfile.tempdir)
nxd.configure(pool_bytes=64 << 20)
"""


def test_ranks_with_different_private_daemons_are_refused_at_once(launch, root, folder):
    ranks = launch("a", 2, "dp=2", commit_timeout=3600)
    ready(ranks)
    together(ranks, PRIVATE.format(folder=folder))
    try:
        for failure in together_failing(ranks, "nxd.save_checkpoint(root, 'step_1', model={'x': torch.ones(3)})"):
            assert failure.kind == "Refused" and "set the same TMPDIR on all of them" in failure.message
            for rank in range(2):
                assert f"rank {rank}: a private one in {folder}/tmp-{rank}/ckptd-" in failure.message
    finally:
        together(ranks, "nxd.configure()")  # Ends the daemons.
    assert os.listdir(root) == []
