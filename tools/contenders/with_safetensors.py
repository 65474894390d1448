"""safetensors: tensors by name, and nothing else of a state."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List

import torch
from safetensors.torch import load_file, save_file

from contenders.contender import Contender, Done, Files, finished, fsync
from contenders.tensors import named


class Safetensors(Contender):
    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._names: List[str] = []

    def save(self, tag: str, files: Files) -> "Done[Any]":
        self._names = list(files)
        (self.folder / tag).mkdir(exist_ok=True)
        for path, value in zip(self.written(tag), files.values()):
            save_file(_untied(value), path)
        return finished()

    def restore(self, tag: str, files: Files) -> None:
        for path, value in zip(self.written(tag), files.values()):
            loaded = load_file(path)
            for name, tensor in _untied(value).items():
                tensor.copy_(loaded[name])

    def written(self, tag: str) -> List[pathlib.Path]:
        return [(self.folder / tag / name).with_suffix(".safetensors") for name in self._names]


class SafetensorsSynced(Safetensors):
    unsynced = ""

    def save(self, tag: str, files: Files) -> "Done[Any]":
        done = super().save(tag, files)
        fsync(self.written(tag))
        return done


def _untied(value: Any) -> Dict[str, torch.Tensor]:
    """One of those that share their memory, which save_file refuses."""
    first = {(tensor.data_ptr(), tensor.shape): name for name, tensor in reversed(named(value).items())}
    return {name: tensor for name, tensor in named(value).items() if name in first.values()}
