"""The interface of all contenders."""

from __future__ import annotations

import abc
import concurrent.futures
import os
import pathlib
import shutil
from typing import Any, Dict, List, Sequence

Files = Dict[str, Any]  # Name of a file, which belongs to one rank -> a value that torch.save takes.
Done = concurrent.futures.Future  # Done when the library reports the end of a save.


class Contender(abc.ABC):
    """How one rank saves and restores. All ranks make the same calls; a checkpoint is the folder `folder / tag`."""

    restores_on_other_ranks = False  # Whether another number of ranks can restore a checkpoint.
    unsynced = "all of it"  # What a power cut may destroy after the reported end, in words.

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    @abc.abstractmethod
    def save(self, tag: str, files: Files) -> "Done[Any]":
        """Returns when training may continue."""

    @abc.abstractmethod
    def restore(self, tag: str, files: Files) -> None:
        """Restores the bytes into the tensors of `files`."""

    def restore_cold(self, tag: str, files: Files) -> None:
        """Restores from the disk. The caller has dropped the files from the page cache."""
        self.restore(tag, files)

    def restore_all(self, tag: str, files: List[Files]) -> None:
        """Restores what all ranks have saved, by rank, on this rank alone. Only where `restores_on_other_ranks`."""
        raise NotImplementedError

    @abc.abstractmethod
    def written(self, tag: str) -> List[pathlib.Path]:
        """The files that this rank wrote."""

    def make_durable(self, tag: str) -> None:
        """Syncs what the contender leaves unsynced."""
        if self.unsynced:
            fsync(self.written(tag))

    def remove(self, tag: str) -> None:
        """Removes a checkpoint. Only one rank calls this."""
        shutil.rmtree(self.folder / tag)

    def close(self) -> None:
        """Ends threads and processes that the contender has started."""
        return


def finished() -> "Done[Any]":
    done: "Done[Any]" = concurrent.futures.Future()
    done.set_result(None)
    return done


def fsync(files: Sequence[pathlib.Path]) -> None:
    """Syncs files, their folder, and the folder's entry in its parent."""
    for path in [*files, files[0].parent, files[0].parent.parent]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
