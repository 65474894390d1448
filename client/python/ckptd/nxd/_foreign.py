"""Checkpoints that NxD wrote into a root, and how NxD tells which is the latest."""

import os
from typing import List, NamedTuple

from ckptd.nxd import _names

_OURS = ".ckptd"
_MANIFEST = os.path.join(_OURS, "manifest")


class Finished(NamedTuple):
    """A tag with the marker of a finished save. In the order of NxD: by the marker's time; of one time, by name."""

    done_ns: int
    tag: str


def finished(root: str) -> List[Finished]:
    """NxD's finished tags, oldest first, without those that ckptd committed."""
    return [found for found in _with_marker(root) if not is_ours(root, found.tag)]


def any_finished(root: str) -> bool:
    """Whoever wrote it."""
    return bool(_with_marker(root))


def may_be_loaded(root: str, tag: str) -> bool:
    """Whether a tag can be loaded by its name. A save that was begun must be finished. A folder with neither marker is one of
    NxD's converter (scripts/checkpoint_converter.py), which writes none: such weights are never the latest.
    """
    folder = os.path.join(root, tag)
    finished = os.path.exists(os.path.join(folder, _names.DONE))
    return finished or (is_there(root, tag) and not os.path.lexists(os.path.join(folder, _names.BEGUN)))


def is_there(root: str, tag: str) -> bool:
    return os.path.isdir(os.path.join(root, tag))


def is_root_of_ckptd(root: str) -> bool:
    """Whether a daemon has ever worked here."""
    return os.path.isdir(os.path.join(root, _OURS))


def is_ours(root: str, tag: str) -> bool:
    """Whether ckptd committed it."""
    return os.path.exists(os.path.join(root, tag, _MANIFEST))


def _with_marker(root: str) -> List[Finished]:
    found = []
    try:
        tags = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for tag in tags:
        if tag.startswith("."):
            continue
        try:
            found.append(Finished(os.stat(os.path.join(root, tag, _names.DONE)).st_mtime_ns, tag))
        except OSError:
            continue  # No marker: not finished, half deleted, or no checkpoint at all.
    return sorted(found)
