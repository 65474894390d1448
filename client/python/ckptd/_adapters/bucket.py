"""Resuming from a bucket: what it has newer is in the root before a library looks there for its newest checkpoint."""

import logging
from typing import Callable, Optional

from ckptd import errors
from ckptd.run import Run
from ckptd.uploads import Upload

_log = logging.getLogger("ckptd")
_MOST_SECONDS = 86400.0  # The longest that the daemon waits.


def is_resumed_from(upload: Optional[Upload]) -> bool:
    """Returns whether a job looks for its newest checkpoint in a bucket, too."""
    return upload is not None and upload.restore


def fetch_newest(join: "Callable[[], Run]", timeout: float) -> None:
    """Has the daemon bring the newest checkpoint of the run's bucket into the root, if it is newer than all that the root
    has had. Each rank may call it, alone or with others: the daemon fetches once for a launch.

    It ends earlier attempts, as a save does. What is in the root is left to the library: that all of it is damaged, or
    suspect, is no error here.

    Args:
        join: joins the run as a rank.
        timeout: seconds to wait. The fetch goes on after that.

    Raises:
        errors.Refused: the bucket does not answer, or nobody can say what is newer (``RESTORE_FAILED``).
        errors.WaitTimeout: the fetch has not ended; the error says how far it is.
        errors.CkptdError: there is no daemon, or the run cannot be joined.
    """
    try:
        run = join()
    except errors.Refused as error:
        if error.reason != "RUN_IN_USE":
            raise
        # Beside the job that saves there: it has what is in the bucket.
        _log.info("ckptd: another job runs in the root, so this process does not ask the bucket: %s", error)
        return
    try:
        run._fetch_newest(min(timeout, _MOST_SECONDS))
    except errors.Corrupt as error:
        _log.info("ckptd: %s", error)
    except errors.Refused as error:
        if error.reason != "SUSPECT":
            raise
        _log.info("ckptd: %s", error)
