"""Waits until retention has removed what a save has pushed out, where the stock library removes before it returns."""

import logging
import time
from typing import List

from ckptd import errors
from ckptd._adapters import root_paths
from ckptd.restore import open_root
from ckptd.run import Run

_log = logging.getLogger("ckptd")
_SECONDS = 10.0  # An old checkpoint that is still there is no failure of a save.
_PAUSE_SECONDS = 0.002  # The daemon sends no event when it has removed a checkpoint.
_ASK_SECONDS = 0.1  # After this the daemon is asked whether something keeps one now.


def await_removal(run: Run) -> None:
    """Returns when the root has no checkpoints of ckptd that nothing keeps."""
    root = root_paths.of(run.root)
    surplus, begin = unkept(run), time.monotonic()
    asked = begin
    while surplus:
        surplus = [tag for tag in surplus if root.exists(tag)]
        now = time.monotonic()
        if now - begin > _SECONDS:
            return _log.info("ckptd: retention has not removed %s in %g s", ", ".join(surplus), _SECONDS)
        if now - asked > _ASK_SECONDS:
            asked, kept_since = now, set(surplus) - set(unkept(run))
            surplus = [tag for tag in surplus if tag not in kept_since]
        time.sleep(_PAUSE_SECONDS)


def unkept(run: Run) -> List[str]:
    """Returns the checkpoints that are still there, and that the daemon evicts or would evict at the next commit."""
    try:
        there = [tag for _, tag in open_root(run.root)._summaries()]
        kept = {decision.tag for decision in run.explain_retention() if decision.kept_by}
    except (OSError, ImportError, errors.CkptdError) as error:  # Such as a root that only the daemon may read.
        _log.debug("ckptd: looking for old checkpoints in %s: %s", run.root, error)
        return []
    return [tag for tag in there if tag not in kept]
