"""Writes checkpoints as the daemon does, in the documented format."""

from __future__ import annotations

import base64
import io
import pathlib
import struct
from typing import Any, Dict, Optional

import torch
from ckptd._memory import native
from ckptd._reading.verified_file import VerifiedFile
from ckptd._wire.protocol import storage

CHUNK = 64 << 10


def encode_manifest(summary: Any, body: bytes) -> bytes:
    encoded = summary.SerializeToString()
    head = b"CKPTDMAN" + struct.pack(
        "<IIIIQ", 1, len(encoded), native.crc32c(encoded), native.crc32c(body), len(body)
    )
    head += struct.pack("<I", native.crc32c(head)) + encoded
    return head.ljust(4096, b"\0") + body


def index_name(summary: Any) -> str:
    """Returns the name by which a daemon's upload of this checkpoint is in the index of a bucket."""
    shortened = storage.ManifestSummary.FromString(summary.SerializeToString())
    shortened.ClearField("tag")
    info = b"\1" + shortened.SerializeToString()
    checked = struct.pack("<I", native.crc32c(summary.tag.encode() + info)) + info
    return f"{summary.tag}!{base64.urlsafe_b64encode(checked).decode().rstrip('=')}"


def write_checkpoint(
    root: pathlib.Path,
    tag: str,
    sequence: int,
    files: Dict[str, bytes],
    step: Optional[int] = None,
    **metrics: float,
) -> pathlib.Path:
    """Writes a checkpoint as the daemon does."""
    folder = root / tag
    (folder / ".ckptd").mkdir(parents=True)
    body = storage.ManifestBody()
    for rank, (name, content) in enumerate(sorted(files.items())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        crcs = [native.crc32c(content[at : at + CHUNK]) for at in range(0, len(content), CHUNK)]
        body.files.add(path=name, size_bytes=len(content), rank=rank, chunk_crc32c=crcs)
    summary = storage.ManifestSummary(
        format_version=1,
        tag=tag,
        step=step,
        sequence=sequence,
        attempt=1,
        ordinal=1,
        world_size=max(1, len(files)),
        size_bytes=sum(map(len, files.values())),
        file_count=len(files),
        commit_time_us=1_700_000_000_000_000,
        metrics=metrics,
        chunk_bytes=CHUNK,
    )
    (folder / ".ckptd/manifest").write_bytes(encode_manifest(summary, body.SerializeToString()))
    return folder


def saved(obj: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    return buffer.getvalue()


def flip(path: pathlib.Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


class BytesFile(VerifiedFile):
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__(len(data), max(len(data), 1))
        self._data = data

    def _fetch(self, chunk: int, into: memoryview) -> None:
        into[:] = self._data[: len(into)]
