"""All contenders, by the names that tables have for them."""

from __future__ import annotations

import importlib
import pathlib

from contenders.contender import Contender

CKPTD = "ckptd"
TORCH_SAVE_SYNCED = "torch.save + fsync"
TORCH_SAVE = "torch.save"
SAFETENSORS_SYNCED = "safetensors + fsync"
SAFETENSORS = "safetensors"
DCP = "dcp.save"
DCP_ASYNC = "dcp.async_save"
DCP_THREAD = "dcp.async_save, kept stager, threads"
DCP_PROCESS = "dcp.async_save, kept stager, process"

# Imported when one is made: nobody needs the packages of those that he does not compare.
_CLASSES = {
    CKPTD: ("with_ckptd", "Ckptd"),
    TORCH_SAVE_SYNCED: ("with_torch", "TorchSaveSynced"),
    TORCH_SAVE: ("with_torch", "TorchSave"),
    SAFETENSORS_SYNCED: ("with_safetensors", "SafetensorsSynced"),
    SAFETENSORS: ("with_safetensors", "Safetensors"),
    DCP: ("with_dcp", "Dcp"),
    DCP_ASYNC: ("with_dcp", "DcpAsync"),
    DCP_THREAD: ("with_dcp", "DcpAsyncKept"),
    DCP_PROCESS: ("with_dcp", "DcpAsyncKeptProcess"),
}
NAMES = tuple(_CLASSES)


def make(name: str, folder: pathlib.Path, endpoint: str) -> Contender:
    """endpoint: of ckptd's daemon, for it alone. In every rank of a job alike: some make process groups."""
    module, kind = _CLASSES[name]
    arguments = [endpoint] if name == CKPTD else []
    made: Contender = getattr(importlib.import_module(f"contenders.{module}"), kind)(folder, *arguments)
    return made
