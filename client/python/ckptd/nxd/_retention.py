"""Waits until retention has removed what a save has pushed out, as NxD's synchronous saves do."""

import logging
import os
import time
from typing import List

import ckptd
from ckptd import errors

_log = logging.getLogger("ckptd")
_SECONDS = 10.0  # An old checkpoint that is still there is no failure of a save.
_PAUSE_SECONDS = 0.002  # The daemon tells nobody when it has removed a checkpoint.
_ASK_SECONDS = 0.1  # After this the daemon is asked whether it keeps one.


def await_removal(run: "ckptd.Run", kept: int) -> None:
    """Returns when the root has no more than `kept` checkpoints of ckptd, beside those that something keeps."""
    try:
        surplus = [tag for _, tag in ckptd.open_root(run.root)._summaries()[kept:]]
    except (OSError, errors.CkptdError) as error:  # Such as a root that only the daemon may read.
        return _log.debug("ckptd: looking for old checkpoints in %s: %s", run.root, error)
    begin = time.monotonic()
    has_asked = False
    while surplus:
        surplus = [tag for tag in surplus if os.path.exists(os.path.join(run.root, tag))]
        if time.monotonic() - begin > _SECONDS:
            return _log.info("ckptd: retention has not removed %s in %g s", ", ".join(surplus), _SECONDS)
        if not has_asked and time.monotonic() - begin > _ASK_SECONDS:
            has_asked, surplus = True, _without_kept(run, kept, surplus)
        time.sleep(_PAUSE_SECONDS)


def _without_kept(run: "ckptd.Run", kept: int, tags: List[str]) -> List[str]:
    """Leaves out those that are damaged among the newest, or pinned, or open."""
    try:
        infos = run.list()
    except errors.CkptdError as error:
        _log.debug("ckptd: listing %s: %s", run.root, error)
        return []
    stay, good = set(), 0
    for info in infos:
        if good < kept or info.pinned or info.leases:
            stay.add(info.tag)
        good += not info.damage
    return [tag for tag in tags if tag not in stay]
