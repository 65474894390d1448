"""Short texts that ranks exchange by the process group's store.

Unlike a collective, an exchange needs neither a process group of its ranks nor their devices, and names the ranks that
are missing.
"""

import datetime
import json
import logging
import zlib
from typing import Any, Callable, Dict, List, Optional, Sequence

from ckptd._membership import launch

_log = logging.getLogger("ckptd")
WARN_SECONDS = 10.0  # After this the log names the ranks that are waited for.

# Returns the texts of more ranks, of those that take part.
Complete = Callable[[Dict[int, str]], Dict[int, str]]


def exchange(
    name: str, text: str, seconds: float, what: str, ranks: Sequence[int] = (), complete: Optional[Complete] = None
) -> Dict[int, str]:
    """Gives this rank's text to the others, and waits for theirs. Needs a process group.

    Args:
        name: the same on all of these ranks, and new for each exchange.
        seconds: to wait for the other ranks.
        what: what the other ranks have not done yet, for the log.
        ranks: those that take part; empty: all.
        complete: the last rank to come calls it with the texts of all; every rank gets the result.

    Returns:
        The texts by rank, without those that have not come in time.
    """
    ranks = ranks or every_rank()
    give(name, text, ranks, complete)
    first = min(seconds, WARN_SECONDS)
    if not _wait([_all(name)], first) and seconds > first:
        missing = [rank for rank in ranks if rank not in peek(name, ranks)]
        _log.warning("ckptd: this rank has waited %g s for ranks %s to %s", first, words_of(missing), what)
        _wait([_all(name)], seconds - first)
    if _store().check([_all(name)]):
        found = json.loads(bytes(_store().get(_all(name))))
        return {int(rank): text for rank, text in found.items()}
    return peek(name, ranks)


def give(name: str, text: str, ranks: Sequence[int] = (), complete: Optional[Complete] = None) -> None:
    """Gives this rank's text to an exchange, without waiting; arguments as of exchange(). No-op the second time."""
    ranks = ranks or every_rank()
    if _store().check([_key(name, int(launch.process_group().get_rank()))]):
        return
    post(name, text)
    if _store().add(f"ckptd/{name}/count", 1) == len(ranks):
        # The last one gathers: if each rank read all texts, the store would answer a request for each pair of ranks.
        found = peek(name, ranks)
        _store().set(_all(name), json.dumps(complete(found) if complete is not None else found))


def post(name: str, text: str) -> None:
    """Sets this rank's text of a name, in the place of an earlier one. Needs a process group."""
    _store().set(_key(name, int(launch.process_group().get_rank())), text)


def peek(name: str, ranks: Sequence[int] = ()) -> Dict[int, str]:
    """Returns the texts that ranks (empty: all) have set, by rank. Does not wait. Needs a process group."""
    store, keys = _store(), {rank: _key(name, rank) for rank in ranks or every_rank()}
    return {rank: bytes(store.get(key)).decode() for rank, key in keys.items() if store.check([key])}


def await_texts(name: str, ranks: Sequence[int], seconds: float) -> Dict[int, str]:
    """Returns the texts of these ranks as peek() does, after waiting a little for those that are missing; 0: not at all."""
    if ranks and seconds > 0:
        _wait([_key(name, rank) for rank in ranks], seconds)
    return peek(name, ranks) if ranks else {}


def every_rank() -> "range":
    return range(int(launch.process_group().get_world_size()))


def name_of(ranks: Sequence[int]) -> str:
    """Returns a short name of some ranks; the same on all of them."""
    return f"{len(ranks)}-{zlib.crc32(str(sorted(ranks)).encode()):08x}" if ranks else "all"


def words_of(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _wait(keys: List[str], seconds: float) -> bool:
    """Returns whether all keys are set in time. seconds: more than 0, which some stores take as for ever."""
    try:
        _store().wait(keys, datetime.timedelta(seconds=seconds))
    except RuntimeError:
        return False
    return True


def _key(name: str, rank: int) -> str:
    return f"ckptd/{name}/{rank}"


def _all(name: str) -> str:
    return f"ckptd/{name}/all"


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
