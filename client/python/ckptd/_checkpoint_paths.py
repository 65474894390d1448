"""What lies at a path: a checkpoint that ckptd committed, one of another program, or one whose manifest is missing.

Every adapter asks here before it reads, so that bytes that ckptd can verify are never read without.
"""

import logging
import os
import zipfile
from typing import Iterator, Set

from ckptd import errors
from ckptd._paths import open_regular

_log = logging.getLogger("ckptd")
_OWN = ".ckptd"  # The directory of ckptd in a root, and in a checkpoint.
_PART = "part-"  # Begins the names of the part records, which are in a checkpoint's directory and in no root's.
_ARCHIVES = (".pt", ".pth", ".bin", ".ckpt")
_SAMPLE = 64  # Archives to look into, at most.
_warned: Set[str] = set()


def has_manifest(path: str) -> bool:
    """Returns whether a directory has the manifest of a committed checkpoint, intact or damaged. Follows links."""
    return os.path.lexists(os.path.join(path, _OWN, "manifest"))


def is_committed(path: str) -> bool:
    """Returns whether ckptd has committed what lies at a path; then it must be read verified. Follows links.

    Returns:
        False if nothing is there, or what another program has written.

    Raises:
        errors.Corrupt: ckptd has written it, but its manifest is missing, so nothing can verify it. This is known
            if part records are left, or if the files say so and the checkpoint lies in a root of ckptd.
    """
    real = os.path.realpath(path)
    if has_manifest(real):
        return True
    if _has_part_records(real) or (is_in_root(real) and _has_archives_of_ckptd(real)):
        raise manifest_missing(path)
    return False


def is_in_root(path: str) -> bool:
    """Returns whether a path, after its links, is that of a directory in a root of ckptd."""
    real = os.path.realpath(path)
    return os.path.isdir(real) and os.path.isdir(os.path.join(os.path.dirname(real), _OWN))


def manifest_missing(path: str) -> errors.Corrupt:
    """Returns the error for a checkpoint of ckptd without its manifest."""
    return errors.Corrupt(
        f"{path} was written by ckptd, and its manifest {os.path.join(_OWN, 'manifest')} is missing, so its bytes cannot be "
        "verified: put the directory .ckptd of this checkpoint back, load another checkpoint, or, to read it unverified, move "
        "it out of the root of ckptd",
        reason="CORRUPT_MANIFEST",
        tag=os.path.basename(path),
        path=os.path.join(_OWN, "manifest"),
    )


def warn_unverified(path: str) -> None:
    """Logs, once for each path, that what another program has written is read without verification.

    No-op if nothing is there.
    """
    if path not in _warned and os.path.lexists(path):
        _warned.add(path)
        _log.warning("ckptd: %s is not a checkpoint of ckptd and has no checksums: it is read unverified", path)


def _has_part_records(path: str) -> bool:
    try:
        return any(name.startswith(_PART) for name in os.listdir(os.path.join(path, _OWN)))
    except OSError:
        return False


def _archives(path: str) -> Iterator[str]:
    """Returns a few files that may be archives of torch."""
    left = _SAMPLE
    for folder, _, names in os.walk(path):
        for name in sorted(names):
            if name.endswith(_ARCHIVES):
                yield os.path.join(folder, name)
                left -= 1
                if left == 0:
                    return


def _has_archives_of_ckptd(path: str) -> bool:
    """Returns whether ckptd has written a directory's archives: all of them, because tools of other programs copy some of
    ckptd's files beside their own, as DeepSpeed's ds_to_universal does.
    """
    names = list(_archives(path))
    return bool(names) and all(map(_is_archive_of_ckptd, names))


def _is_archive_of_ckptd(path: str) -> bool:
    """Returns whether ckptd has laid out an archive: it writes zeros where torch writes a hash."""
    from ckptd._torch.zip_layout import SERIALIZATION_ID

    try:
        with open(path, "rb", opener=open_regular) as file, zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith("/.data/serialization_id")]
            return bool(names) and archive.read(names[0]) == SERIALIZATION_ID
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return False  # No archive, or a damaged one, which its reader refuses.
