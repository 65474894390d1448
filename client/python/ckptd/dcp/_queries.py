"""Lists the checkpoints of a root."""

import logging
import os
from typing import List, Optional

from ckptd._adapters import root_paths
from ckptd._checkpoint_info import CheckpointInfo
from ckptd.dcp import _names
from ckptd.dcp._process import await_sealed, process
from ckptd.restore import open_root
from ckptd.run import Run

_log = logging.getLogger("ckptd")


def latest(root: "str | os.PathLike[str]", timeout: float = 600.0) -> Optional[str]:
    """Returns the path, or the URL, of the newest committed checkpoint of a root; None if there is none.

    It waits for what an earlier launch had sealed. So it is the same on all ranks of a launch that has not
    saved yet. In a root without a checkpoint of ckptd it is the newest one of DCP itself, by the time of its
    metadata. Beside one of ckptd, a newer one of DCP itself is named in the log, and does not count.

    In a bucket (``s3://BUCKET/PREFIX``) checkpoints of DCP itself do not count, and it waits for what this node's daemon has.

    With ``configure(upload=)`` the first call of a launch asks the bucket, too: if that has a newer one, it is in the
    root when the call returns.

    Args:
        timeout (float): seconds to wait for what earlier launches had sealed, and for the bucket. Default: 600

    Raises:
        ckptd.Refused: the bucket does not answer (``RESTORE_FAILED``).
        ckptd.CkptdError: no daemon answers, or all checkpoints are damaged.
    """
    path = root_paths.name_of(root)
    process.fetch(path, timeout=timeout)
    there = root_paths.of(path)
    run = process.run_to_read(path)
    if run is not None:
        await_sealed(run, timeout)
        info = run.latest()
    else:
        info = open_root(path).latest() if there.is_there() else None
    others = there.times_of_others(_names.METADATA_FILE) if there.is_directory else {}
    if info is None:
        for name in there.manifests():  # ckptd does not list it, because it was renamed, or is damaged: then this raises.
            open_root(path).open(name).close()
        return root_paths.join(path, max(others, key=others.__getitem__)) if others else None
    committed = info.time.timestamp() * 1e9 if info.time is not None else 0.0
    newer = [name for name in others if others[name] > committed]
    if newer:
        _log.warning(
            "ckptd: %s is newer than %s, but another program has saved it, so it does not count: load it by its path",
            root_paths.join(path, max(newer, key=others.__getitem__)),
            root_paths.join(path, info.tag),
        )
    return root_paths.join(path, info.tag)


def list(root: "str | os.PathLike[str]") -> List[CheckpointInfo]:
    """Returns the checkpoints of a root that ckptd has committed, newest first."""
    path = root_paths.name_of(root)
    run = process.run_to_read(path)
    if run is not None:
        return run.list()
    return open_root(path).list() if root_paths.of(path).is_there() else []


def run(root: "str | os.PathLike[str]") -> Run:
    """Returns ckptd's run of a root, for example for ``run(root).failures()``.

    The root is made if it is missing.
    """
    return process.run(root_paths.name_of(root))
