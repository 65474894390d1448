"""Lightning: the names and links that ModelCheckpoint makes, and what resumes from them."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import warnings
from typing import Any, List, Optional

import torch
from conformance.case import FAILURE, case, expect, expect_kept, expect_same

AREA = "Lightning"


def fit(
    library: Any,
    folder: pathlib.Path,
    steps: int,
    resume: "Optional[str]" = None,
    model: Any = None,
    plugins: "Optional[List[Any]]" = None,
    callbacks: "Optional[List[Any]]" = None,
    **options: Any,
) -> Any:
    """Trains a small model; `options` are those of ModelCheckpoint."""
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import ModelCheckpoint

    for name in ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    options = {"every_n_train_steps": 2, "save_top_k": -1, "filename": "{step}", **options}
    checkpoint = ModelCheckpoint(str(folder), **options)
    trainer = pl.Trainer(
        max_steps=steps, limit_val_batches=1, logger=False, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
        callbacks=[checkpoint, *(callbacks or [])], plugins=library.plugins() if plugins is None else plugins,
    )  # fmt: skip
    trainer.fit(model or make_model(), ckpt_path=resume, weights_only=False)
    return trainer


def make_model() -> Any:
    from pytorch_lightning.demos.boring_classes import BoringModel

    class Model(BoringModel):
        def training_step(self, batch: Any, number: int) -> Any:
            loss = super().training_step(batch, number)
            self.log("train/loss", loss["loss"])
            self.log("train_loss", loss["loss"])
            self.log("level", float(10 - self.global_step))
            return loss

    torch.manual_seed(1)
    return Model()


def weights(trainer: Any) -> Any:
    return {name: tensor.detach().clone() for name, tensor in trainer.lightning_module.state_dict().items()}


@case(AREA, "lightning")
def lightning_resume(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that is resumed has the weights and the optimizer's state that were saved."""
    want = fit(writer, folder / "runs", 4)
    got = fit(reader, folder / "runs2", 4, resume=str(folder / "runs/step=4.ckpt"))
    expect_same(weights(got), weights(want))
    expect_same(got.optimizers[0].state_dict(), want.optimizers[0].state_dict(), "the optimizer")
    fit(reader, folder / "runs2", 6, resume=str(folder / "runs/step=4.ckpt"))


