"""The calls that every contender has."""

from __future__ import annotations

import abc
import concurrent.futures
import os
import pathlib
import shutil
from typing import Any, Dict, List, Sequence

Files = Dict[str, Any]  # File name, of one rank only -> what torch.save takes.
Done = concurrent.futures.Future  # Of the moment when the library says that all is done.


class Contender(abc.ABC):
    """How one rank saves and restores. All ranks call alike; a checkpoint is the folder `folder / tag`."""

    unsynced = "all of it"  # What a power cut may take when it has said done, in words.

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    @abc.abstractmethod
    def save(self, tag: str, files: Files) -> "Done[Any]":
        """Returns when training may go on."""

    @abc.abstractmethod
    def restore(self, tag: str, files: Files) -> None:
        """Brings the bytes back into the tensors of `files`."""

    def restore_cold(self, tag: str, files: Files) -> None:
        """The same, from the disk: the files are not in the page cache."""
        self.restore(tag, files)

    @abc.abstractmethod
    def written(self, tag: str) -> List[pathlib.Path]:
        """What this rank wrote."""

    def make_durable(self, tag: str) -> None:
        """Syncs what the contender has left unsynced."""
        if self.unsynced:
            fsync(self.written(tag))

    def remove(self, tag: str) -> None:
        """Called by one rank, with the last checkpoint that nobody wants any more."""
        shutil.rmtree(self.folder / tag)

    def close(self) -> None:
        """Ends what it has running."""
        return


def finished() -> "Done[Any]":
    done: "Done[Any]" = concurrent.futures.Future()
    done.set_result(None)
    return done


def fsync(files: Sequence[pathlib.Path]) -> None:
    """The files, the folder that they are in, and that folder's name."""
    for path in [*files, files[0].parent, files[0].parent.parent]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
