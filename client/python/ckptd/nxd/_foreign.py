"""Checkpoints that NxD itself wrote into a root, and NxD's rule of which one is the latest."""

import os
from typing import List, NamedTuple

from ckptd._checkpoint_paths import has_manifest
from ckptd.nxd import _names

_OURS = ".ckptd"


class Finished(NamedTuple):
    """A tag with the marker of a finished save. Sorted as NxD sorts them: by the marker's time, then by name."""

    done_ns: int
    tag: str


def finished(root: str) -> List[Finished]:
    """Returns NxD's finished tags, oldest first, without those that ckptd committed."""
    return [found for found in _with_marker(root) if not is_ours(root, found.tag)]


def any_finished(root: str) -> bool:
    """Returns whether a root has a finished checkpoint, of NxD or of ckptd."""
    return bool(_with_marker(root))


def may_be_loaded(root: str, tag: str) -> bool:
    """Returns whether a tag can be loaded by its name.

    A save that was begun must be finished. A folder with neither marker may be one that NxD's converter
    (scripts/checkpoint_converter.py) wrote, without markers; it is never the latest.
    """
    folder = os.path.join(root, tag)
    finished = os.path.exists(os.path.join(folder, _names.DONE))
    return finished or (is_there(root, tag) and not os.path.lexists(os.path.join(folder, _names.BEGUN)))


def is_there(root: str, tag: str) -> bool:
    """Returns whether a tag has a directory, finished or not."""
    return os.path.isdir(os.path.join(root, tag))


def is_root_of_ckptd(root: str) -> bool:
    """Returns whether a daemon has ever used the root."""
    return os.path.isdir(os.path.join(root, _OURS))


def is_ours(root: str, tag: str) -> bool:
    """Returns whether ckptd committed the tag."""
    return has_manifest(os.path.join(root, tag))


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
            continue  # No marker: unfinished, half deleted, or not a checkpoint.
    return sorted(found)
