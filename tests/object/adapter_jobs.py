"""Jobs of each library that the adapters serve: run() is a rank with the environment that torchrun gives it.

Each has the line of its library's documentation that goes on from the newest checkpoint, and no other way to find it. It
saves after steps 2 and 4, and trains on. An empty URL means no bucket.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import warnings
from typing import Any, Callable, Dict, Iterator, List, Tuple

import ckptd
import torch
import torch.distributed as dist

warnings.filterwarnings("ignore")
Found = Tuple[int, torch.nn.Module]  # The step that the job went on from, and what it has trained.
SAVED = (2, 4)


def upload_of(url: str) -> Any:
    return ckptd.Upload(url, restore=os.environ.get("RESTORE") != "no") if url else None


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def batch(step: int) -> torch.Tensor:
    return torch.linspace(-1, step, 24).reshape(4, 6)


def train_step(module: torch.nn.Module, optimizer: Any, step: int) -> None:
    module(batch(step)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def train_with(
    begin: int, steps: int, module: torch.nn.Module, optimizer: Any, save: Callable[[int], None]
) -> Found:
    for step in range(begin + 1, steps + 1):
        train_step(module, optimizer, step)
        if step in SAVED:
            save(step)
    return begin, module


def dcp(root: str, url: str, steps: int, by_path: bool = False) -> Found:
    import ckptd.dcp
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    ckptd.dcp.configure(upload=upload_of(url))
    ckptd.dcp.install()
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)

    def state() -> Dict[str, Any]:
        weights, moments = get_state_dict(module, optimizer)
        return {"model": weights, "optimizer": moments, "step": torch.tensor(begin)}

    begin = 0
    path = os.path.join(root, "step-4") if by_path else ckptd.dcp.latest(root)
    if path:
        loaded = state()
        dcp.load(loaded, checkpoint_id=path)
        begin = int(loaded["step"])
        set_state_dict(
            module, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
        )

    def save(step: int) -> None:
        dcp.save({**state(), "step": torch.tensor(step)}, checkpoint_id=os.path.join(root, f"step-{step}"))

    return train_with(begin, steps, module, optimizer, save)


def dcp_by_path(root: str, url: str, steps: int) -> Found:
    # The first launch, which knows of no checkpoint, begins from nothing.
    return dcp(root, url, steps, by_path=os.environ["BEGINS"] == "no")


def deepspeed(root: str, url: str, steps: int, again: bool = False) -> Found:
    import ckptd.deepspeed
    import deepspeed

    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    ckptd.deepspeed.configure(upload=upload_of(url))
    ckptd.deepspeed.install(wait="committed" if again else "sealed")
    module = model()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    if again:
        engine.save_checkpoint(root, tag="global_step2")
    path, client_state = engine.load_checkpoint(root)
    begin = client_state["step"] if client_state else 0
    assert not begin or path.startswith(f"{root}/global_step{begin}/"), path
    if begin and "://" not in root:
        with open(os.path.join(root, "latest"), encoding="utf-8") as latest:
            assert latest.read() == f"global_step{begin}"
    for step in range(begin + 1, steps + 1):
        engine.backward(engine(batch(step)).square().mean())
        engine.step()
        if step in SAVED:
            engine.save_checkpoint(root, client_state={"step": step})
    return begin, module


def nxd(root: str, url: str, steps: int, asks: bool = True) -> Found:
    import ckptd.nxd as nxd

    nxd.configure(upload=upload_of(url))
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    begin = 0
    if not asks or nxd.has_checkpoint(root):
        begin = nxd.load_checkpoint(root, tag=None, model=module, optimizer=optimizer)["step"]

    def save(step: int) -> None:
        content = {"step": step}
        nxd.save_checkpoint(root, f"step_{step}", model=module, optimizer=optimizer, user_content=content)

    return train_with(begin, steps, module, optimizer, save)


def nxd_by_tag_none(root: str, url: str, steps: int) -> Found:
    return nxd(root, url, steps, asks=os.environ["BEGINS"] == "yes")


def torchtnt(root: str, url: str, steps: int, restores: bool = True) -> Found:
    import ckptd.dcp
    from ckptd.torchtnt import CheckpointSaver
    from torchtnt.framework.train import train
    from torchtnt.framework.unit import TrainUnit

    class Unit(TrainUnit[int]):
        def __init__(self) -> None:
            super().__init__()
            self.module = model()
            self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.1)

        def train_step(self, state: Any, data: int) -> None:
            # By the step and not by the data: TorchTNT begins a data loader without a state anew.
            train_step(self.module, self.optimizer, self.train_progress.num_steps_completed + 1)

    ckptd.dcp.configure(upload=upload_of(url))
    unit = Unit()
    saver = CheckpointSaver(root, save_every_n_train_steps=2)
    if restores:
        saver.restore_from_latest(root, unit)
    begin = unit.train_progress.num_steps_completed
    train(unit, list(range(steps)), max_epochs=1, max_steps_per_epoch=steps, callbacks=[saver])
    return begin, unit.module


def lightning(root: str, url: str, steps: int) -> Found:
    import ckptd.lightning
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import ModelCheckpoint

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model()
            self.begin = -1

        def on_train_start(self) -> None:
            self.begin = self.global_step

        def training_step(self, data: Any, number: int) -> Any:
            return self.layers(batch(self.global_step + 1)).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.1)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(torch.zeros(40, 1))

    ckptd.lightning.configure(upload=upload_of(url))
    module = Module()
    last: Any = {"yes": True, "link": "link"}[os.environ.get("SAVE_LAST", "yes")]
    keeper = ModelCheckpoint(root, every_n_train_steps=2, save_last=last, save_top_k=-1, filename="{step}")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp" if os.environ["WORLD_SIZE"] != "1" else "auto",
        max_steps=steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[ckptd.lightning.CheckpointIO()],
        callbacks=[keeper],
        default_root_dir=root,
    )
    trainer.fit(module, ckpt_path="last")
    return module.begin, module.layers


def lightning_link(root: str, url: str, steps: int) -> Found:
    os.environ["SAVE_LAST"] = "link"
    return lightning(root, url, steps)


def transformers(root: str, url: str, steps: int, finds: bool = False) -> Found:
    global get_last_checkpoint  # As in a program, which imports it before all else.
    import ckptd.transformers
    import transformers
    from transformers.trainer_utils import get_last_checkpoint

    transformers.logging.set_verbosity_error()
    ckptd.transformers.configure(upload=upload_of(url))

    class Net(transformers.PreTrainedModel):  # type: ignore[misc]
        config_class = transformers.PretrainedConfig

        def __init__(self) -> None:
            super().__init__(transformers.PretrainedConfig())
            self.layers = model()
            self.post_init()

        def forward(self, number: torch.Tensor, **others: Any) -> Any:
            inputs = torch.stack([batch(int(each))[0] for each in number])
            return {"loss": self.layers(inputs).square().mean()}

    class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 64

        def __getitem__(self, number: int) -> Dict[str, Any]:
            return {"number": torch.tensor(number)}

    begun: List[int] = []

    class Begin(transformers.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            begun.append(state.global_step)

    arguments = transformers.TrainingArguments(
        root,
        use_cpu=True,
        max_steps=steps,
        save_steps=2,
        save_strategy="steps",
        report_to=[],
        disable_tqdm=True,
        lr_scheduler_type="constant",
        per_device_train_batch_size=2,
        remove_unused_columns=False,
    )
    callbacks = [ckptd.transformers.CheckpointCallback(), Begin()]
    trainer = transformers.Trainer(Net(), arguments, train_dataset=Data(), callbacks=callbacks)
    resume: Any = None if os.environ["BEGINS"] == "yes" else True
    if finds:
        os.makedirs(root, exist_ok=True)
        resume = get_last_checkpoint(root)
    trainer.train(resume_from_checkpoint=resume)
    return begun[0], trainer.model.layers


def transformers_last(root: str, url: str, steps: int) -> Found:
    return transformers(root, url, steps, finds=True)


JOBS: Dict[str, Callable[[str, str, int], Found]] = {
    function.__name__: function
    for function in (
        dcp,
        dcp_by_path,
        deepspeed,
        nxd,
        nxd_by_tag_none,
        torchtnt,
        lightning,
        lightning_link,
        transformers,
        transformers_last,
    )
}


def nxd_again(root: str, url: str, steps: int) -> Found:
    import ckptd.nxd as nxd

    nxd.save_checkpoint(root, "step_2", model=model())
    return 0, model()


@contextlib.contextmanager
def cause_alone() -> Iterator[None]:
    """Raises the error of a rank in the place of DCP's CheckpointException, which is only a BaseException."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        (cause, _), *_ = error.failures.values()
        raise cause from error


