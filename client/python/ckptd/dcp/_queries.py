"""Which checkpoints there are."""

import os
from typing import List, Optional

from ckptd._checkpoint_info import CheckpointInfo
from ckptd._checkpoint_paths import has_manifest
from ckptd._paths import directory_path
from ckptd.dcp import _names
from ckptd.dcp._process import await_sealed, process
from ckptd.restore import open_root
from ckptd.run import Run


def latest(root: "str | os.PathLike[str]", timeout: float = 600.0) -> Optional[str]:
    """Returns the path of the newest committed checkpoint of a root; None if there is none.

    It waits for what an earlier launch had sealed. So it is the same on all ranks of a launch that has not
    saved yet. In a root without a checkpoint of ckptd it is the newest one of DCP itself, by the time of its
    metadata.

    Args:
        timeout (float): seconds to wait for what earlier launches had sealed. Default: 600

    Raises:
        ckptd.CkptdError: no daemon answers, or all checkpoints are damaged.
    """
    path = directory_path(root)
    run = process.run_to_read(path)
    if run is not None:
        await_sealed(run, timeout)
        info = run.latest()
    else:
        info = open_root(path).latest() if os.path.isdir(path) else None
    return os.path.join(path, info.tag) if info is not None else _latest_of_dcp(path)


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


def _latest_of_dcp(root: str) -> Optional[str]:
    found = []
    for name in os.listdir(root) if os.path.isdir(root) else []:
        path = os.path.join(root, name)
        try:
            written = os.stat(os.path.join(path, _names.METADATA_FILE)).st_mtime_ns
        except OSError:
            continue  # No checkpoint.
        if has_manifest(path):  # ckptd does not list it, because it was renamed, or is damaged: then this raises.
            open_root(root).open(name).close()
        found.append((written, path))
    return max(found)[1] if found else None
