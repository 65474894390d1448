"""Checkpoints that NxD itself wrote into a root, and NxD's rule of which one is the latest."""

from typing import List, NamedTuple

from ckptd._adapters import root_paths
from ckptd.nxd import _names


class Finished(NamedTuple):
    """A tag with the marker of a finished save. Sorted as NxD sorts them: by the marker's time, then by name."""

    done_ns: int
    tag: str


def finished(root: str) -> List[Finished]:
    """Returns NxD's finished tags, oldest first, without those that ckptd committed."""
    return sorted(Finished(time, tag) for tag, time in root_paths.of(root).times_of_others(_names.DONE).items())


def any_finished(root: str) -> bool:
    """Returns whether a root has a finished checkpoint, of NxD or of ckptd."""
    return root_paths.of(root).has_any(_names.DONE)


def may_be_loaded(root: str, tag: str) -> bool:
    """Returns whether a tag that ckptd has not committed can be loaded by its name.

    A save that was begun must be finished. A folder with neither marker may be one that NxD's converter
    (scripts/checkpoint_converter.py) wrote, without markers; it is never the latest.
    """
    there = root_paths.of(root)
    if not there.is_of_others(tag):
        return False
    return there.has_file(tag, _names.DONE) or not there.has_file(tag, _names.BEGUN)
