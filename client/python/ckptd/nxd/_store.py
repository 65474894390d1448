"""Short texts that the ranks of a job exchange by the process group's store, without a collective."""

import contextlib
import datetime
import logging
import threading
from typing import Any, Dict, List

from ckptd._membership import launch

_log = logging.getLogger("ckptd")
WARN_SECONDS = 10.0  # After this the log names the ranks that are waited for.


def exchange(name: str, text: str, seconds: float, what: str) -> Dict[int, str]:
    """Gives this rank's text to the others, and waits for theirs. Needs a process group.

    Args:
        name: the same on all ranks, and new for each exchange.
        seconds: to wait for the other ranks.
        what: what the other ranks have not done yet, for the log.

    Returns:
        The texts by rank, without those that have not come in time.
    """
    post(name, text)
    first = min(seconds, WARN_SECONDS)
    if not _wait(name, first) and seconds > first:
        missing = [rank for rank in _ranks() if rank not in peek(name)]
        _log.warning("ckptd: this rank has waited %g s for ranks %s to %s", first, words_of(missing), what)
        _wait(name, seconds - first)
    return peek(name)


def post(name: str, text: str) -> None:
    """Gives this rank's text to the others, in the place of an earlier one. Needs a process group."""
    _store().set(_key(name, int(launch.process_group().get_rank())), text)


def peek(name: str) -> Dict[int, str]:
    """Returns the texts that ranks have given, by rank. Does not wait. Needs a process group."""
    store, keys = _store(), {rank: _key(name, rank) for rank in _ranks()}
    return {rank: bytes(store.get(key)).decode() for rank, key in keys.items() if store.check([key])}


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
            post(_SAVING, f"{self._number} {self._what}")
            self._timer.start()

    def __exit__(self, *_: Any) -> None:
        self._timer.cancel()

    def _warn(self) -> None:
        late, others = self._others()
        if late:
            others.insert(0, f"ranks {words_of(late)} have not begun a save")
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
            begun = {rank: text.partition(" ") for rank, text in peek(_SAVING).items()}
        except RuntimeError:  # The store has gone, with the job.
            return [], []
        late = [rank for rank in _ranks() if rank not in begun or int(begun[rank][0]) < self._number]
        others = [
            f"rank {rank} saves {what}"
            for rank, (number, _, what) in begun.items()
            if int(number) == self._number and what != self._what
        ]
        return late, others


def words_of(ranks: List[int]) -> str:
    return ", ".join(map(str, ranks))


_SAVING = "saving"  # One key for each rank: a job saves often.


def _wait(name: str, seconds: float) -> bool:
    """Returns whether all ranks give their texts in time."""
    try:
        _store().wait([_key(name, rank) for rank in _ranks()], datetime.timedelta(seconds=seconds))
    except RuntimeError:
        return False
    return True


def _ranks() -> "range":
    return range(int(launch.process_group().get_world_size()))


def _key(name: str, rank: int) -> str:
    return f"ckptd/nxd/{name}/{rank}"


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
