"""torch.distributed.checkpoint (DCP) through ckptd: its synchronous and its asynchronous save."""

from __future__ import annotations

import pathlib
from typing import Any, List

import ckptd.dcp
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from bench.contenders.contender import Done, Files, finished
from bench.contenders.dcp_contender import Dcp, state_of_all


class CkptdDcp(Dcp):
    unsynced = ""

    def __init__(self, folder: pathlib.Path, endpoint: str) -> None:
        super().__init__(folder)
        ckptd.dcp.configure(endpoint)

    def save(self, tag: str, files: Files) -> "Done[Any]":
        save(self._state(files), storage_writer=self._writer(tag))
        return finished()

    def restore(self, tag: str, files: Files) -> None:
        """Checks every byte against its CRC32C."""
        load(self._state(files), storage_reader=ckptd.dcp.Reader(self.folder / tag))

    def restore_cold(self, tag: str, files: Files) -> None:
        """Restores without the daemon, which still has the checkpoint in memory."""
        load(self._state(files), storage_reader=ckptd.dcp.Reader(self.folder / tag, daemon=False))

    def restore_all(self, tag: str, files: List[Files]) -> None:
        load(state_of_all(files), storage_reader=ckptd.dcp.Reader(self.folder / tag), no_dist=True)

    def remove(self, tag: str) -> None:
        """No-op: the daemon's retention removes checkpoints, during the steps."""

    def _writer(self, tag: str) -> ckptd.dcp.Writer:
        return ckptd.dcp.Writer(self.folder / tag, num_kept_ckpts=1)


class CkptdDcpAsync(CkptdDcp):
    def save(self, tag: str, files: Files) -> "Done[Any]":
        saved: "Done[Any]" = ckptd.dcp.async_save(self._state(files), storage_writer=self._writer(tag))
        return saved
