"""Processes that are killed or end while they save, and disks that have no room."""

from __future__ import annotations

import os
import pathlib
import resource
import signal
import sys
import time
from typing import Any, Callable

import torch
from conformance.case import FAILURE, case, expect, expect_kept, expect_same, in_a_child, kill, refused

AREA = "Crashes and errors"
ELEMENTS = 4_000_000


class Steps:
    """Counts the calls of functions that this thread makes in its block. Calls `act` at one of them, for a point within a save
    that does not depend on how long the save takes."""

    def __init__(self, at: int = 0, act: Callable[[], object] = lambda: None) -> None:
        self.made = 0
        self._at = at  # 0: never.
        self._act = act

    def __enter__(self) -> Steps:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, *_: object) -> None:
        self.made += 1
        if self.made == self._at:
            self._act()


def until_loaded(reader: Any, path: pathlib.Path, value: float, seconds: float = 30) -> None:
    """What was sealed is committed by the daemon, a moment after the process is gone."""
    end = time.monotonic() + seconds
    while True:
        try:
            got = reader.load(path, {"w": torch.zeros(ELEMENTS)})
            return expect_same(got["w"], torch.full((ELEMENTS,), value))
        except FAILURE:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@case(AREA, "dcp", "Lightning-AI/pytorch-lightning#688", "Lightning-AI/pytorch-lightning#19970", crosswise=False)
