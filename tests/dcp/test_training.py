"""Jobs as users run them: FSDP2 that is killed and resumed, and the scripts of PyTorch's own document."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

from harness import Trainer, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMPORTS = (
    f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(pathlib.Path(__file__).parent)!r}]\n"
    "import signal, dcp_states as states\n"
    "from examples.training import train_fsdp\n"
    "from examples.training.model import Gpt\n"
    "small = lambda: Gpt(width=32, layers=2, heads=2)\n"
)
STEPS, EVERY = 6, 2


def train(ranks, root, steps):
    return ranks.do(f"{IMPORTS}\ntrain_fsdp.train({root!r}, small, {steps}, {EVERY})", 120)


@pytest.fixture
def killed_at_step_4(nodes, session_folder, root):
    """A job of two ranks that were killed as soon as async_save of step 4 had returned."""
    store = os.path.join(session_folder, f"killed-{os.path.basename(root)}")
    processes = [Trainer(nodes.endpoint(rank)) for rank in range(2)]
    try:
        for rank, process in enumerate(processes):
            process.start(
                f"{IMPORTS}\nstates.join({store!r}, {rank}, 2)\n"
                f"train_fsdp.train({root!r}, small, {STEPS}, {EVERY},\n"
                "    lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == 4 else None)"
            )
        assert [process.process.wait(120) for process in processes] == [-signal.SIGKILL] * 2
    finally:
        for process in processes:
            process.close()
    return root


@ON_ONE_AND_TWO_NODES
def test_job_resumes_with_the_same_losses_after_all_ranks_were_killed(launch, killed_at_step_4):
    resumed = train(launch(2), killed_at_step_4, STEPS)
    whole = train(launch(2), f"{killed_at_step_4}-whole", STEPS)
    assert [step for step, _ in resumed[0]] == [5, 6]
    assert resumed[0] == whole[0][4:]
    # Once more, onto twice as many ranks: the state is the same, and the batches are others.
    more = train(launch(4), killed_at_step_4, STEPS + 2)
    assert [step for step, _ in more[0]] == [7, 8]
    assert abs(more[0][0][1] - resumed[0][-1][1]) < 1


RECIPE = """
import os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

class ToyModel(nn.Module):
    def __init__(self):
        super(ToyModel, self).__init__()
        self.net1 = nn.Linear(16, 16)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(16, 8)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))

def make():
    model = FSDP(ToyModel(), device_id=torch.device("cpu"))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)

def full(model):
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, StateDictOptions
    return {k: v.tolist() for k, v in get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)).items()}

def run_fsdp_checkpoint_save_example(CHECKPOINT_DIR):
    model, optimizer = make()
    optimizer.zero_grad()
    model(torch.rand(8, 16)).sum().backward()
    optimizer.step()
    model_state_dict, optimizer_state_dict = get_state_dict(model, optimizer)
    state_dict = {"model": model_state_dict, "optimizer": optimizer_state_dict}
    dcp.save(state_dict, checkpoint_id=CHECKPOINT_DIR)
    return full(model)

def run_fsdp_checkpoint_load_example(CHECKPOINT_DIR):
    model, optimizer = make()
    model_state_dict, optimizer_state_dict = get_state_dict(model, optimizer)
    state_dict = {"model": model_state_dict, "optimizer": optimizer_state_dict}
    dcp.load(state_dict=state_dict, checkpoint_id=CHECKPOINT_DIR)
    set_state_dict(model, optimizer, model_state_dict=model_state_dict, optim_state_dict=optimizer_state_dict)
    return full(model)

def run_checkpoint_load_example(CHECKPOINT_DIR):
    model = ToyModel()
    state_dict = {"model": model.state_dict()}
    dcp.load(state_dict=state_dict, checkpoint_id=CHECKPOINT_DIR)
    model.load_state_dict(state_dict["model"])
    return {k: v.tolist() for k, v in model.state_dict().items()}
"""


def test_scripts_of_the_recipe_run_with_the_line_on_the_cpu(launch, alone, root):
    path = root + "/checkpoint"
    ranks = launch(2)
    ranks.do(f"exec({RECIPE!r}, globals())\nckptd.dcp.install()")
    try:
        saved = ranks.do(f"run_fsdp_checkpoint_save_example({path!r})")
        assert os.path.exists(path + "/.ckptd/manifest")
        loaded = ranks.do(f"run_fsdp_checkpoint_load_example({path!r})")
        alone.do("states.leave()")
        single = alone.do(f"run_checkpoint_load_example({path!r})")
    finally:
        for process in ranks.processes:
            process.do("ckptd.dcp.uninstall()")
    # Rank 0 has the full state.
    assert loaded[0] == saved[0] == single


def test_example_tells_each_step_under_torchrun_and_from_where_it_goes_on(daemon, root):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", "-m"]
    command += ["examples.training.train_fsdp", f"--root={root}", "--save_every=1"]
    environment = {**os.environ, "CKPTD_ENDPOINT": daemon.endpoint}
    # It would train for long: what it has done must be known while it runs.
    with subprocess.Popen([*command, "--steps=100000"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout.readline().startswith("step 1: loss ")
            until(lambda: os.path.exists(f"{root}/step-1/.ckptd/manifest"), "the commit")
        finally:
            job.terminate()  # torchrun ends its processes.
    done = subprocess.run(
        [*command, "--steps=1"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"goes on from {root}/step-")
