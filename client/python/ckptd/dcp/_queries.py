"""Lists the checkpoints of a root."""

import contextlib
import logging
import os
from typing import Dict, List, Optional

from ckptd._checkpoint_info import CheckpointInfo
from ckptd._checkpoint_paths import has_manifest
from ckptd._paths import directory_path
from ckptd.dcp import _names
from ckptd.dcp._process import await_sealed, process
from ckptd.restore import open_root
from ckptd.run import Run

_log = logging.getLogger("ckptd")


def latest(root: "str | os.PathLike[str]", timeout: float = 600.0) -> Optional[str]:
    """Returns the path of the newest committed checkpoint of a root; None if there is none.

    It waits for what an earlier launch had sealed. So it is the same on all ranks of a launch that has not
    saved yet. In a root without a checkpoint of ckptd it is the newest one of DCP itself, by the time of its
    metadata. Beside one of ckptd, a newer one of DCP itself is named in the log, and does not count.

    With ``configure(upload=)`` the first call of a launch asks the bucket, too: if that has a newer one, it is in the
    root when the call returns.

    Args:
        timeout (float): seconds to wait for what earlier launches had sealed, and for the bucket. Default: 600

    Raises:
        ckptd.Refused: the bucket does not answer (``RESTORE_FAILED``).
        ckptd.CkptdError: no daemon answers, or all checkpoints are damaged.
    """
    path = directory_path(root)
    process.fetch(path, timeout=timeout)
    run = process.run_to_read(path)
    if run is not None:
        await_sealed(run, timeout)
        info = run.latest()
    else:
        info = open_root(path).latest() if os.path.isdir(path) else None
    written = _metadata_times(path)
    has_manifests = [name for name in written if has_manifest(os.path.join(path, name))]
    if info is None:
        for name in has_manifests:  # ckptd does not list it, because it was renamed, or is damaged: then this raises.
            open_root(path).open(name).close()
        return os.path.join(path, max(written, key=written.__getitem__)) if written else None
    committed = info.time.timestamp() * 1e9 if info.time is not None else 0.0
    others = [name for name in written if name not in has_manifests and written[name] > committed]
    if others:
        _log.warning(
            "ckptd: %s is newer than %s, but another program has saved it, so it does not count: load it by its path",
            os.path.join(path, max(others, key=written.__getitem__)),
            os.path.join(path, info.tag),
        )
    return os.path.join(path, info.tag)


def list(root: "str | os.PathLike[str]") -> List[CheckpointInfo]:
    """Returns the checkpoints of a root that ckptd has committed, newest first."""
    path = directory_path(root)
    run = process.run_to_read(path)
    if run is not None:
        return run.list()
    return open_root(path).list() if os.path.isdir(path) else []


def run(root: "str | os.PathLike[str]") -> Run:
    """Returns ckptd's run of a root, for example for ``run(root).failures()``.

    The root is made if it is missing.
    """
    return process.run(directory_path(root))


def _metadata_times(root: str) -> Dict[str, int]:
    """Returns when the metadata of each checkpoint of a root were written, in nanoseconds, ckptd's own included."""
    found = {}
    for name in os.listdir(root) if os.path.isdir(root) else []:
        with contextlib.suppress(OSError):  # No checkpoint.
            found[name] = os.stat(os.path.join(root, name, _names.METADATA_FILE)).st_mtime_ns
    return found
