"""ckptd: copies into the daemon's memory; a save ends when it is committed."""

from __future__ import annotations

import pathlib
from typing import Any, List

import ckptd

from bench.contenders.contender import Contender, Done, Files


class Ckptd(Contender):
    unsynced = ""

    def __init__(self, folder: pathlib.Path, endpoint: str) -> None:
        super().__init__(folder)
        self._run = ckptd.connect(endpoint).run(folder, num_kept_ckpts=1)
        self._names: List[str] = []

    def save(self, tag: str, files: Files) -> "Done[Any]":
        self._names = list(files)
        return self._run.save(tag, files=files).future("committed")

    def restore(self, tag: str, files: Files) -> None:
        """Checks every byte against its CRC32C."""
        with self._run.open(tag) as checkpoint:
            for name, value in files.items():
                checkpoint.load(name, into=value)

    def restore_cold(self, tag: str, files: Files) -> None:
        """Restores without the daemon, which still has the checkpoint in memory."""
        with ckptd.open_root(self.folder).open(tag) as checkpoint:
            for name, value in files.items():
                checkpoint.load(name, into=value)

    def written(self, tag: str) -> List[pathlib.Path]:
        return [self.folder / tag / name for name in self._names]

    def remove(self, tag: str) -> None:
        """No-op: the daemon's retention removes checkpoints, during the steps."""
