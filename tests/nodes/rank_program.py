"""What a rank of these tests does, in the process of that rank: a part is one file, and a file's bytes tell its step
and its rank.
"""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Tuple

import ckptd


def content(step: int, rank: int) -> bytes:
    return bytes([step, rank]) * 50_000


class Rank:
    """One rank of a launch."""

    def __init__(self, root: str, rank: int, world_size: int, keep: Optional[int] = None) -> None:
        self.rank = rank
        self.client = ckptd.connect()
        self.run = self.client.run(
            root, rank=rank, world_size=world_size, num_kept_ckpts=keep, commit_timeout=120
        )
        self.part: Optional[ckptd.Part] = None

    def save(self, tag: str, step: int, timeout: float = 30, busy: str = "wait") -> List[object]:
        """A whole save, until it ends; returns what `outcome` does."""
        return self._timed(
            lambda: self.run.save(tag, step=step, files=self._files(step), timeout=timeout, busy=busy)
        )

    def begin(
        self, tag: str, step: int, ranks: Optional[List[int]] = None, pointers: Optional[Dict[str, str]] = None
    ) -> None:
        """Begins a save, of these ranks or all, and stages this rank's file."""
        self.part = self.run.begin(tag, step=step, files=self._files(step), ranks=ranks, pointers=pointers)

    def seal(self) -> None:
        assert self.part is not None
        self.part.seal()

    def outcome(self) -> List[object]:
        """Seals this rank's part, if it is not sealed, and waits for the save's end. Returns the level or the reason
        that this rank hears, how many seconds that took, and the error's text and ranks.
        """
        assert self.part is not None
        return self._timed(self.part.seal)

    def resume(self) -> "Optional[Tuple[str, int, List[str]]]":
        """Returns the tag, the step and the files of what this rank resumes from, after it has compared all files."""
        with self.run.resume() as checkpoint:
            if not checkpoint:
                return None
            names = sorted(checkpoint.files)
            for name in names:
                assert bytes(checkpoint.read(name)) == content(checkpoint.step, int(name[4:-4])), name
            return checkpoint.tag, checkpoint.step, names

    def restore(self) -> "Tuple[str, int]":
        """Returns the tag and the step of what this rank goes on from, of which it has read its own file alone."""

        def load(checkpoint: ckptd.Checkpoint) -> "Tuple[str, int]":
            assert bytes(checkpoint.read(f"rank{self.rank}.raw")) == content(checkpoint.step, self.rank)
            return checkpoint.tag, checkpoint.step

        return self.run.restore(load)

    def _files(self, step: int) -> "dict[str, bytes]":
        return {f"rank{self.rank}.raw": content(step, self.rank)}

    def _timed(self, get_save) -> List[object]:
        began = time.monotonic()
        try:
            save = get_save()
            save.wait("committed", 120)
            found = (save.level, "", [])
        except ckptd.CkptdError as error:
            found = (error.reason, str(error), list(error.ranks))
        word, message, ranks = found
        return [word, time.monotonic() - began, message, ranks]
