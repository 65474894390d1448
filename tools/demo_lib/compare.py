"""What a save costs training: ckptd, torch.save with fsync, DCP's asynchronous save as well set up as can be.

All in one job, in turns, on the same state, each rank computing all the time, so that no core is spare.
For a save:
  stall    how long the trainer stood still (the slowest rank)
  durable  from the call until the library says that all is done
  lost     stall, and what the steps until then took longer than quiet ones
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import io
import os
import pathlib
import shutil
import time
from typing import Any, Callable, Dict, List, Tuple

import ckptd
import machine
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

from demo_lib.launch import Job
from demo_lib.train import Journal, Trainer

CKPTD = "ckptd"
TORCH_SAVE = "torch.save + fsync"
DCP_THREAD = "dcp.async_save, kept stager, threads"
DCP_PROCESS = "dcp.async_save, kept stager, process"
CONTENDERS = (CKPTD, TORCH_SAVE, DCP_THREAD, DCP_PROCESS)
QUIET_STEPS = 3

# Starts a save; returns when training may go on, with a future of the moment when all is said to be done.
Save = Callable[[str], "concurrent.futures.Future[Any]"]


def save_with_ckptd(run: Any, trainer: Trainer) -> Save:
    def save(tag: str) -> "concurrent.futures.Future[Any]":
        return run.save(tag, files=trainer.files()).future("committed")  # type: ignore[no-any-return]

    return save


def save_with_torch(folder: pathlib.Path, trainer: Trainer) -> Save:
    def save(tag: str) -> "concurrent.futures.Future[Any]":
        place = folder / tag
        place.mkdir(exist_ok=True)
        for name, value in trainer.files().items():
            with open(place / name, "wb") as file:
                torch.save(value, file)
                file.flush()
                os.fsync(file.fileno())
        directory = os.open(place, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        done: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        done.set_result(None)
        return done

    return save


def save_with_dcp(
    folder: pathlib.Path, trainer: Trainer, kind: AsyncCheckpointerType, stack: contextlib.ExitStack
) -> Save:
    """A stager that keeps its shared buffers between saves, a process group of its own, two writers."""
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=True,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
    )
    stack.callback(stager.close)
    group = dist.new_group(backend="gloo")

    def save(tag: str) -> "concurrent.futures.Future[Any]":
        # The ranks hold the same values; their own keys keep DCP from writing each of them once only.
        state = {f"rank_{trainer.rank}": trainer.files()}
        writer = FileSystemWriter(folder / tag, single_file_per_rank=True, sync_files=True, thread_count=2)
        future = async_save(
            state,
            storage_writer=writer,
            process_group=group,
            async_checkpointer_type=kind,
            async_stager=stager,
        )
        return future  # type: ignore[return-value]

    return save


def measure(trainer: Trainer, save: Save, tag: str) -> Dict[str, Any]:
    """One save between steps; `durable` of this rank; seconds of the steps before and until then."""

    def step() -> float:
        start = time.perf_counter()
        trainer.train_step()
        return time.perf_counter() - start

    step()
    quiet = [step() for _ in range(QUIET_STEPS)]
    dist.barrier()
    finished: List[float] = []
    start = time.perf_counter()
    future = save(tag)
    stall = time.perf_counter() - start
    future.add_done_callback(lambda _: finished.append(time.perf_counter() - start))
    during: List[float] = []
    everywhere = torch.zeros(1)
    while not everywhere.item():
        during.append(step())
        everywhere.fill_(1.0 if finished else 0.0)
        dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
    future.result(timeout=0)  # Raises what went wrong.
    return {"stall": stall, "durable": finished[0], "quiet": quiet, "during": during}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=pathlib.Path, required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where the others write")
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()

    journal = Journal(options.journal)
    dist.init_process_group("gloo")
    trainer = Trainer(int(os.environ["RANK"]))
    for _ in range(2):
        trainer.train_step()
    tensors = [t for t in _tensors(trainer.files())]
    copy = machine.Copy(tensors, threads=1)
    with contextlib.ExitStack() as stack:
        run = ckptd.connect(options.endpoint).run(options.root, num_kept_ckpts=2)
        saves = {
            CKPTD: save_with_ckptd(run, trainer),
            TORCH_SAVE: save_with_torch(options.folder, trainer),
            DCP_THREAD: save_with_dcp(options.folder, trainer, AsyncCheckpointerType.THREAD, stack),
            DCP_PROCESS: save_with_dcp(options.folder, trainer, AsyncCheckpointerType.PROCESS, stack),
        }
        for round_number in range(options.rounds):
            # Another one begins each time: what the disk does late falls to each of them.
            order = list(saves.items())
            first = round_number % len(order)
            for name, save in order[first:] + order[:first]:
                machine.settle(options.folder)  # After the deletion of the last one's files.
                dist.barrier()
                journal.write("copy", seconds=copy(), bytes=copy.size)
                tag = f"round_{round_number}.{list(saves).index(name)}"
                figures = measure(trainer, save, tag)
                journal.write("save", contender=name, round=round_number, **figures)
                dist.barrier()
                if trainer.rank == 0:
                    shutil.rmtree(options.folder / tag, ignore_errors=True)
    dist.barrier()
    # DCP's background process has no orderly way out of every state; nothing of ours is left to finish.
    os._exit(0)


def _tensors(value: Any) -> List[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    children = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    )
    return [tensor for child in children for tensor in _tensors(child)]


Figures = Dict[str, Dict[str, List[float]]]


def collect(job: Job, ranks: int) -> Tuple[Figures, float, float]:
    """({contender: {figure: warm values}}, best copy in seconds, a rank's bytes); all the slowest rank's."""
    per_rank = [job.events(rank, "save") for rank in range(ranks)]
    for entries in per_rank:
        # A quiet step is the same for all of them: the more are seen, the surer its median.
        usual = machine.median([seconds for entry in entries for seconds in entry["quiet"]])
        for entry in entries:
            entry["lost"] = entry["stall"] + sum(seconds - usual for seconds in entry["during"])
    figures: Figures = {name: {key: [] for key in ("stall", "durable", "lost")} for name in CONTENDERS}
    for entries in zip(*per_rank):
        if entries[0]["round"] > 0:  # The first of each allocates its buffers.
            for key, values in figures[entries[0]["contender"]].items():
                values.append(max(entry[key] for entry in entries))
    copies = [
        max(entry["seconds"] for entry in entries)
        for entries in zip(*(job.events(r, "copy") for r in range(ranks)))
    ]
    return figures, min(copies), job.events(0, "copy")[0]["bytes"]


def table(figures: Figures, copy: float, size: float, ranks: int) -> str:
    out = io.StringIO()
    out.write(
        f"{ranks} ranks, {size / 1e6:.0f} MB each, all cores computing; "
        "warm saves in turns: median [min-max], seconds.\n"
    )
    out.write(f"One copy of a rank's bytes, both at once: {copy:.3f}\n")
    out.write(f"{'':<38}{'stall':<22}{'durable':<22}{'training time lost':<22}\n")
    for name, values in figures.items():
        cells = [
            f"{machine.median(values[key]):.3f} [{min(values[key]):.3f}-{max(values[key]):.3f}]"
            for key in ("stall", "durable", "lost")
        ]
        out.write(f"{name:<38}" + "".join(f"{cell:<22}" for cell in cells).rstrip() + "\n")
    return out.getvalue()


if __name__ == "__main__":
    main()
