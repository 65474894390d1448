"""Reads the manifest of a committed checkpoint, and its root's record of damaged ones.

Layout: docs/storage_format.md.
"""

import logging
import os
import struct
from typing import Any, Dict, List, NamedTuple, Tuple

from google.protobuf.message import DecodeError

from ckptd import errors
from ckptd._memory.native import crc32c
from ckptd._paths import regular
from ckptd._wire.protocol import storage

_log = logging.getLogger("ckptd")
MANIFEST = ".ckptd/manifest"
_DAMAGED_NAME = ".ckptd/damaged"
_SHARED = ".ckptd/shared"
_LOOKS = 3
_FRAME = struct.Struct("<8sIII")
HEAD_BYTES = 4096
_HEAD = struct.Struct("<8sIIIIQI")
_VERSION = 1
_MAX_BYTES = 1 << 30  # The largest body of a manifest, and the largest record of damages.
MOST_BYTES = HEAD_BYTES + _MAX_BYTES  # The largest manifest.


class Head(NamedTuple):
    """The head of a manifest."""

    summary: Any  # The storage.ManifestSummary.
    body_bytes: int
    body_crc: int


def components_of(path: str) -> List[str]:
    """Returns the names in the path of a file in a checkpoint. errors.NotFound: one is empty, "." or ".."."""
    names = path.split("/")
    if any(name in ("", ".", "..") for name in names):
        raise errors.NotFound(
            f'"{path}" cannot be the name of a file in a checkpoint', reason="INVALID_PATH", path=path
        )
    return names


def open_beneath(directory: int, path: str) -> int:
    """Opens a regular file beneath a directory for reading, without following a symbolic link anywhere in the path.

    Raises:
        OSError: as os.open; EINVAL for what is no regular file.
        errors.NotFound: the path has an empty, "." or ".." component.
    """
    names = components_of(path)
    current = directory
    try:
        for name in names[:-1]:
            step = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            if current != directory:
                os.close(current)
            current = step
        return regular(os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=current), path)
    finally:
        if current != directory:
            os.close(current)


def read_summary(directory: int, what: str) -> Any:
    """Returns the storage.ManifestSummary of a checkpoint's directory.

    Args:
        what: names the checkpoint in errors.

    Raises:
        OSError: there is no manifest, or it cannot be read.
        errors.Corrupt: it is damaged.
    """
    descriptor = open_beneath(directory, MANIFEST)
    try:
        return parse_head(_read(descriptor, HEAD_BYTES, 0), what).summary
    finally:
        os.close(descriptor)


def read_manifest(directory: int, what: str) -> Tuple[Any, Dict[str, Any]]:
    """Returns the summary, and the storage.FileRecord of each file by its path. Raises as read_summary()."""
    descriptor = open_beneath(directory, MANIFEST)
    try:
        head = parse_head(_read(descriptor, HEAD_BYTES, 0), what)
        body = _read(descriptor, head.body_bytes + 1, HEAD_BYTES)
    finally:
        os.close(descriptor)
    return head.summary, _parse_body(head, body, what)


def parse_manifest(data: bytes, what: str) -> Tuple[Any, Dict[str, Any]]:
    """Returns what read_manifest() does, of the manifest's bytes. errors.Corrupt: they are damaged."""
    head = parse_head(data[:HEAD_BYTES], what)
    return head.summary, _parse_body(head, data[HEAD_BYTES:], what)


