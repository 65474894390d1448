"""DeepSpeed: tags, `latest`, and what comes back at each stage of ZeRO."""

from __future__ import annotations

import importlib
import os
import pathlib
import resource
import signal
from typing import Any, Callable, Dict

import torch
from conformance.case import (
    FAILURE,
    bytes_of,
    case,
    expect,
    expect_kept,
    expect_same,
    flip_a_byte,
    in_a_child,
    kill,
    killed_within,
    on_ranks,
)

AREA = "DeepSpeed"


class Net(torch.nn.Module):
    """With a frozen layer, and on request a tied weight."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 32)
        self.frozen = torch.nn.Linear(32, 32).requires_grad_(False)
        self.outer = torch.nn.Linear(32, 8)
        self.again = torch.nn.Linear(8, 32, bias=False)
        if tied:
            self.again.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.frozen(torch.tanh(self.inner(x) + self.again(x)))))


def join(folder: pathlib.Path, rank: int = 0, ranks: int = 1) -> None:
    """Makes the process group of a job, once in a process."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    os.environ.setdefault("CKPTD_LAUNCH_ID", f"{folder}-{ranks}")
    import deepspeed

    # An extension for communication, which would be compiled at the first use.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # Slow on a CPU, but it works.
    where = f"file://{folder}/group-{os.getpid() if ranks == 1 else ranks}"
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, init_method=where, rank=rank, world_size=ranks)


def engine(library: Any, stage: int, *, seed: int = 0, tied: bool = False, dtype: str = "", **settings: Any) -> Any:
    """Returns a new engine whose checkpoints are those of the library. seed: of its weights."""
    import deepspeed

    library.choose()
    torch.manual_seed(seed)
    model = Net(tied)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7, "warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3}},
        **({dtype: {"enabled": True, **({"initial_scale_power": 4} if dtype == "fp16" else {})}} if dtype else {}),
        **settings,
    }
    made, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return made


def train(made: Any, steps: int = 1) -> None:
    """Trains on batches that depend on the step alone."""
    dtype = next(made.module.parameters()).dtype
    for _ in range(steps):
        torch.manual_seed(made.global_steps)
        made.backward(made(torch.randn(2, 8).to(dtype)).float().square().mean())
        made.step()


def weights(made: Any) -> Dict[str, torch.Tensor]:
    """Returns copies of the weights; at stage 3 of this rank's partitions."""
    return {name: getattr(each, "ds_tensor", each).detach().clone() for name, each in made.module.named_parameters()}


