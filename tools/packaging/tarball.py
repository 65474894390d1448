"""The tarball: the files of contents.py in one folder, for any x86-64 Linux and without root."""

from __future__ import annotations

import gzip
import io
import pathlib
import tarfile

from contents import Package


def build(package: Package, folder: pathlib.Path) -> pathlib.Path:
    stem = f"ckptd-{package.version}"
    target = folder / f"{stem}-linux-x86_64.tar.gz"
    installed = package.files | package.library("lib") | package.development("lib")
    files = {f"{stem}/{path.removeprefix('usr/')}": file for path, file in installed.items()}
    with target.open("wb") as out, gzip.GzipFile("", "wb", 6, out, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path, file in sorted(files.items()):
                entry = tarfile.TarInfo(path)
                entry.size = len(file.data)
                entry.mode = file.mode
                entry.mtime = package.timestamp
                if file.link:
                    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, file.link, 0o777
                entry.uname = entry.gname = "root"
                archive.addfile(entry, io.BytesIO(file.data))
    return target