def _parse_body(head: Head, body: bytes, what: str) -> Dict[str, Any]:
    summary, size, crc = head
    if len(body) != size:
        raise corrupt_manifest(
            what,
            f"its body has {'more than ' if len(body) > size else ''}{min(len(body), size)} bytes of {size}",
        )
    if crc32c(body) != crc:
        raise corrupt_manifest(
            what, f"the CRC32C of its body is {crc32c(body):#010x} and should be {crc:#010x}"
        )
    try:
        message = storage.ManifestBody.FromString(body)
    except DecodeError as error:
        raise corrupt_manifest(what, f"its body is not a ManifestBody ({error})") from error
    files = {record.path: record for record in message.files}
    if len(message.files) != summary.file_count or len(files) != summary.file_count:
        raise corrupt_manifest(what, f"it lists {len(message.files)} files, but {summary.file_count} were saved")
    for record in files.values():
        chunks = -(-record.size_bytes // summary.chunk_bytes)
        if record.size_bytes < 0 or len(record.chunk_crc32c) != chunks:
            raise corrupt_manifest(
                what, f"{record.path} has {len(record.chunk_crc32c)} checksums for {chunks} chunks"
            )
    return files


def read_damages(root: str) -> Dict[int, Any]:
    """Returns the storage.Damage of each checkpoint that the daemon remembers as damaged, by sequence.

    That is in a record of the root; of a root that several nodes share, in the record of the highest term. If a
    record cannot be read, it logs a warning and returns nothing of it: readers check every byte anyway. Links beneath
    the root are not followed.
    """
    try:
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        _log.warning("ckptd: %s cannot be read: %s", root, error.strerror)
        return {}
    try:
        return {damage.sequence: damage for damage in _damages_in(directory, root)}
    finally:
        os.close(directory)


def _damages_in(directory: int, root: str) -> List[Any]:
    record = _read_record(directory, root, _DAMAGED_NAME, b"CKPTDDMG", storage.DamageRecord)
    damages = list(record.damages) if record is not None else []
    # The coordinator of the next term removes the records of earlier ones: then the list is old.
    for attempt in range(_LOOKS):
        terms = _terms_in(directory, root)
        if not terms:
            break
        name = f"{_SHARED}/record.{max(terms)}"
        is_last = attempt + 1 == _LOOKS
        run = _read_record(directory, root, name, b"CKPTDSRR", storage.SharedRunRecord, last=is_last)
        if run is not None:
            damages += run.damages.damages
            break
    return damages


def _terms_in(directory: int, root: str) -> List[int]:
    """The terms of the coordinators that have left a record in a root."""
    try:
        shared = _open_folder_beneath(directory, _SHARED)
        try:
            names = os.listdir(shared)
        finally:
            os.close(shared)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        _log.warning("ckptd: %s cannot be read: %s", os.path.join(root, _SHARED), error.strerror)
        return []
    numbers = (name[len("record.") :] for name in names if name.startswith("record."))
    return [int(number) for number in numbers if number.isascii() and number.isdigit()]


def _open_folder_beneath(directory: int, path: str) -> int:
    """Opens a folder beneath a directory, without following a symbolic link anywhere in the path. OSError as os.open."""
    current = directory
    for name in path.split("/"):
        try:
            step = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
        finally:
            if current != directory:
                os.close(current)
        current = step
    return current


def _read_record(directory: int, root: str, name: str, magic: bytes, kind: Any, last: bool = False) -> Any:
    """Returns the message in a record of a root; None if there is none, or it cannot be read.

    Args:
        directory: of the root.
        name: of the record, beneath the root.
        last: warn also if there is none.
    """
    path = os.path.join(root, name)
    try:
        with open(open_beneath(directory, name), "rb") as file:
            data = file.read(_MAX_BYTES)
    except OSError as error:
        if last or not isinstance(error, FileNotFoundError):
            _log.warning("ckptd: %s cannot be read: %s", path, error.strerror)
        return None
    message = data[_FRAME.size :]
    try:
        found, version, size, crc = _FRAME.unpack_from(data)
        if (found, version, size, crc) != (magic, _VERSION, len(message), crc32c(message)):
            raise ValueError("it is damaged, or of a newer version")
        return kind.FromString(message)
    except (DecodeError, ValueError, struct.error) as error:
        _log.warning("ckptd: %s cannot be read: %s", path, error)
        return None


def parse_head(head: bytes, what: str) -> Head:
    """Returns the head of a manifest, of its first bytes. Raises as read_summary()."""
    if len(head) < HEAD_BYTES:
        raise corrupt_manifest(what, f"it has {len(head)} bytes, fewer than the {HEAD_BYTES} of its head")
    magic, version, size, summary_crc, body_crc, body_size, own_crc = _HEAD.unpack_from(head)
    if magic != b"CKPTDMAN":
        raise corrupt_manifest(what, "it does not begin with CKPTDMAN")
    if crc32c(head[: _HEAD.size - 4]) != own_crc:
        raise corrupt_manifest(what, "the CRC32C of its head is wrong")
    if version > _VERSION:
        raise errors.Refused(
            f"the manifest of {what} has format version {version}, and this package reads up to {_VERSION}; install a newer ckptd",
            reason="NEWER_FORMAT",
        )
    encoded = head[_HEAD.size : _HEAD.size + size]
    if size > HEAD_BYTES - _HEAD.size or body_size > _MAX_BYTES or crc32c(encoded) != summary_crc:
        raise corrupt_manifest(what, "the CRC32C of its summary is wrong")
    try:
        summary = storage.ManifestSummary.FromString(encoded)
    except DecodeError as error:
        raise corrupt_manifest(what, f"its summary is not a ManifestSummary ({error})") from error
    if summary.chunk_bytes < 1:
        raise corrupt_manifest(what, f"its chunks have {summary.chunk_bytes} bytes")
    return Head(summary, body_size, body_crc)


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Reads `size` bytes, or up to the end of the file."""
    parts = []
    while size > 0:
        part = os.pread(descriptor, size, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def corrupt_manifest(what: str, why: str) -> errors.Corrupt:
    """Returns the error for a damaged manifest. what: names the checkpoint; its last component is the tag."""
    return errors.Corrupt(
        f"the manifest of {what} is damaged: {why}",
        reason="CORRUPT_MANIFEST",
        tag=os.path.basename(what),
        path=MANIFEST,
    )
