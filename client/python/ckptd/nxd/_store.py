"""The warning about ranks that a save waits for, by the process group's store."""

import contextlib
import logging
import threading
from typing import Any, List

from ckptd._adapters import store
from ckptd._adapters.store import WARN_SECONDS

_log = logging.getLogger("ckptd")
_SAVING = "nxd/saving"  # One key for each rank: a job saves often.


class LateRanks:
    """A context manager for the wait for a save: after WARN_SECONDS the log names the ranks that have not begun
    it, or that save something else. Needs a process group.
    """

    def __init__(self, number: int, what: str) -> None:
        """
        Args:
            number: how many saves this rank has begun.
            what: which checkpoint it saves.
        """
        self._number = number
        self._what = what
        self._timer = threading.Timer(WARN_SECONDS, self._warn)
        self._timer.daemon = True

    def __enter__(self) -> None:
        with contextlib.suppress(RuntimeError):  # The store has gone. The save does not need it.
            store.post(_SAVING, f"{self._number} {self._what}")
            self._timer.start()

    def __exit__(self, *_: Any) -> None:
        self._timer.cancel()

    def _warn(self) -> None:
        late, others = self._others()
        if late:
            others.insert(0, f"ranks {store.words_of(late)} have not begun a save")
        if others:
            _log.warning(
                "ckptd: this rank has waited %g s for the other ranks to save %s: %s; every rank must call save_checkpoint() with "
                "the same directory and tag",
                WARN_SECONDS,
                self._what,
                "; ".join(others),
            )

    def _others(self) -> "tuple[List[int], List[str]]":
        """Returns the ranks that have not begun this save, and what others save in its place, in words."""
        try:
            begun = {rank: text.partition(" ") for rank, text in store.peek(_SAVING).items()}
        except RuntimeError:  # The store has gone, with the job.
            return [], []
        late = [rank for rank in store.every_rank() if rank not in begun or int(begun[rank][0]) < self._number]
        others = [
            f"rank {rank} saves {what}"
            for rank, (number, _, what) in begun.items()
            if int(number) == self._number and what != self._what
        ]
        return late, others
