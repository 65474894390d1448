"""accelerate: what save_state and load_state bring back, and which folders count."""

from __future__ import annotations

import json
import os
import pathlib
import random
import resource
import signal
from typing import Any, Callable, Dict, Optional

import numpy
import torch
from conformance.case import FAILURE, case, expect, expect_kept, expect_same, flip_a_byte, killed_within, names_when

AREA = "accelerate"


class Job:
    """A small training; `at` is where its checkpoints are."""

    def __init__(
        self, library: Any, at: pathlib.Path, *, seed: int = 0, limit: Optional[int] = None, model: Any = None, registered: Any = ()
    ) -> None:
        self.library = library
        self.at = at
        self.accelerator = library.accelerator(at, limit)
        torch.manual_seed(seed)
        model = model or torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, scheduler)
        self.accelerator.register_for_checkpointing(*registered)
        self.saves = 0

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.accelerator.backward(self.model(torch.randn(4, 8)).square().mean())
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()

    def save(self, name: str = "", **options: Any) -> pathlib.Path:
        path = self.at / "checkpoints" / (name or f"checkpoint_{self.saves}")
        self.library.save(self.accelerator, path, **options)
        self.saves += 1
        return path

    def load(self, path: pathlib.Path) -> None:
        self.library.load(self.accelerator, path)

    def values(self) -> Dict[str, Any]:
        weights = {name: tensor.detach().clone() for name, tensor in self.accelerator.unwrap_model(self.model).state_dict().items()}
        return {"weights": weights, "rate": self.scheduler.get_last_lr(), "step": self.scheduler.scheduler.last_epoch}


def killed_in_the_second_save(
    writer: Any, root: pathlib.Path, eighth: int, *, name: str = "", limit: Optional[int] = None, wanted: Optional[pathlib.Path] = None
) -> None:
    """Runs a job that is killed after so many eighths of its second save. Each save's values are in `wanted`/want-STEP before it begins."""

    def prepare() -> Callable[[], None]:
        job = Job(type(writer)(), root, limit=limit)

        def work() -> None:
            job.train()
            if wanted is not None:
                torch.save(job.values(), wanted / f"want-{job.values()['step']}")
            job.save(name)

        return work

    killed_within(prepare, eighth)