def dcp_again(root: str, url: str, steps: int) -> Found:
    import ckptd.dcp
    import torch.distributed.checkpoint as dcp

    with cause_alone():
        dcp.save({"a": torch.ones(3)}, storage_writer=ckptd.dcp.Writer(os.path.join(root, "step-2")))
    return 0, model()


def deepspeed_again(root: str, url: str, steps: int) -> Found:
    return deepspeed(root, url, steps, again=True)


def torchtnt_again(root: str, url: str, steps: int) -> Found:
    with cause_alone():
        return torchtnt(root, url, steps, restores=False)


# Jobs that save to a tag that has a checkpoint.
AGAIN = {function.__name__: function for function in (nxd_again, dcp_again, torchtnt_again, deepspeed_again)}


# What the jobs of a library import, which takes seconds.
IMPORTS = {
    "dcp": "import ckptd.dcp, torch.distributed.checkpoint.state_dict",
    "deepspeed": 'os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")\n'
    "import ckptd.deepspeed, deepspeed, torch._inductor.compile_fx",
    "nxd": "import ckptd.nxd",
    "torchtnt": "import ckptd.torchtnt, torchtnt.framework.train",
    "lightning": "import ckptd.lightning, pytorch_lightning",
    "transformers": "import ckptd.transformers, transformers.trainer",
}


def library_of(job: str) -> str:
    return job.partition("_")[0]


def run(job: str, root: str, url: str, steps: int) -> Dict[str, Any]:
    """Returns the step that the job went on from and the weights, or the error that it heard."""
    if library_of(job) in ("dcp", "nxd", "torchtnt"):
        dist.init_process_group("gloo")
    try:
        begin, trained = {**JOBS, **AGAIN}[job](root, url, steps)
    except ckptd.CkptdError as error:
        return {"error": type(error).__name__, "reason": error.reason, "words": str(error)}
    values = {name: value.tolist() for name, value in trained.state_dict().items()}
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    return {"begin": begin, "values": values}
