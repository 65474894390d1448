"""The names that say which checkpoints lie beneath a prefix (storage/bucket/index.h has their layout)."""

import base64
import binascii
import struct
from typing import Any, Dict, Iterable

from google.protobuf.message import DecodeError

from ckptd._memory.native import crc32c
from ckptd._paths import is_tag
from ckptd._wire.protocol import storage

FOLDER = ".ckptd/index/"
_AFTER_TAG = "!"
_CRC = struct.Struct("<I")
_FLAGS = 0b11


def summary_of_name(name: str) -> Any:
    """Returns the storage.ManifestSummary in what follows FOLDER in a key; None: it is damaged, or of a later version."""
    tag, _, text = name.partition(_AFTER_TAG)
    try:
        info = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    crc, covered = info[: _CRC.size], info[_CRC.size :]
    if not is_tag(tag) or not covered or covered[0] & ~_FLAGS or _CRC.pack(crc32c(tag.encode() + covered)) != crc:
        return None
    try:
        summary = storage.ManifestSummary.FromString(covered[1:])
    except DecodeError:
        return None
    summary.tag = tag
    return summary


def is_same_checkpoint(one: Any, other: Any) -> bool:
    return (one.sequence, one.commit_time_us) == (other.sequence, other.commit_time_us)


def summaries_of_names(names: Iterable[str]) -> Dict[str, Any]:
    """Returns by tag what its names say. None: they are of several checkpoints, or cannot be parsed."""
    found: Dict[str, Any] = {}
    for name in names:
        tag = name.partition(_AFTER_TAG)[0]
        summary = summary_of_name(name)
        if tag not in found:
            found[tag] = summary
            continue
        before = found[tag]
        if before is None or summary is None or not is_same_checkpoint(before, summary):
            found[tag] = None
    return found
