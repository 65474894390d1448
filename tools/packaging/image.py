"""The container image: an archive in OCI's layout with one layer, which has the static programs and no Linux."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pathlib
import tarfile
from typing import Any

from contents import DOCUMENTS, File, Package

WANTED = ("usr/bin/", "etc/ckptd/", DOCUMENTS)
# The daemon looks up the groups of users here.
ACCOUNTS = {
    "etc/passwd": File(b"root:x:0:0:root:/root:/usr/sbin/nologin\n"),
    "etc/group": File(b"root:x:0:\n"),
}
# Made by systemd elsewhere; and where checkpoints are mounted.
FOLDERS = ("data", "run/ckptd", "tmp", "var/lib/ckptd")


def archive(files: dict[str, File], folders: tuple[str, ...], timestamp: int) -> bytes:
    """A tar archive, with the folders above each file."""
    above = {str(parent) for path in (*files, *(f"{folder}/x" for folder in folders)) for parent in pathlib.PurePath(path).parents}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as packed:
        for path in sorted({*files, *above} - {"."}):
            entry = tarfile.TarInfo(path)
            entry.mtime = timestamp
            entry.uname = entry.gname = "root"
            if path in files:
                entry.size = len(files[path].data)
                entry.mode = files[path].mode
                packed.addfile(entry, io.BytesIO(files[path].data))
            else:
                entry.type = tarfile.DIRTYPE
                entry.mode = 0o1777 if path == "tmp" else 0o755
                packed.addfile(entry)
    return buffer.getvalue()


class Layout:
    """The files of an OCI layout: blobs are named by their digests."""

    def __init__(self) -> None:
        self.files = {"oci-layout": File(b'{"imageLayoutVersion":"1.0.0"}')}

    def add(self, data: bytes, kind: str) -> dict[str, Any]:
        """Adds a blob, and returns its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = File(data)
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(data),
        }

    def add_json(self, value: dict[str, Any], kind: str) -> dict[str, Any]:
        return self.add(json.dumps(value, sort_keys=True).encode(), kind)


def build(package: Package, folder: pathlib.Path) -> pathlib.Path:
    files = {path: file for path, file in package.files.items() if path.startswith(WANTED)} | ACCOUNTS
    layer = archive(files, FOLDERS, package.timestamp)
    created = package.date.strftime("%Y-%m-%dT%H:%M:%SZ")
    layout = Layout()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": {
            "Entrypoint": ["/usr/bin/ckptd"],
            "Env": ["PATH=/usr/bin"],
            "Volumes": {"/data": {}, "/run/ckptd": {}},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "ckptd",
                "org.opencontainers.image.version": package.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "tools/package"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layout.add_json(config, "config.v1+json"),
        "layers": [layout.add(gzip.compress(layer, 6, mtime=0), "layer.v1.tar+gzip")],
    }
    image = layout.add_json(manifest, "manifest.v1+json")
    # The name is the one that podman shows.
    image["annotations"] = {"org.opencontainers.image.ref.name": f"localhost/ckptd:{package.version}"}
    index = {"schemaVersion": 2, "manifests": [image]}
    layout.files["index.json"] = File(json.dumps(index, sort_keys=True).encode())
    target = folder / f"ckptd-{package.version}-oci.tar"
    target.write_bytes(archive(layout.files, (), package.timestamp))
    return target
