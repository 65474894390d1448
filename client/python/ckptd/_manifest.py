"""Reads what a committed checkpoint says of itself, beneath a descriptor, and what its root says of it. The
layout: docs/storage_format.md.
"""

import logging
import os
import struct
from typing import Any, Dict, Tuple

from google.protobuf.message import DecodeError

from ckptd import _accel, errors
from ckptd._wire import storage

_log = logging.getLogger("ckptd")
_NAME = ".ckptd/manifest"
_DAMAGED_NAME = ".ckptd/damaged"
_FRAME = struct.Struct("<8sIII")
_HEAD_BYTES = 4096
_HEAD = struct.Struct("<8sIIIIQI")
_VERSION = 1
_LARGEST = 1 << 30


def open_beneath(directory: int, path: str) -> int:
    """A file beneath a directory; no component may be a symbolic link. OSError as os.open."""
    names = path.split("/")
    if any(name in ("", ".", "..") for name in names):
        raise errors.NotFound(
            f'"{path}" is not a file name of a checkpoint', reason="INVALID_PATH", path=path
        )
    current = directory
    try:
        for name in names[:-1]:
            step = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            if current != directory:
                os.close(current)
            current = step
        return os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=current)
    finally:
        if current != directory:
            os.close(current)


def read_summary(directory: int, what: str) -> Any:
    """The ManifestSummary of a checkpoint's directory; `what` names it in errors. OSError when there is no
    manifest.
    """
    descriptor = open_beneath(directory, _NAME)
    try:
        return _head(_read(descriptor, _HEAD_BYTES, 0), what)[0]
    finally:
        os.close(descriptor)


def read_manifest(directory: int, what: str) -> Tuple[Any, Dict[str, Any]]:
    """The summary, and the FileRecord of each file by its path."""
    descriptor = open_beneath(directory, _NAME)
    try:
        summary, size, crc = _head(_read(descriptor, _HEAD_BYTES, 0), what)
        body = _read(descriptor, size + 1, _HEAD_BYTES)
    finally:
        os.close(descriptor)
    if len(body) != size:
        raise _corrupt(
            what,
            f"its body has {'more than ' if len(body) > size else ''}{min(len(body), size)} bytes of {size}",
        )
    if _accel.crc32c(body) != crc:
        raise _corrupt(
            what, f"the CRC32C of its body is {_accel.crc32c(body):#010x}, and it should be {crc:#010x}"
        )
    try:
        message = storage.ManifestBody.FromString(body)
    except DecodeError as error:
        raise _corrupt(what, f"its body is no ManifestBody ({error})") from error
    files = {record.path: record for record in message.files}
    if len(message.files) != summary.file_count or len(files) != summary.file_count:
        raise _corrupt(what, f"it lists {len(message.files)} files, {summary.file_count} were saved")
    for record in files.values():
        chunks = -(-record.size_bytes // summary.chunk_bytes)
        if record.size_bytes < 0 or len(record.chunk_crc32c) != chunks:
            raise _corrupt(
                what, f"{record.path} has {len(record.chunk_crc32c)} checksums for {chunks} chunks"
            )
    return summary, files


def read_damages(root: str) -> Dict[int, Any]:
    """What the daemon remembers of damaged checkpoints: sequence -> storage.Damage. Where that cannot be
    read it is nothing, with a warning in the log: a reader checks every byte anyhow.
    """
    path = os.path.join(root, _DAMAGED_NAME)
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST)
    except FileNotFoundError:
        return {}
    except OSError as error:
        _log.warning("ckptd: %s cannot be read: %s", path, error.strerror)
        return {}
    message = data[_FRAME.size :]
    try:
        magic, version, size, crc = _FRAME.unpack_from(data)
        if (magic, version, size, crc) != (b"CKPTDDMG", _VERSION, len(message), _accel.crc32c(message)):
            raise ValueError("it is damaged, or of a later version")
        return {damage.sequence: damage for damage in storage.DamageRecord.FromString(message).damages}
    except (DecodeError, ValueError, struct.error) as error:
        _log.warning("ckptd: %s cannot be read: %s", path, error)
        return {}


def _head(head: bytes, what: str) -> Tuple[Any, int, int]:
    """(summary, size of the body, CRC of the body)."""
    if len(head) < _HEAD_BYTES:
        raise _corrupt(what, f"it has {len(head)} bytes, its head alone has {_HEAD_BYTES}")
    magic, version, size, summary_crc, body_crc, body_size, own_crc = _HEAD.unpack_from(head)
    if magic != b"CKPTDMAN":
        raise _corrupt(what, "it does not begin with CKPTDMAN")
    if _accel.crc32c(head[: _HEAD.size - 4]) != own_crc:
        raise _corrupt(what, "the CRC32C of its head is wrong")
    if version > _VERSION:
        raise errors.Refused(
            f"the manifest of {what} has format version {version}, this package knows {_VERSION}; install a newer one",
            reason="NEWER_FORMAT",
        )
    encoded = head[_HEAD.size : _HEAD.size + size]
    if size > _HEAD_BYTES - _HEAD.size or body_size > _LARGEST or _accel.crc32c(encoded) != summary_crc:
        raise _corrupt(what, "the CRC32C of its summary is wrong")
    try:
        summary = storage.ManifestSummary.FromString(encoded)
    except DecodeError as error:
        raise _corrupt(what, f"its summary is no ManifestSummary ({error})") from error
    if summary.chunk_bytes < 1:
        raise _corrupt(what, f"chunks of {summary.chunk_bytes} bytes")
    return summary, body_size, body_crc


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Less than `size` bytes only at the end of the file."""
    parts = []
    while size > 0:
        part = os.pread(descriptor, size, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def _corrupt(what: str, why: str) -> errors.Corrupt:
    return errors.Corrupt(
        f"the manifest of {what} is damaged: {why}",
        reason="CORRUPT_MANIFEST",
        tag=os.path.basename(what),
        path=_NAME,
    )
