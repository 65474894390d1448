"""TorchTNT: when its saver saves, which checkpoint is the newest or the best, and what a unit gets back."""

from __future__ import annotations

import logging
import os
import pathlib
import signal
import warnings
from typing import Any, List, Optional, Sequence

import torch
from conformance.case import FAILURE, case, expect, expect_kept, expect_same, flip_a_byte, in_a_child, kill, names_when

AREA = "TorchTNT"


class Batches:
    """The batches of an epoch; goes on where it was."""

    def __init__(self, count: int = 4) -> None:
        self.count = count
        self.position = 0

    def __iter__(self) -> Any:
        while self.position < self.count:
            self.position += 1
            yield torch.full((2, 4), self.position / self.count)
        self.position = 0

    def state_dict(self) -> Any:
        return {"position": self.position}

    def load_state_dict(self, state: Any) -> None:
        self.position = state["position"]


def make_unit(losses: Sequence[Any] = (), seed: int = 0) -> Any:
    """Returns a unit that trains a small model. losses: what it says of its steps, in the place of what it has computed."""
    from torchtnt.framework.unit import TrainUnit

    class Unit(TrainUnit):  # type: ignore[type-arg]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
            self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.1)
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1)
            self.train_loss: Any = None
            self.seen: List[float] = []

        def train_step(self, state: Any, data: Any) -> None:
            self.seen.append(float(data[0, 0]))
            loss = self.module(data).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            step = self.train_progress.num_steps_completed
            self.train_loss = losses[step] if step < len(losses) else float(loss.detach())

        def on_train_epoch_end(self, state: Any) -> None:
            self.scheduler.step()

    return Unit()


def fit(
    library: Any,
    root: pathlib.Path,
    *,
    epochs: int = 1,
    unit: Any = None,
    batches: Any = None,
    steps: "Optional[int]" = None,
    callbacks: Any = (),
    **options: Any,
) -> Any:
    """Trains; `options` are those of the saver. Returns the unit."""
    from torchtnt.framework.train import train

    warnings.simplefilter("ignore")
    logging.getLogger("torchtnt").setLevel(logging.CRITICAL)
    unit = unit or make_unit()
    train(unit, batches or Batches(), max_epochs=epochs, max_steps=steps, callbacks=[library.saver(str(root), **options), *callbacks])
    return unit


def at(step: int, call: Any) -> Any:
    from torchtnt.framework.callback import Callback

    class At(Callback):
        def on_train_step_end(self, state: Any, unit: Any) -> None:
            if unit.train_progress.num_steps_completed == step:
                call()

    return At()


def best(metric: str = "train_loss", mode: Any = "min") -> Any:
    from torchtnt.utils.checkpoint import BestCheckpointConfig

    return BestCheckpointConfig(metric, mode)


def values(unit: Any) -> Any:
    progress = unit.train_progress
    return {
        "module": {name: tensor.detach().clone() for name, tensor in unit.module.state_dict().items()},
        "optimizer": {
            name: {key: each.clone() for key, each in state.items()} for name, state in unit.optimizer.state_dict()["state"].items()
        },
        "rate": unit.scheduler.get_last_lr(),
        "progress": (progress.num_epochs_completed, progress.num_steps_completed, progress.num_steps_completed_in_epoch),
    }


def checkpoints(root: pathlib.Path) -> "List[str]":
    return sorted(name for name in os.listdir(root) if name.startswith("epoch_"))