@case(AREA, "lightning")
def lightning_load_from_checkpoint(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`load_from_checkpoint(best_model_path)` after training gives the weights that were saved."""
    from pytorch_lightning.demos.boring_classes import BoringModel

    trainer = fit(writer, folder / "runs", 4)
    loaded = BoringModel.load_from_checkpoint(trainer.checkpoint_callback.best_model_path, weights_only=False)
    expect_same(dict(loaded.state_dict()), weights(trainer))


@case(AREA, "lightning", crosswise=False)
def lightning_constant_name(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """With a constant file name and all checkpoints kept, each save has a version of its own."""
    fit(writer, folder / "runs", 6, filename="model", monitor="level", mode="min")
    names = sorted(os.listdir(folder / "runs"))
    expect_kept([name for name in names if name.startswith("model")] == ["model-v1.ckpt", "model-v2.ckpt", "model.ckpt"], f"there are {names}")


@case(AREA, "lightning", "Lightning-AI/pytorch-lightning#19294", "Lightning-AI/pytorch-lightning#19251")
def lightning_link_to_the_last(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`save_last="link"` makes a link from which a job resumes."""
    os.chdir(folder)
    want = weights(fit(writer, pathlib.Path("runs"), 4, save_last="link"))
    expect((folder / "runs/last.ckpt").exists(), "the link leads to nothing")
    expect_same(weights(fit(reader, folder / "runs2", 4, resume=str(folder / "runs/last.ckpt"))), want)


@case(AREA, "lightning", "Lightning-AI/pytorch-lightning#21110", crosswise=False)
def lightning_link_and_all_kept(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`save_last="link"` with `save_top_k=-1` makes no link that leads to itself."""
    fit(writer, folder / "runs", 4, save_last="link", save_top_k=-1)
    expect((folder / "runs/last.ckpt").exists(), "the link leads to nothing")


@case(AREA, "lightning", "Lightning-AI/pytorch-lightning#19189", "huggingface/pytorch-image-models#98")
def lightning_last_is_the_last(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`save_last=True` gives the last state, also where the best one is an earlier one."""
    want = weights(fit(writer, folder / "runs", 4, save_last=True, save_top_k=1, monitor="level", mode="max"))
    expect_same(weights(fit(reader, folder / "runs2", 4, resume=str(folder / "runs/last.ckpt"))), want)


@case(AREA, "lightning", "Lightning-AI/pytorch-lightning#18670", crosswise=False)
def lightning_last_is_written_once(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`save_last="link"` does not write the state a second time."""
    fit(writer, folder / "runs", 4, save_last="link", save_top_k=1, monitor="level", mode="min")
    real = {os.path.realpath(folder / "runs" / name) for name in os.listdir(folder / "runs") if name.endswith(".ckpt")}
    expect(len(real) == 1, f"there are {len(real)} checkpoints")


@case(AREA, "lightning", crosswise=False)
def lightning_best_is_kept(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`save_top_k=1` keeps the best checkpoint where later ones are worse, and removes those."""
    trainer = fit(writer, folder / "runs", 6, save_top_k=1, monitor="level", mode="max")
    left = [name for name in os.listdir(folder / "runs") if name.endswith(".ckpt")]
    expect_kept(left == ["step=2.ckpt"], f"there are {left}")
    expect(trainer.checkpoint_callback.best_model_path.endswith("step=2.ckpt"), "another one is called the best")


@case(AREA, "lightning")
def lightning_metric_in_the_name(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A metric in the file name, `{step}-{train_loss:.2f}`, gives a checkpoint that is resumed from."""
    trainer = fit(writer, folder / "runs", 4, filename="{step}-{train_loss:.2f}", save_top_k=1, monitor="train_loss")
    best = trainer.checkpoint_callback.best_model_path
    expect(os.path.exists(best), f"{best} is not there")
    fit(reader, folder / "runs2", 6, resume=best)


@case(AREA, "lightning")
def lightning_slash_in_the_name(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A metric whose name has a slash, `train/loss`, in the file name gives a checkpoint that is resumed from."""
    trainer = fit(writer, folder / "runs", 4, filename="{step}-{train/loss:.2f}", save_top_k=1, monitor="train/loss")
    best = trainer.checkpoint_callback.best_model_path
    expect(os.path.exists(best), f"{best} is not there")
    fit(reader, folder / "runs2", 6, resume=best)


@case(AREA, "lightning")
def lightning_spaces_in_the_name(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A file name with spaces and a percent sign gives a checkpoint that is resumed from."""
    trainer = fit(writer, folder / "runs", 2, filename="my model 100% {step}")
    best = trainer.checkpoint_callback.best_model_path
    expect(os.path.exists(best), f"{best} is not there")
    fit(reader, folder / "runs2", 4, resume=best)


@case(AREA, "lightning")
def lightning_letters_of_all_scripts_in_the_name(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A file name with letters that are not ASCII gives a checkpoint that is resumed from."""
    trainer = fit(writer, folder / "runs", 2, filename="Größe-模型-{step}")
    fit(reader, folder / "runs2", 4, resume=trainer.checkpoint_callback.best_model_path)


@case(AREA, "lightning")
def lightning_long_name(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A file name of 255 bytes, the longest that Linux has, gives a checkpoint that is resumed from."""
    trainer = fit(writer, folder / "runs", 2, filename="{step}-" + "x" * 243)
    best = trainer.checkpoint_callback.best_model_path
    assert len(os.path.basename(best)) == 255
    fit(reader, folder / "runs2", 4, resume=best)


@case(AREA, "lightning", crosswise=False)
def lightning_torch_load(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`torch.load(path)` of a checkpoint gives the weights that were saved, also with `mmap=True`."""
    want = weights(fit(writer, folder / "runs", 2))
    for options in ({}, {"mmap": True}):
        expect_same(dict(torch.load(folder / "runs/step=2.ckpt", weights_only=False, **options)["state_dict"]), want)


@case(AREA, "lightning")
def lightning_copied_file(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A copy of a checkpoint alone, in another folder, is resumed from."""
    want = weights(fit(writer, folder / "runs", 2))
    copy = shutil.copy(folder / "runs/step=2.ckpt", folder / "copy.ckpt")
    expect_same(weights(fit(reader, folder / "runs2", 2, resume=copy)), want)


@case(AREA, "lightning")
def lightning_renamed_file(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A checkpoint that was renamed, or moved to another folder, is resumed from."""
    want = weights(fit(writer, folder / "runs", 4))
    os.rename(folder / "runs/step=4.ckpt", folder / "runs/good.ckpt")
    expect_same(weights(fit(reader, folder / "runs2", 4, resume=str(folder / "runs/good.ckpt"))), want)
    os.rename(folder / "runs/good.ckpt", folder / "good.ckpt")
    expect_same(weights(fit(reader, folder / "runs3", 4, resume=str(folder / "good.ckpt"))), want)


@case(AREA, "lightning", crosswise=False)
def lightning_removed_by_the_user(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A checkpoint that a user removes does not come back, and its bytes are free once the next job has begun."""
    fit(writer, folder / "runs", 6)
    (folder / "runs/step=2.ckpt").unlink()
    fit(reader, folder / "runs", 8, resume=str(folder / "runs/step=6.ckpt"))
    expect(not (folder / "runs/step=2.ckpt").exists(), "it is there again")
    left = [path for path in (folder / "runs").rglob("*step=2.ckpt") if path.is_file()]
    expect(not left, f"there is {left}")


@case(AREA, "lightning")
def lightning_optimizer_stripped_by_a_program(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A program loads a checkpoint, removes the optimizer's state, and writes it to a new file, which is loaded again."""
    want = weights(fit(writer, folder / "runs", 2))
    state = torch.load(folder / "runs/step=2.ckpt", weights_only=False)
    state["optimizer_states"] = []
    torch.save(state, folder / "runs/weights.ckpt")
    plugin = next(iter(reader.plugins()), None)
    load = plugin.load_checkpoint if plugin else torch.load
    loaded = load(str(folder / "runs/weights.ckpt"), weights_only=False)
    expect_same(dict(loaded["state_dict"]), want)
    expect(loaded["optimizer_states"] == [], "the optimizer's state is there again")


@case(AREA, "lightning")
def lightning_saved_over_by_the_other(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that goes on with another plugin, or without one, saves over `last.ckpt`, and the next one finds its state there."""
    options = {"save_last": True, "save_top_k": 0, "filename": "{step}"}
    fit(writer, folder / "runs", 2, **options)
    want = weights(fit(reader, folder / "runs", 4, resume="last", **options))
    names = [name for name in os.listdir(folder / "runs") if name.endswith(".ckpt")]
    expect_kept(names == ["last.ckpt"], f"there are {names}")
    expect_same(weights(fit(writer, folder / "runs", 4, resume="last", **options)), want)


@case(AREA, "lightning")
def lightning_save_checkpoint_after_fit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`trainer.save_checkpoint()` after training returns when the checkpoint is there."""
    trainer = fit(writer, folder / "runs", 2)
    trainer.save_checkpoint(str(folder / "runs/final.ckpt"))
    expect_kept((folder / "runs/final.ckpt").exists(), "it is not there")
    fit(reader, folder / "runs2", 4, resume=str(folder / "runs/final.ckpt"))


@case(AREA, "lightning", "Lightning-AI/pytorch-lightning#20953", crosswise=False)
def lightning_async_save_of_a_state_that_changes(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An asynchronous save has the weights of its step, and not those of steps that come while it is written."""
    import pytorch_lightning as pl

    seen = {}

    class Note(pl.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            seen[trainer.global_step] = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    class Large(type(make_model())):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.more = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2_000_000)) for _ in range(4)])

        def training_step(self, batch: Any, number: int) -> Any:
            loss = super().training_step(batch, number)
            loss["loss"] = loss["loss"] + sum(parameter.mean() for parameter in self.more)
            return loss

    fit(writer, folder / "runs", 8, model=Large(), plugins=writer.async_plugins(), callbacks=[Note()])
    for step in (2, 4, 6, 8):
        state = torch.load(folder / f"runs/step={step}.ckpt", weights_only=False)["state_dict"]
        expect_same(dict(state), seen[step], f"the state of step {step}")


@case(AREA, "lightning")
def lightning_state_of_callbacks(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Callbacks get their state back: EarlyStopping its count, a callback of the program what it has saved."""
    import pytorch_lightning as pl

    class Mine(pl.Callback):
        count = 0

        def on_train_batch_end(self, *_: Any) -> None:
            self.count += 1

        def state_dict(self) -> Any:
            return {"count": self.count}

        def load_state_dict(self, state: Any) -> None:
            self.count = state["count"]

    fit(writer, folder / "runs", 4, callbacks=[Mine()])
    mine = Mine()
    fit(reader, folder / "runs2", 6, resume=str(folder / "runs/step=4.ckpt"), callbacks=[mine])
    expect(mine.count == 6, f"the count is {mine.count}")


@case(AREA, "lightning", "Lightning-AI/pytorch-lightning#688", crosswise=False)
def lightning_file_that_was_cut(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A checkpoint whose file was cut is refused."""
    fit(writer, folder / "runs", 2)
    path = folder / "runs/step=2.ckpt"
    os.truncate(path, path.stat().st_size // 2)
    try:
        fit(reader, folder / "runs2", 4, resume=str(path))
    except FAILURE:
        return
    expect(False, "it was accepted without an error")


@case(AREA, "lightning", crosswise=False)
def lightning_flipped_bit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A bit that has flipped in the weights on the disk is found, and no other value is loaded."""
    from conformance.case import flip_a_byte

    trainer = fit(writer, folder / "runs", 2)
    want = weights(trainer)
    data = next(tensor for tensor in want.values() if tensor.dim() == 2).numpy().tobytes()
    flip_a_byte(folder / "runs", data[:64])
    os.rename(folder / "runs", folder / "moved")  # What is in memory belongs to the other place.
    try:
        got = fit(reader, folder / "runs2", 2, resume=str(folder / "moved/step=2.ckpt"))
    except FAILURE:
        return
    expect_same(weights(got), want)
