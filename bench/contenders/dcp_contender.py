"""torch.distributed.checkpoint (DCP): its synchronous save, and its asynchronous save by default and in its best settings."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save

from bench.contenders.contender import Contender, Done, Files, finished


class Dcp(Contender):
    """Syncs each file before Python has flushed its last bytes, and does not sync folders (torch 2.13)."""

    restores_on_other_ranks = True
    unsynced = "the files' last bytes, their names"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._rank = dist.get_rank()

    def save(self, tag: str, files: Files) -> "Done[Any]":
        save(self._state(files), checkpoint_id=self.folder / tag)
        return finished()

    def restore(self, tag: str, files: Files) -> None:
        load(self._state(files), checkpoint_id=self.folder / tag)

    def restore_all(self, tag: str, files: List[Files]) -> None:
        load(state_of_all(files), checkpoint_id=self.folder / tag, no_dist=True)

    def written(self, tag: str) -> List[pathlib.Path]:
        parts = list((self.folder / tag).glob(f"__{self._rank}_*"))
        return [*parts, self.folder / tag / ".metadata"] if self._rank == 0 else parts

    def _state(self, files: Files) -> Dict[str, Files]:
        """The state under a key of this rank: DCP would write keys that ranks have in common only once."""
        return {f"rank_{self._rank}": files}


def state_of_all(files: List[Files]) -> Dict[str, Files]:
    """The state of all ranks, as they have saved it."""
    return {f"rank_{rank}": of_rank for rank, of_rank in enumerate(files)}


class DcpAsync(Dcp):
    """As in DCP's documentation, but with a process group of its own: with the trainer's group it hangs as soon as
    training uses that at the same time.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._group = dist.new_group(backend="gloo")

    def save(self, tag: str, files: Files) -> "Done[Any]":
        return self._async_save(files, checkpoint_id=self.folder / tag)

    def _async_save(self, files: Files, **options: Any) -> "Done[Any]":
        return async_save(self._state(files), process_group=self._group, **options)  # type: ignore[return-value]


class DcpAsyncKept(DcpAsync):
    """With two writer threads, and a stager that keeps its shared buffers between saves."""

    kind = AsyncCheckpointerType.THREAD

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        # Its other options need an accelerator.
        options = StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=True,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
        self._stager = DefaultStager(options)

    def save(self, tag: str, files: Files) -> "Done[Any]":
        return self._async_save(
            files,
            storage_writer=FileSystemWriter(
                self.folder / tag, single_file_per_rank=True, sync_files=True, thread_count=2
            ),
            async_checkpointer_type=self.kind,
            async_stager=self._stager,
        )

    def close(self) -> None:
        self._stager.close()


class DcpAsyncKeptProcess(DcpAsyncKept):
    """Each rank writes in a process of its own."""

    kind = AsyncCheckpointerType.PROCESS
