"""What a rank of these tests does, in the process of that rank: a part is one file, and a file's bytes tell its step
and its rank.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Tuple

import ckptd


def content(step: int, rank: int) -> bytes:
    return bytes([step, rank]) * 50_000


class Rank:
    """One rank of a launch."""

    def __init__(
        self, root: str, rank: int, world_size: int, keep: Optional[int] = None, upload: Optional[Dict[str, Any]] = None
    ) -> None:
        self.rank = rank
        self.client = ckptd.connect()
        self.run = self.client.run(
            root,
            rank=rank,
            world_size=world_size,
            num_kept_ckpts=keep,
            commit_timeout=120,
            upload=ckptd.Upload(**{"restore": False, **upload}) if upload else None,
        )
        self.saved: Optional[ckptd.Save] = None
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

    def uploaded(self, timeout: float = 60) -> str:
        """How the upload of this rank's last save ends: "uploaded", or the reason of the error."""
        assert self.saved is not None
        try:
            self.saved.wait("uploaded", timeout)
        except ckptd.CkptdError as error:
            return str(error.reason)
        return "uploaded"

    def resume(self, timeout: float = 60) -> "Optional[Tuple[str, int, List[str]]]":
        """Returns the tag, the step and the files of what this rank resumes from, after it has compared all files."""
        with self.run.resume(timeout=timeout) as checkpoint:
            if not checkpoint:
                return None
            names = sorted(checkpoint.files)
            for name in names:
                assert bytes(checkpoint.read(name)) == content(checkpoint.step, int(name[4:-4])), name
            return checkpoint.tag, checkpoint.step, names

    def cannot_resume(self) -> "Tuple[str, str]":
        """The reason and the text of the error of a resume."""
        try:
            with self.run.resume() as checkpoint:
                return "", str(checkpoint)
        except ckptd.CkptdError as error:
            return str(error.reason), str(error)

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
            save = self.saved = get_save()
            save.wait("committed", 120)
            found = (save.level, "", [])
        except ckptd.CkptdError as error:
            found = (error.reason, str(error), list(error.ranks))
        word, message, ranks = found
        return [word, time.monotonic() - began, message, ranks]
