"""Contenders that write one file after another while training waits."""

from __future__ import annotations

import abc
import pathlib
from typing import Any, List

from bench.contenders.contender import Contender, Done, Files, finished, fsync


class FileByFile(Contender):
    """Syncs its files after a save if `unsynced` is empty."""

    suffix = ""  # Replaces the suffix of the files' names.

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._names: List[str] = []

    @abc.abstractmethod
    def write(self, value: Any, path: pathlib.Path) -> None:
        """Writes one file."""

    def save(self, tag: str, files: Files) -> "Done[Any]":
        self._names = list(files)
        (self.folder / tag).mkdir(exist_ok=True)
        for path, value in zip(self.written(tag), files.values()):
            self.write(value, path)
        if not self.unsynced:
            fsync(self.written(tag))
        return finished()

    def written(self, tag: str) -> List[pathlib.Path]:
        paths = (self.folder / tag / name for name in self._names)
        return [path.with_suffix(self.suffix) if self.suffix else path for path in paths]
