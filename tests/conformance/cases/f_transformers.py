"""The Trainer of transformers: limits, the best checkpoint, and what it resumes from."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from typing import Any, List

import torch
from conformance.case import FAILURE, case, expect, expect_kept, expect_same, flip_a_byte, on_ranks

AREA = "transformers"


def train(library: Any, folder: pathlib.Path, steps: int, resume: Any = None, callbacks: "List[Any]" = [], **options: Any) -> Any:  # noqa: B006
    """Trains a small model; `options` are those of TrainingArguments."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "word_embed_proj_dim": 16}
    model = transformers.OPTForCausalLM(transformers.OPTConfig(**sizes, max_position_embeddings=16))
    rows = [dict.fromkeys(["input_ids", "labels"], torch.full((8,), row)) for row in range(16)]
    options = {"save_steps": 2, "logging_steps": 1, "lr_scheduler_type": "constant", **options}
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True, **options
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=[*library.callbacks(), *callbacks]
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: Any) -> Any:
    return {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}


def checkpoints(folder: pathlib.Path) -> "List[str]":
    return sorted(name for name in os.listdir(folder) if name.startswith("checkpoint-"))


@case(AREA, "transformers")
def trainer_resume(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that is resumed in the middle has the weights of one that was not interrupted."""
    whole = weights(train(writer, folder / "whole", 6))
    train(writer, folder / "runs", 4)
    expect_same(weights(train(reader, folder / "runs", 6, resume=reader.newest(folder / "runs"))), whole)


@case(AREA, "transformers", crosswise=False)
def trainer_resume_true(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`resume_from_checkpoint=True` finds the newest checkpoint."""
    whole = weights(train(writer, folder / "whole", 6))
    train(writer, folder / "runs", 4)
    expect_same(weights(train(reader, folder / "runs", 6, resume=True)), whole)


@case(AREA, "transformers", "huggingface/transformers#25136", "modelscope/ms-swift#6392", crosswise=False)
def trainer_limit_of_one(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`save_total_limit=1` leaves the newest checkpoint, and only that."""
    train(writer, folder / "runs", 6, save_total_limit=1)
    expect_kept(checkpoints(folder / "runs") == ["checkpoint-6"], f"there are {checkpoints(folder / 'runs')}")


@case(AREA, "transformers", "huggingface/transformers#11421", "huggingface/transformers#25129", crosswise=False)
def trainer_best_is_not_removed(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`load_best_model_at_end` with `save_total_limit=1`: the best checkpoint is not removed, and its weights are loaded."""
    import transformers

    class Worse(transformers.TrainerCallback):  # type: ignore[misc]
        """Each evaluation is worse than the one before."""

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            pass

    seen = {}

    class Note(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            seen[state.global_step] = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    # A loss that is "greater is better" grows worse with each step of training.
    trainer = train(
        writer, folder / "runs", 6, callbacks=[Note()], save_total_limit=1, load_best_model_at_end=True, eval_strategy="steps", eval_steps=2,
        metric_for_best_model="loss", greater_is_better=True,
    )  # fmt: skip
    expect_kept("checkpoint-2" in checkpoints(folder / "runs"), f"there are {checkpoints(folder / 'runs')}")
    expect_same(weights(trainer), seen[2])


@case(AREA, "transformers", "huggingface/transformers#35782", crosswise=False)
def trainer_incomplete_newest(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A newest folder in which a killed job left half of its files is not resumed from."""
    train(writer, folder / "runs", 4)
    shutil.copytree(folder / "runs/checkpoint-4", folder / "runs/checkpoint-9")
    (folder / "runs/checkpoint-9/trainer_state.json").unlink()
    newest = reader.newest(folder / "runs")
    expect(newest is not None and newest.endswith("checkpoint-4"), f"the newest is {newest and os.path.basename(newest)}")


@case(AREA, "transformers", "huggingface/transformers#31283", crosswise=False)
def trainer_flipped_bit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A bit that has flipped in the newest checkpoint's weights is found, and an older checkpoint is taken or an error raised."""
    trainer = train(writer, folder / "runs", 4)
    flip_a_byte(folder / "runs/checkpoint-4", next(iter(weights(trainer).values())).numpy().tobytes()[:64])
    try:
        newest = reader.newest(folder / "runs")
    except FAILURE:
        return
    expect(newest is None or not newest.endswith("checkpoint-4"), "the damaged one is called the newest")


@case(AREA, "transformers")
def trainer_from_pretrained(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`from_pretrained` reads a checkpoint of the Trainer."""
    import transformers

    trainer = train(writer, folder / "runs", 2)
    loaded = transformers.OPTForCausalLM.from_pretrained(str(folder / "runs/checkpoint-2"))
    expect_same({name: tensor for name, tensor in loaded.state_dict().items()}, weights(trainer))


@case(AREA, "transformers", crosswise=False)
def trainer_train_twice(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A notebook that trains twice into one folder has the checkpoints of the second training."""
    train(writer, folder / "runs", 2)
    try:
        second = train(writer, folder / "runs", 2, learning_rate=0.01)
    except FAILURE as error:
        expect("checkpoint-2" in str(error) or "overwrite" in str(error), f"the error does not say what is in the way: {error}")
        return
    import transformers

    loaded = transformers.OPTForCausalLM.from_pretrained(str(folder / "runs/checkpoint-2"))
    expect_same({name: tensor for name, tensor in loaded.state_dict().items()}, weights(second))


@case(AREA, "transformers", "huggingface/transformers#35782", crosswise=False)
def trainer_resume_true_after_a_killed_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`resume_from_checkpoint=True` passes a newest folder over in which a killed job left half of its files."""
    whole = weights(train(writer, folder / "whole", 5))
    train(writer, folder / "runs", 4)
    shutil.copytree(folder / "runs/checkpoint-4", folder / "runs/checkpoint-9")
    (folder / "runs/checkpoint-9/trainer_state.json").unlink()
    expect_same(weights(train(reader, folder / "runs", 5, resume=True)), whole)


@case(AREA, "transformers", crosswise=False)
def trainer_interrupted_after_a_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Ctrl-C in a notebook right after a save: the checkpoint is whole when the next cell has waited for it."""
    import transformers

    class Interrupt(transformers.TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        train(writer, folder / "runs", 4, callbacks=[Interrupt()])
    writer.wait()
    expect_kept(checkpoints(folder / "runs") == ["checkpoint-2"], f"there are {checkpoints(folder / 'runs')}")
    expect_kept(os.path.isfile(folder / "runs/checkpoint-2/trainer_state.json"), "it is not whole")


@case(AREA, "transformers", crosswise=False)
def trainer_model_saved_beside_the_checkpoints(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`trainer.save_model()` at the end puts the model beside the checkpoints; it is read from there, and a job resumes from them."""
    import transformers

    trainer = train(writer, folder / "runs", 4)
    trainer.save_model()
    loaded = transformers.OPTForCausalLM.from_pretrained(str(folder / "runs"))
    expect_same({name: tensor for name, tensor in loaded.state_dict().items()}, weights(trainer))
    whole = weights(train(writer, folder / "whole", 6))
    expect_same(weights(train(reader, folder / "runs", 6, resume=True)), whole)


@case(AREA, "transformers")
def trainer_state_of_callbacks(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Callbacks that export their state, such as EarlyStoppingCallback, go on with it when a job is resumed."""
    import transformers

    class Count(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):  # type: ignore[misc]
        def __init__(self, seen: int = 0) -> None:
            self.seen = seen

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seen += 1

        def state(self) -> Any:
            return {"args": {}, "attributes": {"seen": self.seen}}

    train(writer, folder / "runs", 4, callbacks=[Count()])
    count = Count()
    options = {"restore_callback_states_from_checkpoint": True}
    trainer = train(reader, folder / "runs2", 6, resume=str(folder / "runs/checkpoint-4"), callbacks=[count], **options)
    found = [each for each in trainer.callback_handler.callbacks if type(each).__name__ == "Count"]
    expect([each.seen for each in found] == [6], f"the count is {[each.seen for each in found]}")


@case(AREA, "dcp")
def sharded_model_of_transformers(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A model that transformers has sharded over two ranks, which it saves by DCP itself, and its optimizer come back."""

    def work(rank: int) -> None:
        import torch.distributed as dist
        import transformers
        from transformers.distributed import DistributedConfig
        from transformers.distributed.checkpoint import load_optimizer_distributed, save_optimizer_distributed

        os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
        os.environ.update(MASTER_PORT="1", CKPTD_LAUNCH_ID=str(folder))
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
        sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
        if rank == 0:
            transformers.LlamaForCausalLM(config).save_pretrained(str(folder / "first"))
        dist.barrier()
        sharded = DistributedConfig(fsdp_size=2)
        model = transformers.AutoModelForCausalLM.from_pretrained(str(folder / "first"), distributed_config=sharded)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        ids = torch.ones(1, 4, dtype=torch.long)
        for _ in range(2):
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            writer.choose()
            model.save_pretrained(str(folder / "runs/model"), is_main_process=rank == 0, distributed_checkpoint=True)
            save_optimizer_distributed(model, optimizer, str(folder / "runs/optimizer"))
        reader.choose()
        loaded = transformers.AutoModelForCausalLM.from_pretrained(str(folder / "runs/model"), distributed_config=sharded)
        again = torch.optim.AdamW(loaded.parameters(), lr=0.1)
        load_optimizer_distributed(loaded, again, str(folder / "runs/optimizer"))
        for one, other in zip(model.parameters(), loaded.parameters()):
            expect_same(other.to_local(), one.to_local(), "a weight")
            for name, value in optimizer.state[one].items():
                got = again.state[other][name]
                expect_same(*(each.to_local() if hasattr(each, "to_local") else each for each in (got, value)), f"the optimizer's {name}")

    on_ranks(2, work)
