"""Checkpoints that a test writes in a folder and copies to a bucket, without ckptd."""

from __future__ import annotations

import os
import pathlib
import uuid
from typing import Any, Dict, List, Tuple

import ckptd
import pytest
from bucket_servers import BUCKET, BucketServer

MANIFEST = ".ckptd/manifest"


class Copies:
    """A folder, and a prefix of its own in the bucket of a server, to which this process's environment leads."""

    def __init__(self, server: BucketServer, folder: pathlib.Path, environment: pytest.MonkeyPatch) -> None:
        self.server = server
        self.folder = folder
        self.prefix = uuid.uuid4().hex
        self.url = f"s3://{BUCKET}/{self.prefix}"
        self.s3 = server.client()
        wanted = server.environment()
        for name in os.environ:
            if name.startswith("AWS_") and name not in wanted:
                environment.delenv(name)
        for name, value in wanted.items():
            if name.startswith("AWS_"):
                environment.setenv(name, value)

    def root(self) -> ckptd.Root:
        return ckptd.open_root(self.url)

    def copy(self, tag: str) -> None:
        """Copies a checkpoint of the folder, its manifest last."""
        files = sorted(path for path in (self.folder / tag).rglob("*") if path.is_file())
        for path in sorted(files, key=lambda path: path.name == "manifest"):
            self.put(f"{tag}/{path.relative_to(self.folder / tag)}", path.read_bytes())

    def put(self, name: str, data: bytes) -> None:
        self.s3.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=data)

    def get(self, name: str) -> bytes:
        body: bytes = self.s3.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")["Body"].read()
        return body

    def delete(self, name: str) -> None:
        self.s3.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")

    def flip(self, name: str, at: int) -> None:
        """Changes a byte of an object."""
        data = bytearray(self.get(name))
        data[at] ^= 1
        self.put(name, bytes(data))


def requests_of(root: ckptd.Root) -> List[Tuple[str, str]]:
    """Returns a list to which each request of a root will be added: (the end of its key, its range)."""
    seen: List[Tuple[str, str]] = []

    def note(request: Any, **_: Any) -> None:
        found: Dict[str, Any] = request.headers
        span = found.get("Range", b"")
        seen.append((request.url.partition("?")[0].rpartition("/")[2], span.decode() if isinstance(span, bytes) else span))

    root._place._store._client.meta.events.register("before-send.s3", note)
    return seen
