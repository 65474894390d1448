"""A process that saves through the Python client. Its last line of output is a JSON object with what it measured."""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import sys
import time
from typing import Any, Dict, List

import ckptd
import torch

from bench.base import limits, machine, training_state
from bench.base.fio import Fio
from bench.base.pages import KINDS
from bench.base.tensors import tensors_of


def big(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    """One cold save and then warm ones of `--size` bytes, in turns with copies and with fio."""
    files = training_state.training_state(options.size)
    tensors = tensors_of(files)
    copy = limits.MemoryCopy(tensors, options.threads, options.pages)
    fio = Fio(options.folder, options.size, options.huge)
    copies, stalls, rates, tags, cpu = [], [], [], [], []
    for number in range(options.rounds + 1):
        training_state.change(tensors)
        rates.append(fio())
        copies.append(copy())
        limits.wait_for_idle_disk(options.folder)
        cpu.append(machine.cpu_seconds(options.pid))
        start = time.perf_counter()
        save = run.save(f"save_{number}", step=number, files=files)
        stalls.append(time.perf_counter() - start)
        tags.append(save.tag)
        save.wait("committed", timeout=120.0)
        copies.append(copy())
    cpu.append(machine.cpu_seconds(options.pid))
    return {
        "bytes": copy.size,
        "copies": copies,
        "pages": copy.pages(),
        "cold": stalls[0],
        "warm": stalls[1:],
        "tags": tags,
        "fio": fio.rates,
        "cpu": (cpu[-1] - cpu[1]) / options.rounds / copy.size * 1e9,
        "memory": machine.private_memory(options.pid),
    }


def checked(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    """Warm saves of `--size` bytes, in turns with and without a check for numbers that are not finite."""
    files = training_state.training_state(options.size)
    tensors = tensors_of(files)
    for tensor in tensors:
        tensor.view(-1).view(torch.int32).bitwise_and_(~(1 << 30))  # Its random bits are finite numbers now.
    stalls: Dict[bool, List[float]] = {False: [], True: []}
    for number in range(2 * options.rounds + 2):
        is_checked = number % 2 == 1
        training_state.change(tensors)
        limits.wait_for_idle_disk(options.folder)
        start = time.perf_counter()
        save = run.save(f"save_{number}", files=files, check=ckptd.Finite() if is_checked else None)
        stalls[is_checked].append(time.perf_counter() - start)
        save.wait("committed", timeout=120.0)
    return {"without": stalls[False][1:], "with": stalls[True][1:]}


def beside(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    """Saves of `--size` bytes that wait `--busy` seconds for room, one after another. Counts those that fail."""
    files = training_state.training_state(options.size)
    stalls, failed = [], 0
    for number in range(options.rounds):
        start = time.perf_counter()
        try:
            save = run.save(f"save_{number}", files=files, timeout=options.busy)
            stalls.append(time.perf_counter() - start)
            save.wait("committed", timeout=120.0)
        except ckptd.CkptdError as error:
            failed += 1
            machine.log(f"save_{number} failed: {error}")
    return {"stalls": stalls, "failed": failed}


def first(options: argparse.Namespace) -> Dict[str, Any]:
    """One save of `--size` bytes to a daemon that starts when this process has its state: prints a line then, and connects
    after a line of input.
    """
    files = training_state.training_state(options.size)
    tensors = tensors_of(files)
    copy = limits.MemoryCopy(tensors, options.threads, options.pages)
    loop, pages = limits.best_copy([copy() for _ in range(3)]).loop, copy.memory.describe()
    del copy
    plain = [limits.copy_into_fresh_pool(tensors, options.threads, options.pages, loop) for _ in range(3)]
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    run = ckptd.connect(options.endpoint).run(options.root, rank=0, world_size=1)
    joined = time.perf_counter()
    save = run.save("first", files=files)
    stall = time.perf_counter() - joined
    save.wait("committed", timeout=120.0)
    return {"plain": plain, "loop": loop, "pages": pages, "stall": stall, "join": joined - start}


def many(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    """10,000 tensors of 1 KiB, in turns with torch.save of the same into memory."""
    tensors = {f"parameter_{i}": torch.randn(256) for i in range(10_000)}
    stalls, saves = [], []
    for number in range(options.rounds + 1):
        start = time.perf_counter()
        torch.save(tensors, io.BytesIO())
        saves.append(time.perf_counter() - start)
        start = time.perf_counter()
        save = run.save(f"save_{number}", files={"many.pt": tensors})
        stalls.append(time.perf_counter() - start)
        save.wait("committed", timeout=120.0)
    return {"warm": stalls[1:], "torch": saves[1:]}


def tiny(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    """Saves of 100 bytes: little more than Begin and Seal."""
    stalls: List[float] = []
    for number in range(options.rounds + 10):
        start = time.perf_counter()
        save = run.save(f"save_{number}", files={"tiny": b"x" * 100})
        stalls.append(time.perf_counter() - start)
        save.wait("committed", timeout=120.0)
    return {"calls": stalls[10:]}


def fill(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    """Makes checkpoints, and measures nothing."""
    saves = [run.save(f"save_{number}", files={"tiny": b"x"}) for number in range(options.rounds)]
    for save in saves:
        save.wait("committed", timeout=120.0)
    return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["big", "checked", "beside", "first", "many", "tiny", "fill"])
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    big_only = parser.add_argument_group("for 'big', 'checked' and 'first'")
    big_only.add_argument("--size", type=int)
    big_only.add_argument("--threads", type=int, help="of the copy that the save is held against")
    big_only.add_argument("--folder", type=pathlib.Path, help="of fio's file")
    big_only.add_argument("--huge", type=pathlib.Path, help="a file system of huge pages, for fio's buffers")
    big_only.add_argument("--pages", choices=KINDS, help="of the daemon's pool")
    big_only.add_argument("--pid", type=int, help="of the daemon")
    parser.add_argument("--busy", type=float, help="for 'beside': the seconds that a save waits for room")
    options = parser.parse_args()
    if options.what == "first":
        print(json.dumps(first(options)))
        return
    kept = None if options.what == "fill" else 1
    run = ckptd.connect(options.endpoint).run(options.root, rank=0, world_size=1, num_kept_ckpts=kept)
    work = {"big": big, "checked": checked, "beside": beside, "many": many, "tiny": tiny, "fill": fill}[options.what]
    print(json.dumps(work(run, options)))


if __name__ == "__main__":
    main()
