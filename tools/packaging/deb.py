"""The Debian package: the files of contents.py with deploy/debian's scripts, by dpkg-deb."""

from __future__ import annotations

import gzip
import hashlib
import os
import pathlib
import subprocess
import tempfile

from contents import DOCUMENTS, File, Package, compressed, write_tree

MAINTAINER = "ckptd maintainers <maintainers@ckptd.invalid>"
SCRIPTS = ("postinst", "prerm", "postrm")

CONTROL = """\
Package: ckptd
Version: {version}
Architecture: amd64
Maintainer: {maintainer}
Installed-Size: {kibibytes}
Depends: init-system-helpers (>= 1.54~), systemd
Section: admin
Priority: optional
Description: checkpoint daemon for machine-learning training
 ckptd takes checkpoints of training jobs off the training step: a trainer
 copies its state into the daemon's memory and trains on, and the daemon makes
 the checkpoint durable, publishes it with one rename, deletes old ones, and
 decides which one a restarted job resumes from.
 .
 This package has the daemon, as a service, and ckptctl. Trainers use the
 Python package ckptd, which is a wheel.
"""

COPYRIGHT = """\
ckptd {version}
Copyright 2026 the contributors of ckptd
License: Apache-2.0, in /usr/share/common-licenses/Apache-2.0

The programs are linked statically. The copyright and licences of what is
linked into them are in /usr/share/doc/ckptd/third_party, a file for each of
Debian's packages, and the versions in /usr/share/doc/ckptd/ckptd.spdx.json:

{libraries}
"""


def changelog(package: Package, name: str, has: str) -> bytes:
    """`has`: where the changes are."""
    date = package.date.strftime("%a, %d %b %Y %H:%M:%S +0000")
    text = (
        f"{name} ({package.version}) stable; urgency=medium\n\n"
        f"  * {package.version}: {has} has the changes.\n\n"
        f" -- {MAINTAINER}  {date}\n"
    )
    return gzip.compress(text.encode(), mtime=0)


def data_files(package: Package, scripts: pathlib.Path) -> dict[str, File]:
    files = compressed(package.files)
    del files[f"{DOCUMENTS}/LICENSE"]  # Debian has it in /usr/share/common-licenses.
    libraries = "\n".join(f" * {name}" for name in sorted(package.third_party))
    files[f"{DOCUMENTS}/copyright"] = File(
        COPYRIGHT.format(version=package.version, libraries=libraries).encode()
    )
    files[f"{DOCUMENTS}/changelog.gz"] = File(changelog(package, "ckptd", f"/{DOCUMENTS}/CHANGELOG.md.gz"))
    files["usr/share/lintian/overrides/ckptd"] = File((scripts / "lintian-overrides").read_bytes())
    return files


def control(package: Package, template: str, files: dict[str, File]) -> File:
    kibibytes = sum(-(-len(file.data) // 1024) for file in files.values())
    return File(template.format(version=package.version, maintainer=MAINTAINER, kibibytes=kibibytes).encode())


def checksums(files: dict[str, File]) -> File:
    listed = ((path, file) for path, file in sorted(files.items()) if not file.link)
    return File("".join(f"{hashlib.md5(file.data).hexdigest()}  {path}\n" for path, file in listed).encode())


def control_files(package: Package, files: dict[str, File], scripts: pathlib.Path) -> dict[str, File]:
    unchanged = {path: file for path, file in files.items() if path not in package.configuration}
    return {
        "DEBIAN/control": control(package, CONTROL, files),
        "DEBIAN/conffiles": File("".join(f"/{path}\n" for path in package.configuration).encode()),
        "DEBIAN/md5sums": checksums(unchanged),
        **{f"DEBIAN/{script}": File((scripts / script).read_bytes(), 0o755) for script in SCRIPTS},
    }


def pack(package: Package, name: str, tree_files: dict[str, File], folder: pathlib.Path) -> pathlib.Path:
    """`tree_files`: what is installed, and below DEBIAN/ what dpkg reads."""
    target = folder / f"{name}_{package.version}_amd64.deb"
    with tempfile.TemporaryDirectory(prefix="ckptd-deb-") as tree:
        write_tree(tree_files, pathlib.Path(tree))
        pathlib.Path(tree).chmod(0o755)
        # One thread, as their number decides where xz cuts. Level 1 is seven times as quick as 6 and 12 % larger.
        packer = ["-Zxz", "-z1", "--threads-max=1"]
        command = ["dpkg-deb", "--root-owner-group", *packer, "--build", tree, str(target)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(package.timestamp)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, timeout=600)
    return target


def build(package: Package, scripts: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    files = data_files(package, scripts)
    return pack(package, "ckptd", files | control_files(package, files, scripts), folder)
