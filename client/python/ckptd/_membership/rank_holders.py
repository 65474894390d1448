"""The holder of each rank within this process: several Run objects may have been made for the same rank."""

import os
import threading
import weakref
import zlib
from typing import Any, Dict, Protocol, Tuple

from ckptd._bucket_url import is_bucket_url

_lock = threading.Lock()


class Holder(Protocol):
    """The interface of a membership to this module."""

    connection: Any
    root: str

    @property
    def rank(self) -> int:
        """This process's rank in the run."""

    def replace(self) -> None:
        """Another holder has taken the rank."""


class Ordinals:
    """How often each tag was saved in the present attempt. Not thread-safe."""

    def __init__(self) -> None:
        self._attempt = 0
        self._counts: Dict[Tuple[str, Tuple[int, ...]], int] = {}

    def next(self, tag: str, attempt: int, ranks: Tuple[int, ...]) -> int:
        """Returns the next ordinal of a tag, the same on all ranks that save together.

        Saves of some ranks (`ranks` is not empty) are numbered apart from those of all ranks, because the
        other ranks do not count them.
        """
        self._begin_attempt(attempt)
        count = self._counts.get((tag, ranks), 0) + 1
        self._counts[tag, ranks] = count
        # The bits above 24 tell the set of ranks. They are not 0, as they are in the ordinals of all ranks.
        return count if not ranks else (1 + zlib.crc32(repr(ranks).encode())) << 24 | count

    def advance_to(self, tag: str, attempt: int, number: int, ranks: Tuple[int, ...] = ()) -> None:
        """Makes the next ordinal of a tag that these ranks save at least `number`: others of them have begun saves without
        this rank.
        """
        self._begin_attempt(attempt)
        self._counts[tag, ranks] = max(self._counts.get((tag, ranks), 0), number - 1)

    def _begin_attempt(self, attempt: int) -> None:
        if self._attempt != attempt:
            self._attempt = attempt
            self._counts.clear()


_ordinals: "weakref.WeakKeyDictionary[Any, Dict[Tuple[str, int], Ordinals]]" = weakref.WeakKeyDictionary()
# By the real path of the root and the rank.
_holders: "weakref.WeakValueDictionary[Tuple[str, int], Holder]" = weakref.WeakValueDictionary()


def _real(root: str) -> str:
    return root if is_bucket_url(root) else os.path.realpath(root)


def ordinals_of(connection: Any, root: str, rank: int) -> Ordinals:
    """Returns the ordinals that all Run objects of one connection share for a rank of a root."""
    with _lock:
        return _ordinals.setdefault(connection, {}).setdefault((_real(root), rank), Ordinals())


def replace_older(holder: Holder) -> None:
    """Makes `holder` the one that has its rank. Calls replace() of an older one of another connection.

    Those of the same connection share one membership in the daemon, and stay usable.
    """
    key = (_real(holder.root), holder.rank)
    with _lock:
        older = _holders.get(key)
        _holders[key] = holder
    if older is not None and older.connection is not holder.connection:
        older.replace()
