"""torch.save: as most call it, and with the fsync that makes it count."""

from __future__ import annotations

import pathlib
from typing import Any, List

import torch

from contenders.contender import Contender, Done, Files, finished, fsync
from contenders.tensors import fill


class TorchSave(Contender):
    """A file each; training stands still meanwhile. Loaded as torch.load does when nothing else is said."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._names: List[str] = []

    def save(self, tag: str, files: Files) -> "Done[Any]":
        self._names = list(files)
        (self.folder / tag).mkdir(exist_ok=True)
        for path, value in zip(self.written(tag), files.values()):
            torch.save(value, path)
        return finished()

    def restore(self, tag: str, files: Files) -> None:
        for path, value in zip(self.written(tag), files.values()):
            fill(value, torch.load(path))

    def written(self, tag: str) -> List[pathlib.Path]:
        return [self.folder / tag / name for name in self._names]


class TorchSaveSynced(TorchSave):
    """The same, synced, and loaded by mmap, which spares a copy."""

    unsynced = ""

    def save(self, tag: str, files: Files) -> "Done[Any]":
        done = super().save(tag, files)
        fsync(self.written(tag))
        return done

    def restore(self, tag: str, files: Files) -> None:
        for path, value in zip(self.written(tag), files.values()):
            fill(value, torch.load(path, mmap=True))
