"""torch.save: as it is usually called, and with the fsync that makes a checkpoint durable."""

from __future__ import annotations

import pathlib
from typing import Any

import torch

from bench.base.tensors import copy_into
from bench.contenders.contender import Files
from bench.contenders.file_by_file import FileByFile


class TorchSave(FileByFile):
    """One file after another. Loaded by torch.load with its defaults."""

    def write(self, value: Any, path: pathlib.Path) -> None:
        torch.save(value, path)

    def restore(self, tag: str, files: Files) -> None:
        for path, value in zip(self.written(tag), files.values()):
            copy_into(value, torch.load(path))


class TorchSaveSynced(TorchSave):
    """Synced after the save, and loaded by mmap, which saves a copy."""

    unsynced = ""

    def restore(self, tag: str, files: Files) -> None:
        for path, value in zip(self.written(tag), files.values()):
            copy_into(value, torch.load(path, mmap=True))
