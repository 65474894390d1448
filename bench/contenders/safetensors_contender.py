"""safetensors: saves a state's tensors by name, and nothing else of it."""

from __future__ import annotations

import pathlib
from typing import Any, Dict

import torch
from safetensors.torch import load_file, save_file

from bench.base.tensors import named_tensors
from bench.contenders.contender import Files
from bench.contenders.file_by_file import FileByFile


class Safetensors(FileByFile):
    suffix = ".safetensors"

    def write(self, value: Any, path: pathlib.Path) -> None:
        save_file(_untied(value), path)

    def restore(self, tag: str, files: Files) -> None:
        for path, value in zip(self.written(tag), files.values()):
            loaded = load_file(path)
            for name, tensor in _untied(value).items():
                tensor.copy_(loaded[name])


class SafetensorsSynced(Safetensors):
    unsynced = ""


def _untied(value: Any) -> Dict[str, torch.Tensor]:
    """The tensors by name, one of each group that shares memory: save_file refuses more than one."""
    first = {
        (tensor.data_ptr(), tensor.shape): name for name, tensor in reversed(named_tensors(value).items())
    }
    return {name: tensor for name, tensor in named_tensors(value).items() if name in first.values()}