@case(AREA, "torchtnt", "meta-pytorch/tnt#487")
def torchtnt_resume(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that is resumed between two epochs has the state, in all parts, of one that was not interrupted."""
    whole = fit(writer, folder / "whole", epochs=4)
    fit(writer, folder / "runs", epochs=2, save_every_n_epochs=1)
    got = make_unit(seed=1)
    expect(reader.saver.restore_from_latest(str(folder / "runs"), got), "it found none")
    expect_same(values(fit(reader, folder / "runs2", epochs=4, unit=got)), values(whole))


@case(AREA, "torchtnt", "meta-pytorch/tnt#488")
def torchtnt_resume_within_an_epoch(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that is resumed in the middle of an epoch goes on with the batch that comes next."""
    fit(writer, folder / "runs", steps=6, epochs=2, save_every_n_train_steps=3)
    name = next(name for name in checkpoints(folder / "runs") if name.startswith("epoch_0") and "step_3" in name)
    got, batches = make_unit(seed=1), Batches()
    reader.saver.restore(str(folder / "runs" / name), got, train_dataloader=batches)
    fit(reader, folder / "runs2", steps=6, epochs=2, unit=got, batches=batches)
    expect_same(got.seen, [1.0, 0.25, 0.5], "the batches")


@case(AREA, "torchtnt", "meta-pytorch/tnt#390")
def torchtnt_end_of_training(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The end of training is saved, whatever the intervals are, and is the newest checkpoint."""
    want = values(fit(writer, folder / "runs", steps=5, epochs=2, save_every_n_train_steps=3))
    got = make_unit(seed=1)
    expect(reader.saver.restore_from_latest(str(folder / "runs"), got), "it found none")
    expect_same(values(got), want)


@case(AREA, "torchtnt")
def torchtnt_newest_by_number(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Of steps 1 to 11 the newest is 11, and not 9."""
    want = values(fit(writer, folder / "runs", steps=11, epochs=9, save_every_n_train_steps=1))
    got = make_unit(seed=1)
    expect(reader.saver.restore_from_latest(str(folder / "runs"), got), "it found none")
    expect_same(values(got), want)


def expect_best(writer: Any, reader: Any, folder: pathlib.Path, losses: List[float], step: int) -> None:
    """Trains with these losses, saves each step, and expects that the checkpoint with the lowest loss is the one of `step`."""
    fit(writer, folder, unit=make_unit(losses), save_every_n_train_steps=1, best_checkpoint_config=best())
    got = make_unit(seed=1)
    expect(reader.saver.restore_from_best(str(folder), got, "train_loss", "min"), "it found none")
    expect_same(got.train_progress.num_steps_completed, step, "the step")


@case(AREA, "torchtnt", "meta-pytorch/tnt#677")
def torchtnt_best(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`restore_from_best` restores the checkpoint with the lowest loss, which is neither the first nor the last."""
    losses = [0.5, 0.25, 0.125, 0.75]
    expect_best(writer, reader, folder / "runs", losses, 3)


@case(AREA, "torchtnt", "meta-pytorch/tnt#953")
def torchtnt_best_of_tiny_values(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Values that Python writes with an exponent, such as 1e-05, count for the best."""
    losses = [0.5, 1e-05, 2.5e20, 0.25]
    expect_best(writer, reader, folder / "runs", losses, 2)


@case(AREA, "torchtnt")
def torchtnt_best_of_zero(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A value of 0.0 counts for the best, as do negative ones."""
    losses = [0.5, 0.0, 0.25, 0.75]
    expect_best(writer, reader, folder / "runs", losses, 2)
    expect_best(writer, reader, folder / "more", [1.0, -2.0, 0.5, 3.0], 2)


@case(AREA, "torchtnt", "meta-pytorch/tnt#927", "meta-pytorch/tnt#896", "meta-pytorch/tnt#934")
def torchtnt_best_beside_nan_and_infinity(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Training goes on where a metric is NaN or infinite, and such a checkpoint is not called the best."""
    losses = [0.5, 0.25, float("nan"), float("-inf")]
    expect_best(writer, reader, folder / "runs", losses, 2)


@case(AREA, "torchtnt", "meta-pytorch/tnt#688", "meta-pytorch/tnt#939")
def torchtnt_metric_that_is_not_there_yet(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A metric that is None at first does not end training, and its checkpoint counts for the newest."""
    unit = make_unit([None, None, None, None])
    fit(writer, folder / "runs", unit=unit, save_every_n_train_steps=2, best_checkpoint_config=best())
    got = make_unit(seed=1)
    expect(reader.saver.restore_from_latest(str(folder / "runs"), got), "it found none")
    expect_same(values(got), values(unit))


@case(AREA, "torchtnt", "meta-pytorch/tnt#990", crosswise=False)
def torchtnt_slash_in_the_metric(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A metric with a slash in its name, `top1/eval`, is found again, or is refused when the saver is made."""
    unit = make_unit()
    setattr(unit, "top1/eval", 0.5)
    try:
        writer.saver(str(folder / "runs"), best_checkpoint_config=best("top1/eval"))
    except FAILURE:
        return
    fit(writer, folder / "runs", unit=unit, save_every_n_train_steps=1, best_checkpoint_config=best("top1/eval"))
    expect(reader.saver.restore_from_best(str(folder / "runs"), make_unit(seed=1), "top1/eval", "min"), "it is not found again")


@case(AREA, "torchtnt", "meta-pytorch/tnt#619", crosswise=False)
def torchtnt_limit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`keep_last_n_checkpoints=2` leaves the last two of twelve, by their numbers."""
    fit(writer, folder / "runs", steps=12, epochs=9, save_every_n_train_steps=1, keep_last_n_checkpoints=2)
    names = names_when(folder / "runs", lambda names: len(names) <= 2)
    steps = sorted(int(name.rpartition("_")[2]) for name in names)
    expect_kept(steps in ([11, 12], [12, 12]), f"there are {names}")  # The end of training may have an epoch of its own.


@case(AREA, "torchtnt", crosswise=False)
def torchtnt_limit_and_best(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """With `keep_last_n_checkpoints=2` and a metric, the best two stay where later ones are worse."""
    losses = [0.5, 0.125, 0.25, 0.75, 0.875, 1.0]
    fit(
        writer,
        folder / "runs",
        unit=make_unit(losses),
        steps=6,
        epochs=9,
        save_every_n_train_steps=1,
        keep_last_n_checkpoints=2,
        best_checkpoint_config=best(),
    )
    found = {name.rpartition("=")[2] for name in checkpoints(folder / "runs")}
    expect_kept({"0.125", "0.25"} <= found, f"there are {checkpoints(folder / 'runs')}")


@case(AREA, "torchtnt", "meta-pytorch/tnt#559")
def torchtnt_incomplete_newest(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A newest folder in which a killed job left a part of a save is not restored from."""
    fit(writer, folder / "runs", save_every_n_epochs=1, steps=4)
    name = checkpoints(folder / "runs")[-1]
    left = folder / "runs" / name.replace("epoch_1", "epoch_7").replace("epoch_0", "epoch_7")
    left.mkdir()
    (left / "__0_0.distcp").write_bytes(b"a part")
    got = make_unit(seed=1)
    expect(reader.saver.restore_from_latest(str(folder / "runs"), got), "it found none")
    expect_same(got.train_progress.num_steps_completed, 4, "the step")


@case(AREA, "torchtnt", crosswise=False)
def torchtnt_flipped_bit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A bit that has flipped on the disk is found: an older checkpoint is restored, or an error raised."""
    unit = fit(writer, folder / "runs", steps=4, save_every_n_train_steps=2)
    want = values(unit)
    for name in checkpoints(folder / "runs"):
        if "step_4" in name:
            flip_a_byte(folder / "runs" / name, want["module"]["0.weight"].numpy().tobytes())
    os.rename(folder / "runs", folder / "moved")  # What is in memory belongs to the other place.
    got = make_unit(seed=1)
    try:
        expect(reader.saver.restore_from_latest(str(folder / "moved"), got), "it found none")
    except FAILURE:
        return
    if got.train_progress.num_steps_completed == 4:
        expect_same(values(got), want)


@case(AREA, "torchtnt", "pytorch/pytorch#144657", "meta-pytorch/tnt#768")
def torchtnt_async_save_of_a_state_that_changes(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An asynchronous save has the state of its step, and not that of steps that come while it is written."""
    seen = {}
    unit = make_unit()
    fit(
        writer,
        folder / "runs",
        unit=unit,
        steps=4,
        epochs=9,
        save_every_n_train_steps=1,
        async_checkpoint=True,
        callbacks=[at(2, lambda: seen.update(values(unit)))],
    )
    name = next(name for name in checkpoints(folder / "runs") if name.endswith("step_2"))
    got = make_unit(seed=1)
    reader.saver.restore(str(folder / "runs" / name), got)
    expect_same(values(got)["module"], seen["module"], "the weights")
    expect_same(values(got)["optimizer"], seen["optimizer"], "the optimizer")


def large_unit(seed: int = 0) -> Any:
    unit = make_unit(seed=seed)
    unit.ballast = torch.nn.Linear(4000, 4000)
    return unit


def killed_at_step(library_class: Any, root: pathlib.Path, step: int, **options: Any) -> None:
    """Trains with a saver in a process that is killed after a step, when the saver has had its turn."""

    def work(ready: Any) -> None:
        def stop() -> None:
            ready()
            signal.pause()

        fit(
            library_class(),
            root,
            unit=large_unit(),
            save_every_n_train_steps=2,
            async_checkpoint=True,
            callbacks=[at(step, stop)],
            **options,
        )

    kill(in_a_child(work))


@case(AREA, "torchtnt", crosswise=False)
def torchtnt_killed_with_a_limit_of_one(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """With `keep_last_n_checkpoints=1` a job that is killed right after an asynchronous save has a whole checkpoint to go on from."""
    killed_at_step(type(writer), folder / "runs", 4, keep_last_n_checkpoints=1)
    got = large_unit(seed=1)
    expect_kept(reader.saver.restore_from_latest(str(folder / "runs"), got), "there is no checkpoint")
    expect(got.train_progress.num_steps_completed in (2, 4), f"it goes on from step {got.train_progress.num_steps_completed}")


@case(AREA, "torchtnt", crosswise=False)
def torchtnt_killed_right_after_an_async_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that is killed right after an asynchronous save goes on from that save."""
    killed_at_step(type(writer), folder / "runs", 2)
    got = large_unit(seed=1)
    expect_kept(reader.saver.restore_from_latest(str(folder / "runs"), got), "there is no checkpoint")
    expect_same(got.train_progress.num_steps_completed, 2, "the step")


@case(AREA, "torchtnt", crosswise=False)
def torchtnt_error_of_the_program(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An error in training is the one that the program sees, and the checkpoints before it are whole."""

    def fail() -> None:
        raise ZeroDivisionError("in training")

    try:
        fit(writer, folder / "runs", save_every_n_train_steps=1, async_checkpoint=True, callbacks=[at(3, fail)])
    except ZeroDivisionError:
        pass
    except FAILURE as error:
        expect(False, f"the program sees {type(error).__name__}")
    got = make_unit(seed=1)
    expect_kept(reader.saver.restore_from_latest(str(folder / "runs"), got), "there is no checkpoint")
    expect(got.train_progress.num_steps_completed in (2, 3), f"it goes on from step {got.train_progress.num_steps_completed}")


@case(AREA, "torchtnt", "meta-pytorch/tnt#901")
def torchtnt_optimizer_that_has_gradients(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A unit whose parameters have gradients already, but whose optimizer has made no step, gets the optimizer's state back."""
    want = values(fit(writer, folder / "runs", steps=2))
    got = make_unit(seed=1)
    got.module(torch.ones(2, 4)).sum().backward()
    expect(reader.saver.restore_from_latest(str(folder / "runs"), got), "it found none")
    expect_same(values(got)["optimizer"], want["optimizer"], "the optimizer")


@case(AREA, "torchtnt")
def torchtnt_without_the_optimizer(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`RestoreOptions` without optimizers and progress restores the weights alone, for example to tune them further."""
    from torchtnt.framework.callbacks.checkpointer_types import RestoreOptions

    want = values(fit(writer, folder / "runs", steps=2))["module"]
    got = make_unit(seed=1)
    options = RestoreOptions(restore_train_progress=False, restore_optimizers=False, restore_lr_schedulers=False)
    expect(reader.saver.restore_from_latest(str(folder / "runs"), got, restore_options=options), "it found none")
    expect_same(values(got)["module"], want, "the weights")
    expect_same(got.optimizer.state_dict()["state"], {}, "the optimizer")
    expect_same(got.train_progress.num_steps_completed, 0, "the step")
