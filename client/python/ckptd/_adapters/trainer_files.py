"""Checkpoints that the Trainer of transformers itself has written: whether a resume finds what it needs."""

import json
import os
import struct
import zipfile
from typing import List

from ckptd._paths import open_regular

_STATE = "trainer_state.json"  # The Trainer writes it last.
_WEIGHTS = (".safetensors", ".bin")
_OTHERS = ("optimizer.bin", "scheduler.bin", "training_args.bin")  # Files with these endings that hold no weights.
_ARCHIVES = (".bin", ".pt", ".pth")
_MAX_HEADER = 100 << 20  # Bytes of a safetensors file, as in the safetensors package.


def what_is_missing(path: str) -> str:
    """Returns what a checkpoint's folder lacks for a resume, in words; empty if nothing.

    It looks at the form of the files alone: whether they end early, as those of a Trainer that was killed do.
    """
    if not os.path.isdir(path):
        return "it is no directory"
    names = sorted(os.listdir(path))
    folders = [name for name in names if os.path.isdir(os.path.join(path, name))]
    if not folders and not any(name.endswith(_WEIGHTS) and name not in _OTHERS for name in names):
        return "it has no weights"
    torn = _torn(path, [name for name in names if name not in folders])
    if torn:
        return f"{', '.join(torn)} ends early"
    try:
        with open(os.path.join(path, _STATE), encoding="utf-8", opener=open_regular) as file:
            json.load(file)
    except FileNotFoundError:
        return f"it has no {_STATE}, which the Trainer writes last"
    except ValueError as error:
        return f"{_STATE} cannot be read: {error}"
    return ""


def _torn(path: str, names: List[str]) -> List[str]:
    """Returns the files that end early."""
    return [
        name
        for name in names
        if (name.endswith(".safetensors") and not _is_whole_safetensors(os.path.join(path, name)))
        or (name.endswith(_ARCHIVES) and not _is_whole_archive(os.path.join(path, name)))
    ]


def _is_whole_safetensors(path: str) -> bool:
    with open(path, "rb", opener=open_regular) as file:
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER:
                return False
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return os.stat(path).st_size >= 8 + int(length) + max(ends, default=0)
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError):
            return False


def _is_whole_archive(path: str) -> bool:
    """Returns whether a file of torch.save has its end. Its format of before 1.6 has no mark there."""
    with open(path, "rb", opener=open_regular) as file:
        begin = file.read(2)
        return zipfile.is_zipfile(file) if begin == b"PK" else bool(begin)
