"""What the rank processes of these tests run: units and data whose values depend on names alone, and jobs."""

import logging
import os
import signal
import warnings

import dcp_states
import torch
import torch.distributed.checkpoint as dcp
from torchtnt.framework.callback import Callback
from torchtnt.framework.callbacks.dcp_saver import DistributedCheckpointSaver
from torchtnt.framework.evaluate import evaluate  # noqa: F401
from torchtnt.framework.fit import fit
from torchtnt.framework.predict import predict  # noqa: F401
from torchtnt.framework.train import train
from torchtnt.framework.unit import EvalUnit, PredictUnit, TrainUnit
from torchtnt.utils.checkpoint import BestCheckpointConfig

from ckptd.torchtnt import CheckpointSaver

join, leave = dcp_states.join, dcp_states.leave
warnings.filterwarnings("ignore")
logging.getLogger("torchtnt").setLevel(logging.CRITICAL)


class Batches:
    """Batches of one epoch; stateful: it goes on where it was."""

    def __init__(self, count=5):
        self.count = count
        self.position = 0

    def __iter__(self):
        while self.position < self.count:
            self.position += 1
            yield torch.full((2, 4), self.position / self.count)
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Unit(TrainUnit, EvalUnit, PredictUnit):
    """Trains a small model. `losses` are the values of `train_loss` after each step, instead of real ones."""

    def __init__(self, losses=(), hidden=3):
        super().__init__()
        torch.manual_seed(7)
        self.module = self.wrapped(torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Linear(hidden, 2)))
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2)
        self.losses = list(losses)
        self.seen = []
        self.told = []

    def wrapped(self, module):
        return module

    def train_step(self, state, data):
        self.seen.append(float(data[0, 0]))
        loss = self.module(data).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.train_loss = self.losses.pop(0) if self.losses else float(loss.detach())

    def eval_step(self, state, data):
        self.eval_loss = float(self.module(data).square().mean())

    def predict_step(self, state, data):
        return self.module(data)

    def on_train_epoch_end(self, state):
        self.scheduler.step()

    def on_checkpoint_save(self, state, checkpoint_id):
        self.told.append([os.path.basename(checkpoint_id), os.path.exists(f"{checkpoint_id}/.ckptd/manifest")])


class FsdpUnit(Unit):
    """With a model whose parameters are sharded over all ranks."""

    def wrapped(self, module):
        from torch.distributed.fsdp import fully_shard

        return fully_shard(module, mesh=dcp_states.mesh_of(torch.distributed.get_world_size()))


class ShardedUnit(Unit):
    """With TorchTNT's own FSDP, as its documentation has it; the states of the optimizer pass through a wrapper."""

    def wrapped(self, module):
        from torch.distributed.fsdp import StateDictType
        from torchtnt.utils.prepare_module import FSDPStrategy, prepare_fsdp

        strategy = FSDPStrategy(state_dict_type=StateDictType.SHARDED_STATE_DICT)
        return prepare_fsdp(module, torch.device("cpu"), strategy)

    def shards(self):
        states = self.optimizer.state_dict()["state"].values()
        return [[p.tolist() for p in self.module.parameters()], [{k: v.tolist() for k, v in s.items()} for s in states]]


class At(Callback):
    """Calls a function after a step of training."""

    def __init__(self, step, call):
        self.step, self.call = step, call

    def on_train_step_end(self, state, unit):
        if unit.train_progress.num_steps_completed == self.step:
            self.call()


def kill_at(step):
    return At(step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def fail_at(step):
    def fail():
        raise RuntimeError("the user's error")

    return At(step, fail)


def values(unit):
    """Returns all values of a unit, to be compared."""
    return {
        "module": {key: dcp_states.local(value).tolist() for key, value in unit.module.state_dict().items()},
        "optimizer": [
            {key: dcp_states.local(value).tolist() for key, value in state.items()}
            for state in unit.optimizer.state_dict()["state"].values()
        ],
        "lr": [group["lr"] for group in unit.optimizer.param_groups],
        "scheduler": unit.scheduler.state_dict()["last_epoch"],
        "progress": [
            [progress.num_epochs_completed, progress.num_steps_completed, progress.num_steps_completed_in_epoch]
            for progress in (unit.train_progress, unit.eval_progress, unit.predict_progress)
        ],
    }


def trained(root, *, epochs=2, unit=None, batches=None, callbacks=(), stock=False, max_steps=None, **arguments):
    """Trains with a saver; returns the unit."""
    unit = unit or Unit()
    saver = (DistributedCheckpointSaver if stock else CheckpointSaver)(root, **arguments)
    train(unit, batches or Batches(), max_epochs=epochs, max_steps=max_steps, callbacks=[saver, *callbacks])
    return unit


def fitted(root, *, epochs=1, unit=None, eval_steps=None, callbacks=(), **arguments):
    """Trains and evaluates with a saver; returns the unit."""
    unit = unit or Unit()
    fit(
        unit,
        train_dataloader=Batches(),
        eval_dataloader=Batches(3),
        max_epochs=epochs,
        evaluate_every_n_steps=eval_steps,
        callbacks=[CheckpointSaver(root, **arguments), *callbacks],
    )
    return unit


def resumed(root, *, unit=None, epochs=2, **arguments):
    """Restores from the latest checkpoint and trains on; returns the unit."""
    unit, batches = unit or Unit(), Batches()
    assert CheckpointSaver.restore_from_latest(root, unit, train_dataloader=batches)
    return trained(root, unit=unit, batches=batches, epochs=epochs, **arguments)


def best(metric="train_loss", mode="min"):
    return BestCheckpointConfig(metric, mode)


def keys(path):
    """Returns what a checkpoint has, as the stock reader sees it: the names of the unit's attributes."""
    metadata = dcp.FileSystemReader(path).read_metadata()
    return sorted({key.split(".")[1] for key in metadata.state_dict_metadata})
