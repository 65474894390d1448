"""All contenders, by their names in the tables: libraries, and ways to use PyTorch Distributed Checkpoint (DCP)."""

from __future__ import annotations

import importlib
import pathlib

from bench.contenders.contender import Contender

CKPTD = "ckptd"
TORCH_SAVE_SYNCED = "torch.save + fsync"
TORCH_SAVE = "torch.save"
SAFETENSORS_SYNCED = "safetensors + fsync"
SAFETENSORS = "safetensors"
DCP = "dcp.save"
DCP_ASYNC = "dcp.async_save"
DCP_THREAD = "dcp.async_save, kept stager, threads"
DCP_PROCESS = "dcp.async_save, kept stager, process"
CKPTD_DCP = "dcp.save, ckptd"
CKPTD_DCP_ASYNC = "dcp.async_save, ckptd"

# (module, class). Imported lazily: a caller needs only the packages of the contenders that it makes.
_CLASSES = {
    CKPTD: ("ckptd_contender", "Ckptd"),
    TORCH_SAVE_SYNCED: ("torch_contender", "TorchSaveSynced"),
    TORCH_SAVE: ("torch_contender", "TorchSave"),
    SAFETENSORS_SYNCED: ("safetensors_contender", "SafetensorsSynced"),
    SAFETENSORS: ("safetensors_contender", "Safetensors"),
    DCP: ("dcp_contender", "Dcp"),
    DCP_ASYNC: ("dcp_contender", "DcpAsync"),
    DCP_THREAD: ("dcp_contender", "DcpAsyncKept"),
    DCP_PROCESS: ("dcp_contender", "DcpAsyncKeptProcess"),
    CKPTD_DCP: ("ckptd_dcp_contender", "CkptdDcp"),
    CKPTD_DCP_ASYNC: ("ckptd_dcp_contender", "CkptdDcpAsync"),
}
USES_DAEMON = (CKPTD, CKPTD_DCP, CKPTD_DCP_ASYNC)
DCP_NAMES = (DCP, DCP_ASYNC, DCP_THREAD, DCP_PROCESS, CKPTD_DCP, CKPTD_DCP_ASYNC)
NAMES = tuple(name for name in _CLASSES if name not in (CKPTD_DCP, CKPTD_DCP_ASYNC))


def make(name: str, folder: pathlib.Path, endpoint: str) -> Contender:
    """endpoint: of ckptd's daemon, for those of USES_DAEMON. All ranks make the same contenders in the same order: some make process groups."""
    module, kind = _CLASSES[name]
    arguments = [endpoint] if name in USES_DAEMON else []
    made: Contender = getattr(importlib.import_module(f"bench.contenders.{module}"), kind)(folder, *arguments)
    return made
