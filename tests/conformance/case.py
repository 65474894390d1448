"""What a case of the conformance suite is, and how it says what it has found.

A case is a function of two libraries and an empty folder: one library saves there, the other one loads. They are the same
but for the crosswise runs. It returns if all is right. If not, it raises `Wrong` or `Lost`, or lets the library's exception
through.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch.distributed.checkpoint.api import CheckpointException

# What a library may raise. DCP's is no Exception.
FAILURE = (Exception, CheckpointException)
RIGHT, ERROR, WRONG, LOST, HANG = "right", "error", "wrong", "lost", "hang"


class Wrong(AssertionError):
    """A value came back that is not the one that was saved, without an error."""


class Lost(AssertionError):
    """A checkpoint that was said to be saved is not there, or not whole."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of docs/conformance.md."""

    name: str
    area: str  # A heading of the page.
    framework: str  # Whose pair of libraries it takes: a key of libraries.PAIRS.
    sentence: str  # What must hold.
    reports: Tuple[str, ...]  # "owner/repository#number"; empty: a habit of users.
    run: Callable[[Any, Any, pathlib.Path], None]
    crosswise: bool  # Also: saved by the one, loaded by the other.
    reason: str  # Why ckptd refuses what the sentence asks; empty: it is right.
    crosswise_reason: str  # Why the stock library refuses what ckptd has saved; empty: it does not.


CASES: Dict[str, Case] = {}


def case(
    area: str, framework: str, *reports: str, crosswise: bool = True, reason: str = "", crosswise_reason: str = ""
) -> Callable[[Callable[[Any, Any, pathlib.Path], None]], Callable[[Any, Any, pathlib.Path], None]]:
    """Registers a function as a case. Its docstring is the sentence."""

    def register(function: Callable[[Any, Any, pathlib.Path], None]) -> Callable[[Any, Any, pathlib.Path], None]:
        name = function.__name__
        assert name not in CASES, f"two cases are called {name}"
        assert function.__doc__, f"the case {name} does not say what must hold"
        sentence = " ".join(function.__doc__.split())
        CASES[name] = Case(name, area, framework, sentence, reports, function, crosswise, reason, crosswise_reason or reason)
        return function

    return register


# ---- what a case uses


