"""torch.save: as most call it, and with the fsync that makes it count."""

from __future__ import annotations

import pathlib
from typing import Any

import torch

from contenders.contender import Files
from contenders.file_by_file import FileByFile
from contenders.tensors import fill


class TorchSave(FileByFile):
    """A file each; training stands still meanwhile. Loaded as torch.load does when nothing else is said."""

    def write(self, value: Any, path: pathlib.Path) -> None:
        torch.save(value, path)

    def restore(self, tag: str, files: Files) -> None:
        for path, value in zip(self.written(tag), files.values()):
            fill(value, torch.load(path))


class TorchSaveSynced(TorchSave):
    """The same, synced, and loaded by mmap, which spares a copy."""

    unsynced = ""

    def restore(self, tag: str, files: Files) -> None:
        for path, value in zip(self.written(tag), files.values()):
            fill(value, torch.load(path, mmap=True))