@case(AREA, "accelerate", "huggingface/accelerate#137")
def accelerate_resume(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that is resumed has the weights and the learning rate of one that was not interrupted, dropout and all."""
    whole = Job(writer, folder / "runs")
    whole.train(3)
    path = whole.save()
    whole.train(3)
    got = Job(reader, folder / "runs2", seed=1)
    got.load(path)
    got.train(3)
    expect_same(got.values(), whole.values())


@case(AREA, "accelerate", "huggingface/accelerate#3433")
def accelerate_random_states(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The generators of Python, NumPy and torch go on where they were."""
    job = Job(writer, folder / "runs")

    def draw() -> Any:
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    path = job.save()
    want = draw()
    got = Job(reader, folder / "runs2", seed=1)
    draw()
    got.load(path)
    expect_same(draw(), want, "what the generators give")


@case(AREA, "accelerate", "huggingface/accelerate#2807", "huggingface/accelerate#3101", "huggingface/accelerate#2155")
def accelerate_tied_weights(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Weights that two layers share are loaded, and still shared."""

    def model() -> Any:
        made = torch.nn.ModuleDict({"embed": torch.nn.Embedding(16, 8), "head": torch.nn.Linear(8, 16, bias=False)})
        made["head"].weight = made["embed"].weight
        return made

    torch.manual_seed(1)
    saved, loaded = model(), model()
    path = Job(writer, folder / "runs", model=saved).save()
    Job(reader, folder / "runs2", model=loaded).load(path)
    expect_same(loaded["head"].weight, saved["head"].weight, "the weight")
    expect(loaded["head"].weight is loaded["embed"].weight, "they are two now")


@case(AREA, "accelerate", "huggingface/accelerate#270")
def accelerate_registered_objects(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Objects of the program that were registered get their state back."""

    class Count:
        def __init__(self) -> None:
            self.seen: Any = 0

        def state_dict(self) -> Any:
            return {"seen": self.seen}

        def load_state_dict(self, state: Any) -> None:
            self.seen = state["seen"]

    saved, loaded = [Count(), Count()], [Count(), Count()]
    saved[0].seen, saved[1].seen = 5, torch.arange(3)
    path = Job(writer, folder / "runs", registered=saved).save()
    Job(reader, folder / "runs2", registered=loaded).load(path)
    expect_same([each.seen for each in loaded], [each.seen for each in saved])


@case(AREA, "accelerate")
def accelerate_files_of_the_program(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """What a hook of the program writes into the checkpoint, in a folder of its own as the trainers of diffusers do, is part of it."""
    job = Job(writer, folder / "runs")

    def write(models: Any, weights: Any, place: str) -> None:
        os.makedirs(os.path.join(place, "unet"), exist_ok=True)
        pathlib.Path(place, "unet/config.json").write_text(json.dumps({"layers": 2}))

    job.accelerator.register_save_state_pre_hook(write)
    path = job.save()
    expect_kept((path / "unet/config.json").is_file(), "it is not there")
    got = Job(reader, folder / "runs2", seed=1)
    read = {}
    got.accelerator.register_load_state_pre_hook(
        lambda models, place: read.update(json.loads(pathlib.Path(place, "unet/config.json").read_text()))
    )
    got.load(path)
    expect_same(read, {"layers": 2}, "what the hook has read")


@case(AREA, "accelerate")
def accelerate_pickled_weights(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`safe_serialization=False`, a file of torch.save in the place of safetensors, comes back, too."""
    job = Job(writer, folder / "runs")
    job.train()
    path = job.save(safe_serialization=False)
    got = Job(reader, folder / "runs2", seed=1)
    got.load(path)
    expect_same(got.values(), job.values())


@case(AREA, "accelerate")
def accelerate_weights_for_another_program(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """accelerate's `load_checkpoint_in_model`, and safetensors, read the weights of a checkpoint without an Accelerator."""
    import accelerate
    import safetensors.torch

    job = Job(writer, folder / "runs")
    job.train()
    path = job.save()
    want = job.values()["weights"]
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
    accelerate.load_checkpoint_in_model(model, str(path / "model.safetensors"))
    expect_same(dict(model.state_dict()), want)
    loaded = safetensors.torch.load_file(path / "model.safetensors")
    expect_same({name: loaded[name] for name in want}, want)


@case(AREA, "accelerate", "huggingface/accelerate#1163", "huggingface/accelerate#914", crosswise=False)
def accelerate_limit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """With a limit of 3 the last three of twelve checkpoints stay, by their numbers and not by their letters."""
    job = Job(writer, folder / "runs", limit=3)
    for _ in range(12):
        job.save()
    wanted = ["checkpoint_10", "checkpoint_11", "checkpoint_9"]
    names = names_when(folder / "runs/checkpoints", lambda names: len(names) <= len(wanted))
    expect_kept(names == wanted, f"there are {names}")


@case(AREA, "accelerate", "allenai/open-instruct#542", "huggingface/accelerate#1601", crosswise=False)
def accelerate_newest(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Of eleven checkpoints the newest one is that with the highest number, 10, and not 9."""
    job = Job(writer, folder / "runs")
    for _ in range(11):
        job.train()
        job.save()
    newest = reader.newest(folder / "runs/checkpoints")
    expect(newest is not None and newest.name == "checkpoint_10", f"it is {newest}")
    got = Job(reader, folder / "runs2", seed=1)
    got.load(newest)
    expect_same(got.values(), job.values())


@case(AREA, "accelerate", "bghira/SimpleTuner#2613", crosswise=False)
def accelerate_killed_in_the_second_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """After a job was killed in its second save, the newest checkpoint is one that can be loaded."""
    for eighth in range(8):
        root = folder / f"runs-{eighth}"

        killed_in_the_second_save(writer, root, eighth)
        newest = reader.newest(root / "checkpoints")
        expect_kept(newest is not None, "there is no newest one")
        got = Job(type(reader)(), folder / "again", seed=1)
        try:
            got.load(newest)
        except FAILURE as error:
            expect_kept(False, f"the newest one, {newest.name}, cannot be loaded: {error}")
        step = got.values()["step"]
        expect(step == int(newest.name[-1]) + 1, f"{newest.name} has the learning rate of step {step}")


@case(AREA, "accelerate", "Lightning-AI/pytorch-lightning#688", crosswise=False)
def accelerate_killed_while_it_saves_a_name_again(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that is killed while it saves over a folder leaves the old state or the new one, and no mixture."""
    for eighth in range(8):
        root = folder / f"runs-{eighth}"

        killed_in_the_second_save(writer, root, eighth, name="last", wanted=folder)
        got = Job(type(reader)(), folder / "again", seed=1)
        try:
            got.load(root / "checkpoints/last")
        except FAILURE as error:
            expect_kept(False, f"neither the old nor the new one can be loaded: {error}")
        expect_same(got.values(), torch.load(folder / f"want-{got.values()['step']}"))


@case(AREA, "accelerate", "huggingface/accelerate#914", crosswise=False)
def accelerate_killed_with_a_limit_of_one(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """With a limit of one there is a whole checkpoint at any moment: a job that is killed while it saves has one to go on from."""
    for eighth in range(8):
        root = folder / f"runs-{eighth}"

        killed_in_the_second_save(writer, root, eighth, limit=1)
        whole = []
        for path in sorted(path for path in (root / "checkpoints").iterdir() if not path.name.startswith(".")):
            try:
                Job(type(reader)(), folder / "again", seed=1).load(path)
                whole.append(path)
            except FAILURE:
                pass
        expect_kept(bool(whole), "there is none")


@case(AREA, "accelerate", crosswise=False)
def accelerate_flipped_bit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A bit that has flipped on the disk, in the weights, is found, and no other value is loaded."""
    job = Job(writer, folder / "runs")
    job.train()
    job.save()
    want = job.values()["weights"]
    flip_a_byte(folder / "runs", want["0.weight"].numpy().tobytes()[:64])
    os.rename(folder / "runs", folder / "moved")  # What is in memory belongs to the other place.
    got = Job(reader, folder / "runs2", seed=1)
    try:
        got.load(folder / "moved/checkpoints/checkpoint_0")
    except FAILURE:
        return
    expect_same(got.values()["weights"], want, "the weights")


@case(AREA, "accelerate", "mlfoundations/open_lm#154", crosswise=False)
def accelerate_no_room_for_a_name_again(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A save over a folder that cannot write its files raises, and what was there stays. (A limit on the
    size of files stands for a full disk.)"""
    job = Job(writer, folder / "runs")
    job.train()
    path = job.save("last")
    want = job.values()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    job.train()
    try:
        job.save("last")
    except FAILURE:
        pass
    else:
        want = job.values()
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    got = Job(reader, folder / "runs2", seed=1)
    try:
        got.load(path)
    except FAILURE as error:
        expect_kept(False, f"it cannot be loaded: {error}")
    expect_same(got.values(), want)