def in_a_child(work: Callable[[Callable[[], None]], None]) -> int:
    """Runs `work` in a forked process, which waits to be killed afterwards. Returns its id when it has called what `work` is
    given, or when `work` has returned."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        told = False

        def ready() -> None:
            nonlocal told
            if not told:
                os.write(write, b"1")
            told = True

        try:
            work(ready)
            ready()
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    heard = os.read(read, 1)
    os.close(read)
    if not heard:
        os.waitpid(child, 0)
        raise AssertionError("the process has ended before it was killed")
    return child


def kill(child: int) -> None:
    """Kills a process of in_a_child, which must not have ended by itself."""
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise AssertionError(f"the process has ended by itself, with status {status}")


def on_ranks(count: int, work: Callable[[int], None]) -> None:
    """Calls work(rank) in as many forked processes at once, and waits for them. Raises what the first of them has raised."""
    pipes, children = [], []
    for rank in range(count):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            message = ""
            try:
                work(rank)
            except BaseException as error:
                message = f"{type(error).__name__}: {error}"
            os.write(write, message.encode(errors="replace")[:2000])
            os._exit(0)  # Without the handlers of the process that it was forked from.
        os.close(write)
        pipes.append(read)
        children.append(child)
    messages = []
    for rank, (read, child) in enumerate(zip(pipes, children)):
        with open(read, errors="replace") as file:
            messages.append(file.read())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            messages.append(f"rank {rank} ended with status {status}")
    for message in messages:
        if message:
            raise RuntimeError(message)


def killed_within(prepare: Callable[[], Callable[[], None]], eighth: int) -> None:
    """Forks a process that calls what `prepare` returns twice, and kills itself in the second call: when that has made so many eighths
    of the calls of functions that the first one made. So the point does not depend on how long the work takes.
    """
    child = os.fork()
    if child == 0:
        try:
            work = prepare()
            made = [0]

            def count(*_: object) -> None:
                made[0] += 1

            sys.setprofile(count)
            work()
            sys.setprofile(None)
            left = [made[0] * eighth // 8 + 1]

            def count_down(*_: object) -> None:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.setprofile(count_down)
            work()
            os.kill(os.getpid(), signal.SIGKILL)  # The second call has made fewer calls than the first one.
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise AssertionError(f"the process has ended by itself, with status {os.waitstatus_to_exitcode(status)}")


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- what a case checks


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """The library must raise, and not say that all is well."""
    try:
        yield
    except (Wrong, Lost):
        raise
    except FAILURE:
        return
    raise Wrong("it was accepted without an error")


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


def expect_kept(condition: bool, what: str) -> None:
    if not condition:
        raise Lost(what)


def expect_same(got: Any, want: Any, where: str = "state") -> None:
    """Compares types, dtypes, shapes, values bit by bit, and keys with their order."""
    difference = _difference(got, want, where)
    if difference is not None:
        raise Wrong(difference)


def _difference(got: Any, want: Any, where: str) -> Optional[str]:
    if type(got) is not type(want):
        return f"{where} is a {type(got).__name__}, and a {type(want).__name__} was saved"
    if isinstance(want, torch.Tensor):
        return _tensor_difference(got, want, where)
    if isinstance(want, dict):
        if list(got) != list(want):
            return f"{where} has the keys {list(got)[:5]}, and {list(want)[:5]} were saved"
        return _first(_difference(got[key], want[key], f"{where}[{key!r}]") for key in want)
    if isinstance(want, (list, tuple)):
        if len(got) != len(want):
            return f"{where} has {len(got)} elements, and {len(want)} were saved"
        return _first(_difference(one, other, f"{where}[{i}]") for i, (one, other) in enumerate(zip(got, want)))
    if isinstance(want, float) and math.isnan(want):
        return None if math.isnan(got) else f"{where} is {got}, and NaN was saved"
    if hasattr(want, "dtype") and hasattr(want, "tobytes"):  # NumPy.
        same = got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()
        return None if same else f"{where} is {got!r}, and {want!r} was saved"
    return None if got == want else f"{where} is {got!r}, and {want!r} was saved"


def _first(differences: Iterator[Optional[str]]) -> Optional[str]:
    return next((difference for difference in differences if difference is not None), None)


def _tensor_difference(got: torch.Tensor, want: torch.Tensor, where: str) -> Optional[str]:
    for what in ("dtype", "shape", "layout", "requires_grad"):
        one, other = getattr(got, what), getattr(want, what)
        if one != other:
            return f"{where} has the {what} {one}, and {other} was saved"
    if want.layout != torch.strided:
        return _tensor_difference(got.to_dense(), want.to_dense(), where)
    if want.is_quantized:
        if (got.q_scale(), got.q_zero_point()) != (want.q_scale(), want.q_zero_point()):
            return f"{where} is quantized in another way"
        got, want = got.int_repr(), want.int_repr()
    if bits_of(got) != bits_of(want):
        return f"{where} has other values"
    return None


def bits_of(tensor: torch.Tensor) -> bytes:
    """Returns the elements in order, as bytes."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.numel() == 0:
        return b""
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def share_memory(tensors: List[torch.Tensor]) -> bool:
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1


def flip_a_byte(folder: pathlib.Path, contains: bytes) -> None:
    """Changes one byte of these in a file below the folder, as a disk or a network would."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        data = path.read_bytes()
        at = data.find(contains)
        if at >= 0:
            with open(path, "r+b") as file:
                file.seek(at + len(contains) // 2)
                file.write(bytes([data[at + len(contains) // 2] ^ 0x10]))
            return
    raise AssertionError("no file has these bytes")


def files_of(path: pathlib.Path) -> List[pathlib.Path]:
    """Returns the files of a checkpoint that is a file or a folder."""
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


def names_when(folder: pathlib.Path, condition: Callable[[List[str]], bool], seconds: float = 20) -> List[str]:
    """Returns the names in a folder, once the condition holds for them, or when the time is over: ckptd removes checkpoints
    some time after the save that makes them superfluous."""
    end = time.monotonic() + seconds
    while True:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
        if condition(names) or time.monotonic() > end:
            return names
        time.sleep(0.05)


def bytes_of(path: pathlib.Path) -> int:
    return sum(each.stat().st_size for each in files_of(path))