def killed_while_it_saves_a_name_again(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A process that is killed while it saves over a checkpoint leaves the old one or the new one, whole."""
    for eighth in range(8):

        def work(ready: Callable[[], None]) -> None:
            library = type(writer)()
            library.save(folder / "runs/last", {"w": torch.full((ELEMENTS,), 1.0)})
            with Steps() as steps:
                library.save(folder / "runs/last", {"w": torch.full((ELEMENTS,), 1.0)})
            state = {"w": torch.full((ELEMENTS,), 2.0)}
            with Steps(at=steps.made * eighth // 8 + 1, act=ready):
                library.save(folder / "runs/last", state)

        kill(in_a_child(work))
        try:
            got = type(reader)().load(folder / "runs/last", {"w": torch.zeros(ELEMENTS)})["w"]
        except FAILURE as error:
            expect_kept(False, f"neither the old nor the new one can be loaded: {error}")
        values = set(torch.unique(got).tolist())
        expect(values in ({1.0}, {2.0}), f"it has the values {sorted(values)}")


@case(AREA, "dcp", crosswise=False)
def killed_right_after_an_async_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A process that is killed 100 ms after its async save has returned: the checkpoint is there."""

    def work(ready: Callable[[], None]) -> None:
        state = {"w": torch.full((ELEMENTS * 10,), 3.0)}
        saved = type(writer)().async_save(folder / "runs/step-1", state)
        time.sleep(0.1)  # As the sentence says.
        ready()
        signal.pause()
        saved.result()

    kill(in_a_child(work))
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if (folder / "runs/step-1/.metadata").exists():
            return
        time.sleep(0.05)
    expect_kept(False, "there is no checkpoint")


@case(AREA, "dcp", "pytorch/torchtitan#4270", crosswise=False)
def program_ends_after_an_async_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A program that ends by itself right after its last async save has saved it."""
    import subprocess

    install = "import ckptd.dcp; ckptd.dcp.install(timeout=60)" if writer.name == "ckptd" else ""
    code = f"""
import torch, torch.distributed.checkpoint as dcp
{install}
dcp.async_save({{"w": torch.full(({ELEMENTS},), 4.0)}}, checkpoint_id={str(folder / "runs/step-1")!r}, no_dist=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    expect(done.returncode == 0, done.stderr[-300:])
    expect_kept((folder / "runs/step-1/.metadata").exists(), "there is no checkpoint")
    until_loaded(reader, folder / "runs/step-1", 4.0, seconds=1)


@case(AREA, "dcp", "huggingface/transformers#35782", crosswise=False)
def killed_in_the_first_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """After a process was killed in its second save, the newest checkpoint is one that can be loaded."""
    for eighth in range(8):

        def work(ready: Callable[[], None]) -> None:
            library = type(writer)()
            library.save(folder / f"before-{eighth}/step-1", {"w": torch.full((ELEMENTS,), 1.0)})
            with Steps() as steps:
                library.save(folder / f"runs-{eighth}/step-1", {"w": torch.full((ELEMENTS,), 1.0)})
            state = {"w": torch.full((ELEMENTS,), 2.0)}
            with Steps(at=steps.made * eighth // 8 + 1, act=ready):
                library.save(folder / f"runs-{eighth}/step-2", state)

        kill(in_a_child(work))
        newest = reader.newest(folder / f"runs-{eighth}")
        expect_kept(newest is not None, "there is no newest one")
        try:
            type(reader)().load(newest, {"w": torch.zeros(ELEMENTS)})
        except FAILURE as error:
            expect_kept(False, f"the newest one cannot be loaded: {error}")


@case(AREA, "dcp", "mlfoundations/open_lm#154", "facebookresearch/metaseq#53", crosswise=False)
def file_size_limit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A save that cannot write its files raises, and the checkpoint before stays whole. (A limit on the size of files stands for a full
    disk; the daemon, which writes in the place of the process, has its own: tests/e2e/test_room.py.)"""
    writer.save(folder / "runs/last", {"w": torch.full((ELEMENTS,), 1.0)})
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    try:
        writer.save(folder / "runs/last", {"w": torch.full((ELEMENTS,), 2.0)})
    except FAILURE:
        value = 1.0
    else:
        value = 2.0
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        got = reader.load(folder / "runs/last", {"w": torch.zeros(ELEMENTS)})["w"]
    except FAILURE as error:
        expect_kept(False, f"the checkpoint before is gone: {error}")
    expect_same(got, torch.full((ELEMENTS,), value))


@case(AREA, "dcp", "NVIDIA/Megatron-LM#1435", crosswise=False)
def object_that_cannot_be_pickled(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An object that cannot be pickled fails the save, and the checkpoint before stays whole."""
    writer.save(folder / "runs/last", {"w": torch.full((ELEMENTS,), 1.0)})
    with refused():
        writer.save(folder / "runs/last", {"w": torch.full((ELEMENTS,), 2.0), "hook": lambda: None})
    try:
        got = reader.load(folder / "runs/last", {"w": torch.zeros(ELEMENTS)})["w"]
    except FAILURE as error:
        expect_kept(False, f"the checkpoint before is gone: {error}")
    expect_same(got, torch.full((ELEMENTS,), 1.0))


@case(AREA, "dcp", crosswise=False)
def forked_child_saves(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A child that was forked from a process which has saved can save, too."""
    writer.save(folder / "runs/step-1", {"w": torch.full((1000,), 1.0)})
    child = os.fork()
    if child == 0:
        try:
            writer.save(folder / "child/step-1", {"w": torch.full((1000,), 2.0)})
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    expect(os.waitstatus_to_exitcode(status) == 0, "the child could not save")
    expect_same(reader.load(folder / "child/step-1", {"w": torch.zeros(1000)})["w"], torch.full((1000,), 2.0))
    writer.save(folder / "runs/step-2", {"w": torch.full((1000,), 3.0)})


@case(AREA, "dcp", "zylo117/Yet-Another-EfficientDet-Pytorch#101", crosswise=False)
def interrupted_save_is_repeated(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Ctrl-C in the middle of a save: the same name can be saved again at once, and is whole."""
    import _thread
    import threading

    for attempt in range(5):
        timer = threading.Timer(0.003 * attempt + 0.001, _thread.interrupt_main)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            timer.start()
            writer.save(folder / "runs/last", {"w": torch.full((ELEMENTS,), 1.0)})
            time.sleep(0.05)
        except (KeyboardInterrupt, *FAILURE):  # DCP makes its own error of what comes in its middle.
            pass
        timer.join()
        writer.save(folder / "runs/last", {"w": torch.full((ELEMENTS,), 2.0)})
        expect_same(reader.load(folder / "runs/last", {"w": torch.zeros(ELEMENTS)})["w"], torch.full((ELEMENTS,), 2.0))


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 16

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.full((4,), float(row))


@case(AREA, "dcp", "NVIDIA/nvidia-resiliency-ext#107", crosswise=False)
def workers_of_a_data_loader_are_forked_beside_a_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A data loader forks its workers while saves are in flight; both come to their end."""
    saves = []
    for i in range(3):
        saves.append(writer.async_save(folder / f"runs/step-{i}", {"w": torch.full((ELEMENTS,), float(i))}))
        batches = list(torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2))
        expect(len(batches) == 4, f"there are {len(batches)} batches")
    for each in saves:
        each.result(60)
    expect_same(reader.load(folder / "runs/step-2", {"w": torch.zeros(ELEMENTS)})["w"], torch.full((ELEMENTS,), 2.0))


@case(AREA, "dcp", "pytorch/pytorch#12042", crosswise=False)
def two_processes_save_one_name(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Two processes that save to one name at once, by mistake: what is there in the end is whole, and of one of them."""
    children = []
    for value in (1.0, 2.0):
        child = os.fork()
        if child == 0:
            try:
                type(writer)().save(folder / "runs/last", {"w": torch.full((ELEMENTS,), value)})
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    try:
        got = reader.load(folder / "runs/last", {"w": torch.zeros(ELEMENTS)})["w"]
    except FAILURE as error:
        expect_kept(False, f"there is no whole one: {error}")
    values = set(torch.unique(got).tolist())
    expect(values in ({1.0}, {2.0}), f"it has the values {sorted(values)}")
