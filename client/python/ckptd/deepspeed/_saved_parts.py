"""Reads parts of the files of a checkpoint: first what they hold, without the tensors' bytes, and then ranges of those."""

import copy
import ctypes
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from ckptd import errors
from ckptd._paths import open_regular
from ckptd._torch.reading.load_into import offset_of
from ckptd.deepspeed import _classes
from ckptd.restore import Checkpoint

_Range = Tuple[str, int, int]  # A file, an offset and a number of bytes in it.


class Files:
    """The files of a checkpoint: verified if ckptd has committed it, else those of a directory."""

    def __init__(self, folder: str, checkpoint: Optional[Checkpoint]) -> None:
        self._folder = folder
        self._checkpoint = checkpoint
        self.names: Sequence[str] = checkpoint.files if checkpoint is not None else _names_in(folder)

    def load(self, name: str, device: str = "cpu") -> Any:
        """Loads a file. On the device "meta" its tensors have no bytes."""
        if self._checkpoint is not None:
            return _classes.load(self._checkpoint, name, device)
        return _classes.load_file(os.path.join(self._folder, name), device)

    def read(self, ranges: List[_Range], into: List[memoryview]) -> None:
        """Fills into[i] with the bytes of ranges[i]."""
        if self._checkpoint is not None:
            self._checkpoint.read_ranges(ranges, into)
            return
        for (name, offset, _), buffer in zip(ranges, into):
            read_fully(os.path.join(self._folder, name), offset, buffer)


def _names_in(folder: str) -> List[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def read_fully(path: str, offset: int, into: memoryview) -> None:
    """Fills a buffer with the bytes at an offset of a file. Corrupt if the file ends before."""
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        while into:
            count = os.preadv(file.fileno(), [into], offset)
            if count == 0:
                raise errors.Corrupt(f"{path} ends at byte {offset}, too early", reason="SHORT_FILE", path=path)
            into, offset = into[count:], offset + count


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Returns the memory of a contiguous tensor on the CPU, which must outlive the result."""
    if tensor.numel() == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


class Reading:
    """Tensors that are made of parts of saved ones. Nothing is read before run()."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._ranges: List[_Range] = []
        self._into: List[memoryview] = []
        self._kept: List[torch.Tensor] = []
        self._done: Dict[int, Any] = {}  # By id(), so that an object that occurs twice stays one.

    def add(self, name: str, saved: torch.Tensor, first: int, count: int, target: torch.Tensor, at: int) -> None:
        """Has run() copy `count` elements of a saved tensor of one dimension, without bytes, into `target` from `at` on."""
        begin = offset_of(saved)
        if begin is None or saved.dim() != 1 or not saved.is_contiguous() or saved.dtype != target.dtype:
            raise refused(f"{name} has a tensor that is not flat, of {saved.dtype} in the place of {target.dtype}, or compressed")
        size = saved.element_size()
        self._ranges.append((name, begin + first * size, count * size))
        self._into.append(bytes_of(target)[at * size : (at + count) * size])
        self._kept.append(target)

    def whole(self, name: str, value: Any) -> Any:
        """Returns a value of a file with tensors that run() fills in the place of those without bytes."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._done:
                self._done[id(value)] = (self._tensor(name, value), value)
            return self._done[id(value)][0]
        if isinstance(value, dict):
            made = copy.copy(value)
            made.update((key, self.whole(name, each)) for key, each in value.items())
            return made
        if type(value) in (list, tuple):
            return type(value)(self.whole(name, each) for each in value)
        if any(isinstance(each, torch.Tensor) for each in getattr(value, "__dict__", {}).values()):
            raise refused(f"{name} has a tensor inside of a {type(value).__name__}")
        return value

    def _tensor(self, name: str, saved: torch.Tensor) -> torch.Tensor:
        made = torch.empty(saved.shape, dtype=saved.dtype)
        if made.numel():
            begin = offset_of(saved)
            if begin is None or not saved.is_contiguous():
                raise refused(f"{name} has a tensor that is not contiguous, or compressed")
            self._ranges.append((name, begin, made.nbytes))
            self._into.append(bytes_of(made))
        return made

    def run(self) -> None:
        """Reads everything, each chunk once."""
        self._files.read(self._ranges, self._into)


def refused(why: str, instead: str = "convert it (ckptctl convert ds-to-universal)") -> errors.Refused:
    """Returns the error for a checkpoint that cannot be loaded with this number of ranks.

    instead: what else the user can do.
    """
    return errors.Refused(
        f"the checkpoint was saved by another number of ranks, and cannot be loaded by this one: {why}; load it with the model and "
        f"the settings that it was saved with, or {instead}",
        reason="STATE_MISMATCH",
    )