def whole_weights(library: Any, root: pathlib.Path) -> Dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in library.whole_weights(root).items()}


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#3875", "huggingface/transformers#27710")
def deepspeed_resume(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """At every stage of ZeRO a job that is resumed has the weights, and the learning rate, of one that was not interrupted."""
    join(folder)
    for stage in range(4):
        root = folder / f"runs-{stage}"
        whole = engine(writer, stage)
        train(whole, 2)
        whole.save_checkpoint(str(root), client_state={"epoch": 3})
        train(whole, 2)
        writer.finish(root)
        got = engine(reader, stage, seed=1)
        path, client_state = got.load_checkpoint(str(root))
        expect(path is not None, "it began anew")
        expect(client_state["epoch"] == 3, f"the client state is {client_state}")
        train(got, 2)
        expect_same(weights(got), weights(whole), f"the weights at stage {stage}")
        expect_same(got.get_lr(), whole.get_lr(), "the learning rate")
        expect_same((got.global_steps, got.global_samples), (whole.global_steps, whole.global_samples), "the steps")


@case(AREA, "deepspeed")
def deepspeed_loss_scale(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """With fp16 the scale of the loss, and the count of steps that were skipped, come back."""
    join(folder)
    made = engine(writer, 2, dtype="fp16")
    train(made, 2)
    made.backward(made(torch.full((2, 8), 1.0, dtype=torch.float16)).float().sum() * float("inf"))
    made.step()
    expect(made.skipped_steps == 1, "no step was skipped")
    made.save_checkpoint(str(folder / "runs"))
    writer.finish(folder / "runs")
    got = engine(reader, 2, dtype="fp16", seed=1)
    got.load_checkpoint(str(folder / "runs"))
    expect_same(got.optimizer.cur_scale, made.optimizer.cur_scale, "the scale")
    expect_same(got.skipped_steps, 1, "the count of skipped steps")


@case(AREA, "deepspeed")
def deepspeed_client_state(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """What the program puts into client_state comes back with its types: numbers, texts, nested containers, tensors."""
    from collections import OrderedDict

    join(folder)
    state = {
        "step": 7,
        "best": 0.25,
        "name": "run",
        "seen": [1, 2],
        "pair": (1, "a"),
        "none": None,
        "nested": OrderedDict(a={"b": True}),
        "rng": torch.get_rng_state(),
    }
    engine(writer, 1).save_checkpoint(str(folder / "runs"), client_state=state)
    writer.finish(folder / "runs")
    _, got = engine(reader, 1).load_checkpoint(str(folder / "runs"))
    expect_same({name: got[name] for name in state}, state, "the client state")


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#8499")
def deepspeed_weights_of_a_tag(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """At stage 3, `load_optimizer_states=False` loads the weights of the tag that is asked for, and not of the newest one."""
    join(folder)
    made = engine(writer, 3)
    train(made)
    made.save_checkpoint(str(folder / "runs"), tag="earlier")
    want = weights(made)
    train(made)
    made.save_checkpoint(str(folder / "runs"), tag="later")
    writer.finish(folder / "runs")
    got = engine(reader, 3, seed=1)
    got.load_checkpoint(str(folder / "runs"), tag="earlier", load_optimizer_states=False)
    expect_same(weights(got), want, "the weights")


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#14")
def deepspeed_weights_alone(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """At every stage `load_module_only=True` loads the weights, for example to tune them further."""
    join(folder)
    for stage in range(4):
        root = folder / f"runs-{stage}"
        made = engine(writer, stage)
        train(made)
        made.save_checkpoint(str(root))
        writer.finish(root)
        got = engine(reader, stage, seed=1)
        got.load_checkpoint(str(root), load_module_only=True)
        expect_same(weights(got), weights(made), f"the weights at stage {stage}")


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#2101", "deepspeedai/DeepSpeed#762")
def deepspeed_step_after_weights_alone(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """With half precision, the first step after `load_optimizer_states=False` starts from the weights that were loaded."""
    join(folder)
    for stage, dtype in ((1, "fp16"), (2, "bf16"), (3, "bf16")):
        root = folder / f"runs-{stage}"
        made = engine(writer, stage, dtype=dtype)
        train(made)
        made.save_checkpoint(str(root))
        writer.finish(root)
        got = engine(reader, stage, dtype=dtype, seed=1)
        got.load_checkpoint(str(root), load_optimizer_states=False)
        train(got)
        far = max(float((one.float() - other.float()).abs().max()) for one, other in zip(weights(got).values(), weights(made).values()))
        expect(far < 0.02, f"a weight is {far:.2f} away from the one that was loaded")


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#2898", "deepspeedai/DeepSpeed#3810", "deepspeedai/DeepSpeed#6441")
def deepspeed_other_number_of_ranks(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A checkpoint that two data-parallel ranks have saved is loaded by one rank, with its optimizer, at stages 1 to 3."""

    def save(rank: int) -> None:
        join(folder, rank, 2)
        library = type(writer)()
        for stage in (1, 2, 3):
            made = engine(library, stage)
            train(made, 2)
            made.save_checkpoint(str(folder / f"runs-{stage}"))
            library.finish(folder / f"runs-{stage}")
            if rank == 0:
                torch.save(whole_weights(library, folder / f"runs-{stage}"), folder / f"want-{stage}")

    on_ranks(2, save)
    os.environ.pop("CKPTD_LAUNCH_ID", None)
    join(folder)
    for stage in (1, 2, 3):
        got = engine(reader, stage, seed=1)
        path, _ = got.load_checkpoint(str(folder / f"runs-{stage}"))
        expect(path is not None, "it began anew")
        got.save_checkpoint(str(folder / f"again-{stage}"))
        reader.finish(folder / f"again-{stage}")
        want, weights_now = torch.load(folder / f"want-{stage}"), whole_weights(reader, folder / f"again-{stage}")
        expect_same({name: weights_now[name] for name in want}, want, f"the weights at stage {stage}")
        expect_same(got.global_steps, 2, "the steps")
        train(got)


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#3824", "deepspeedai/DeepSpeed#1896", "Lightning-AI/pytorch-lightning#15694")
def deepspeed_recovered_tied_weights(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The whole float32 weights that are recovered from a checkpoint of ZeRO have tied ones under all of their names."""
    join(folder)
    for stage in (1, 2, 3):
        made = engine(writer, stage, tied=True)
        train(made)
        made.save_checkpoint(str(folder / f"runs-{stage}"))
        writer.finish(folder / f"runs-{stage}")
        got = whole_weights(reader, folder / f"runs-{stage}")
        expect({"inner.weight", "again.weight"} <= set(got), f"at stage {stage} there are {sorted(got)}")
        expect_same(got["again.weight"], got["inner.weight"], "a tied weight")


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#5439", "deepspeedai/DeepSpeed#5489")
def deepspeed_recovered_frozen_weights(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The whole float32 weights that are recovered from a checkpoint of ZeRO have the frozen ones, with bf16, too."""
    join(folder)
    for stage, dtype in ((1, ""), (2, ""), (2, "bf16"), (3, "")):
        root = folder / f"runs-{stage}{dtype}"
        made = engine(writer, stage, dtype=dtype)
        made.save_checkpoint(str(root))
        writer.finish(root)
        got = whole_weights(reader, root)
        expect("frozen.weight" in got, f"at stage {stage} {dtype} there are {sorted(got)}")
        torch.manual_seed(0)
        want = Net(tied=False).frozen.weight.detach()
        expect(torch.allclose(got["frozen.weight"].float(), want, atol=0.01), f"they have other values at stage {stage}")


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#1165", "deepspeedai/DeepSpeed#1317")
def deepspeed_recovered_weights_right_after_a_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The weights that are recovered right after `save_checkpoint` are those of that save, and not of an earlier one."""
    join(folder)
    made = engine(writer, 2)
    for _ in range(3):
        train(made)
        made.save_checkpoint(str(folder / "runs"))
        got = whole_weights(writer, folder / "runs")
        expect_same(got["inner.weight"], weights(made)["inner.weight"], "a weight")


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#3948", "Lightning-AI/pytorch-lightning#20949")
def deepspeed_without_the_frozen_weights(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """`exclude_frozen_parameters=True` writes no frozen weights; a load that is not strict leaves them as they are."""
    join(folder)
    made = engine(writer, 2)
    train(made)
    made.save_checkpoint(str(folder / "runs"), exclude_frozen_parameters=True)
    writer.finish(folder / "runs")
    got = engine(reader, 2, seed=1)
    before = weights(got)["frozen.weight"]
    got.load_checkpoint(str(folder / "runs"), load_module_strict=False)
    expect_same(weights(got)["frozen.weight"], before, "the frozen weight")
    expect_same(weights(got)["inner.weight"], weights(made)["inner.weight"], "a trained weight")


@case(AREA, "deepspeed", "deepspeedai/DeepSpeed#3303", "deepspeedai/DeepSpeed#549")
def deepspeed_room_of_a_checkpoint(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A checkpoint takes the room of its values once, although the weights are views of flat buffers."""
    join(folder)
    elements = sum(each.numel() for each in Net(tied=False).parameters())
    for stage in range(4):
        made = engine(writer, stage)
        train(made)
        made.save_checkpoint(str(folder / "runs"), tag=f"stage-{stage}")
        writer.finish(folder / "runs")
        # Weights, master weights and two moments, and what the containers take.
        room = bytes_of(folder / f"runs/stage-{stage}")
        expect(room < 4 * 4 * elements + 40_000, f"at stage {stage} {elements} elements take {room} bytes")


@case(AREA, "deepspeed", "tdrussell/diffusion-pipe#159", crosswise=False)
def deepspeed_latest_is_empty(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Where a loss of power has left `latest` without its bytes, a job goes on from a checkpoint or is refused: it does not begin anew."""
    join(folder)
    made = engine(writer, 1)
    made.save_checkpoint(str(folder / "runs"))
    writer.finish(folder / "runs")
    (folder / "runs/latest").write_bytes(b"")
    try:
        path, _ = engine(reader, 1).load_checkpoint(str(folder / "runs"))
    except FAILURE:
        return
    expect(path is not None, "it began anew")


@case(AREA, "deepspeed", "tdrussell/diffusion-pipe#159", "tdrussell/diffusion-pipe#73", crosswise=False)
def deepspeed_latest_is_missing(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Where there are whole checkpoints and no `latest`, a job goes on from one or is refused: it does not begin anew."""
    join(folder)
    made = engine(writer, 1)
    made.save_checkpoint(str(folder / "runs"))
    writer.finish(folder / "runs")
    (folder / "runs/latest").unlink()
    try:
        path, _ = engine(reader, 1).load_checkpoint(str(folder / "runs"))
    except FAILURE:
        return
    expect(path is not None, "it began anew")


@case(AREA, "deepspeed", "tdrussell/diffusion-pipe#159", crosswise=False)
def deepspeed_newest_without_its_bytes(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Where a loss of power has left the newest checkpoint's files without their bytes, a job goes on from the one before."""
    join(folder)
    made = engine(writer, 1)
    for tag in ("one", "two"):
        train(made)
        made.save_checkpoint(str(folder / "runs"), tag=tag, client_state={"tag": tag})
        writer.finish(folder / "runs")
    for path in (folder / "runs/two").glob("*.pt"):
        path.write_bytes(b"")
    os.rename(folder / "runs", folder / "moved")  # What is in memory belongs to the other place.
    path, client_state = engine(reader, 1, seed=1).load_checkpoint(str(folder / "moved"))
    expect(path is not None, "it began anew")
    expect(client_state["tag"] == "one", f"it goes on from {client_state['tag']}")


@case(AREA, "deepspeed", crosswise=False)
def deepspeed_flipped_bit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A bit that has flipped on the disk, in a moment of the optimizer, is found, and no other value is loaded."""
    join(folder)
    made = engine(writer, 1)
    train(made, 2)
    made.save_checkpoint(str(folder / "runs"))
    writer.finish(folder / "runs")
    want = made.optimizer.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    flip_a_byte(folder / "runs", want.numpy().tobytes()[256:320])
    os.rename(folder / "runs", folder / "moved")  # What is in memory belongs to the other place.
    got = engine(reader, 1, seed=1)
    try:
        got.load_checkpoint(str(folder / "moved"))
    except FAILURE:
        return
    expect_same(got.optimizer.optimizer.state_dict()["state"][0]["exp_avg"], want, "a moment")


@case(AREA, "deepspeed")
def deepspeed_tag_that_is_not_there(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A tag that is not there is refused, and the error names it."""
    join(folder)
    engine(writer, 1).save_checkpoint(str(folder / "runs"), tag="there")
    writer.finish(folder / "runs")
    try:
        path, _ = engine(reader, 1).load_checkpoint(str(folder / "runs"), tag="no-such-tag")
    except FAILURE as error:
        expect("no-such-tag" in str(error), f"the error does not name the tag: {type(error).__name__} {error}")
    else:
        expect(False, "it was accepted without an error" if path else "it began anew")


@case(AREA, "deepspeed")
def deepspeed_number_as_the_tag(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A tag may be a number, such as the step."""
    join(folder)
    made = engine(writer, 1)
    made.save_checkpoint(str(folder / "runs"), tag=100)
    writer.finish(folder / "runs")
    got = engine(reader, 1, seed=1)
    path, _ = got.load_checkpoint(str(folder / "runs"), tag=100)
    expect(path is not None, "it began anew")
    expect_same(weights(got), weights(made), "the weights")


@case(AREA, "deepspeed", "allenai/allennlp#2129", crosswise=False)
def deepspeed_killed_while_it_saves_a_tag_again(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that is killed while it saves over a tag leaves the old state or the new one, whole."""
    for eighth in range(8):
        root = folder / f"runs-{eighth}"

        def prepare(root: pathlib.Path = root) -> Callable[[], None]:
            join(folder)
            library = type(writer)()
            made = engine(library, 1)

            def work() -> None:
                train(made)
                made.save_checkpoint(str(root), tag="last")
                library.finish(root)

            return work

        killed_within(prepare, eighth)
    join(folder)
    for eighth in range(8):
        got = engine(reader, 1, seed=1)
        try:
            path, _ = got.load_checkpoint(str(folder / f"runs-{eighth}"))
        except FAILURE as error:
            expect_kept(False, f"neither the old nor the new one can be loaded: {error}")
        expect_kept(path is not None and got.global_steps in (1, 2), f"it goes on from step {got.global_steps}")


@case(AREA, "deepspeed", crosswise=False)
def deepspeed_killed_right_after_a_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A job that is killed when `save_checkpoint` has returned goes on from that checkpoint."""

    def work(ready: Any) -> None:
        join(folder)
        made = engine(type(writer)(), 2)
        train(made, 3)
        made.save_checkpoint(str(folder / "runs"))
        ready()
        signal.pause()

    kill(in_a_child(work))
    join(folder)
    got = engine(reader, 2, seed=1)
    path, _ = got.load_checkpoint(str(folder / "runs"))
    expect_kept(path is not None and got.global_steps == 3, f"it goes on from step {got.global_steps}")


@case(AREA, "deepspeed", "mlfoundations/open_lm#154", crosswise=False)
def deepspeed_no_room_for_a_tag_again(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A save over a tag that cannot write its files raises, and what was there stays. (A limit on the
    size of files stands for a full disk.)"""
    join(folder)
    made = engine(writer, 1)
    train(made)
    made.save_checkpoint(str(folder / "runs"), tag="last")
    writer.finish(folder / "runs")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    train(made)
    try:
        made.save_checkpoint(str(folder / "runs"), tag="last")
        writer.finish(folder / "runs")
    except FAILURE:
        want = 1
    else:
        want = 2
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    got = engine(reader, 1, seed=1)
    try:
        path, _ = got.load_checkpoint(str(folder / "runs"))
    except FAILURE as error:
        expect_kept(False, f"it cannot be loaded: {error}")
    expect_kept(path is not None and got.global_steps == want, f"it goes on from step {got.global_steps}")
