"""Short texts that the ranks of a job exchange by the process group's store, without a collective."""

import datetime
import logging
from typing import Any, Dict, Optional

from ckptd._membership import launch

_log = logging.getLogger("ckptd")
WARN_SECONDS = 10.0  # After this the log names the ranks that are waited for.


def exchange(name: str, text: str, seconds: float, what: str) -> Optional[Dict[int, str]]:
    """Gives this rank's text to the others, and waits for theirs.

    Args:
        name: the same on all ranks, and new for each exchange.
        seconds: to wait for the other ranks.
        what: what the other ranks have not done yet, for the log.

    Returns:
        The texts by rank, without those that have not come in time; None without a process group.
    """
    group = launch.process_group()
    if group is None:
        return None
    post(name, text)
    keys = {rank: _key(name, rank) for rank in range(int(group.get_world_size()))}
    if not _wait(keys, min(seconds, WARN_SECONDS)) and seconds > WARN_SECONDS:
        missing = ", ".join(str(rank) for rank, key in keys.items() if not _store().check([key]))
        _log.warning("ckptd: rank %d has waited %.0f s for ranks %s to %s", group.get_rank(), WARN_SECONDS, missing, what)
        _wait(keys, seconds - WARN_SECONDS)
    return {rank: bytes(_store().get(key)).decode() for rank, key in keys.items() if _store().check([key])}


def post(name: str, text: str) -> None:
    """Gives this rank's text to the others. No-op without a process group."""
    group = launch.process_group()
    if group is not None:
        _store().set(_key(name, int(group.get_rank())), text)


def _wait(keys: Dict[int, str], seconds: float) -> bool:
    """Returns whether all keys are set in time."""
    try:
        _store().wait(list(keys.values()), datetime.timedelta(seconds=seconds))
    except RuntimeError:
        return False
    return True


def _key(name: str, rank: int) -> str:
    return f"ckptd/nxd/{name}/{rank}"


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
