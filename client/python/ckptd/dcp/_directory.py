"""The directory of a checkpoint, when something is there already.

The daemon replaces what ckptd has committed, whole and in one step. It leaves everything else alone
(TAG_FOREIGN), so what DCP's own writer has written is set aside before a save that may replace it.
"""

import contextlib
import os
import shutil
from typing import List, Optional

from ckptd import errors
from ckptd._adapters import root_paths
from ckptd._checkpoint_paths import has_manifest
from ckptd.dcp._names import METADATA_FILE
from ckptd.dcp._process import Place

_ASIDE = ".replaced"  # Ends the name under which a directory is set aside.


def holds_checkpoint(place: Place) -> bool:
    """Returns whether a place holds a checkpoint in DCP's format, written by any program."""
    there = root_paths.of(place.root)
    if not there.is_directory:
        return there.has_manifest(place.tag) or there.is_of_others(place.tag)
    with contextlib.suppress(OSError):
        return any(name.endswith((METADATA_FILE, ".safetensors")) for name in os.listdir(place.path))
    return False


def is_of_hugging_face(path: str) -> bool:
    """Returns whether a directory holds a checkpoint of safetensors files, in the layout of Hugging Face."""
    with contextlib.suppress(OSError):
        names = os.listdir(path)
        return any(name.endswith(".safetensors") for name in names) and METADATA_FILE not in names
    return False


def make_way(place: Place, overwrite: Optional[bool]) -> None:
    """Makes a name free for a save. No-op if nothing is there, or a checkpoint of ckptd.

    An empty directory is removed: many programs make it before they save. What DCP's own writer has written
    is set aside if `overwrite` is True. In a bucket the daemon alone says what a save may replace.

    Raises:
        errors.Refused: something else is there.
    """
    if not root_paths.of(place.root).is_directory:
        return
    settle(place)
    path = place.path
    with contextlib.suppress(OSError):
        os.rmdir(path)
    if not os.path.lexists(path) or has_manifest(path):
        return
    if overwrite and _is_of_dcp(path):
        os.rename(path, _aside(place))
        return
    how = (
        "overwrite=True replaces it; or save under another name, or move it away"
        if _is_of_dcp(path)
        else "save under another name, or move it away"
    )
    raise errors.Refused(
        f"{path} is there already, and ckptd has not written it: {how}", reason="TAG_FOREIGN", tag=place.tag
    )


def settle(place: Place) -> None:
    """Removes what was set aside if ckptd has committed a checkpoint in its place; else gives it its name back.

    No-op if nothing was set aside, as in a bucket.
    """
    if not root_paths.of(place.root).is_directory:
        return
    aside = _aside(place)
    if has_manifest(place.path):
        shutil.rmtree(aside, ignore_errors=True)
    elif os.path.isdir(aside) and not os.path.lexists(place.path):
        os.rename(aside, place.path)


def has_aside(place: Place) -> bool:
    """Returns whether something was set aside."""
    return root_paths.of(place.root).is_directory and os.path.isdir(_aside(place))


def readable(place: Place) -> str:
    """Returns the directory to read: what was set aside, if a save has failed or goes on."""
    return _aside(place) if not os.path.lexists(place.path) and os.path.isdir(_aside(place)) else place.path


def tags(root: str) -> List[str]:
    """Returns the names of a root's directories; of one that is set aside, the name that it had. Of a bucket, those of ckptd's
    checkpoints.
    """
    there = root_paths.of(root)
    if not there.is_directory:
        return sorted(there.manifests())
    names = [entry.name for entry in os.scandir(root) if entry.is_dir()]
    return sorted({name[1 : -len(_ASIDE)] if name.startswith(".") and name.endswith(_ASIDE) else name for name in names})


def _is_of_dcp(path: str) -> bool:
    """Returns whether all that is in a directory is as DCP writes it."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    known = (".distcp", METADATA_FILE, METADATA_FILE + ".tmp", ".safetensors", ".safetensors.index.json")
    return bool(names) and all(name.endswith(known) or name == "sharded" for name in names)


def _aside(place: Place) -> str:
    return os.path.join(place.root, f".{place.tag}{_ASIDE}")
