"""Finds out what is at a path: a checkpoint that ckptd committed, one of another program, or one whose manifest is missing.

Every adapter asks here before it reads, so that bytes that ckptd can verify are never read unverified.
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
_SAMPLE = 16  # Archives of one folder to look into, at most.
_UNIVERSAL = "zero"  # The folder that makes a checkpoint of DeepSpeed a universal one, beside copies of other files.
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
    if os.path.lexists(path):
        log_unverified(path)


def log_unverified(path: str) -> None:
    """As warn_unverified(), of what is known to be there."""
    if path not in _warned:
        _warned.add(path)
        _log.warning("ckptd: %s is not a checkpoint of ckptd and has no checksums: it is read unverified", path)


def _has_part_records(path: str) -> bool:
    try:
        return any(name.startswith(_PART) for name in os.listdir(os.path.join(path, _OWN)))
    except OSError:
        return False


def _archives(path: str) -> Iterator[str]:
    """Returns files that may be archives of torch, some of each folder."""
    for folder, _, names in os.walk(path):
        for name in sorted(name for name in names if name.endswith(_ARCHIVES))[:_SAMPLE]:
            yield os.path.join(folder, name)


def _has_archives_of_ckptd(path: str) -> bool:
    """Returns whether ckptd has saved a directory's files.

    It writes zeros where torch writes a hash. Some files of a checkpoint are torch's own. Tools that convert
    checkpoints copy some of ckptd's files beside their own: those of ckptd have no serialization id, and DeepSpeed's have
    a folder for them.
    """
    from ckptd._torch.writing.zip_layout import SERIALIZATION_ID

    if os.path.isdir(os.path.join(path, _UNIVERSAL)):
        return False
    found = set()
    for name in _archives(path):
        found.add(_serialization_id(name))
        if b"" in found:
            return False
    return SERIALIZATION_ID in found


def _serialization_id(path: str) -> bytes:
    """Returns the serialization id of an archive; empty if it has none, is damaged, or is no archive."""
    try:
        with open(path, "rb", opener=open_regular) as file, zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith("/.data/serialization_id")]
            return archive.read(names[0]) if names else b""
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return b""
