"""The Debian packages of the C++ library: libckptd-client0, which programs need to run, and libckptd-dev."""

from __future__ import annotations

import pathlib

import deb
from contents import DOCUMENTS, File, Package

LIBRARY = "libckptd-client0"
DEVELOPMENT = "libckptd-dev"
LIBDIR = "lib/x86_64-linux-gnu"

# The versions are those whose symbols the library uses; tests/sdk compares.
LIBRARY_CONTROL = """\
Package: libckptd-client0
Source: ckptd
Version: {version}
Architecture: amd64
Multi-Arch: same
Maintainer: {maintainer}
Installed-Size: {kibibytes}
Depends: libc6 (>= 2.34), libgcc-s1 (>= 3.0), libstdc++6 (>= 12)
Section: libs
Priority: optional
Description: checkpoint daemon for machine-learning training, C++ library
 ckptd takes checkpoints of training jobs off the training step: a trainer
 copies its state into the daemon's memory and trains on, and the daemon makes
 the checkpoint durable.
 .
 This package has the library of trainers in C++. The daemon is in the package
 ckptd; a container with trainers does not need it.
"""

DEVELOPMENT_CONTROL = """\
Package: libckptd-dev
Source: ckptd
Version: {version}
Architecture: amd64
Multi-Arch: same
Maintainer: {maintainer}
Installed-Size: {kibibytes}
Depends: libckptd-client0 (= {version})
Section: libdevel
Priority: optional
Description: checkpoint daemon for machine-learning training, development files
 ckptd takes checkpoints of training jobs off the training step: a trainer
 copies its state into the daemon's memory and trains on, and the daemon makes
 the checkpoint durable.
 .
 This package has what it takes to compile trainers in C++: the header, files
 for pkg-config and CMake, and an example.
"""

# Programs that are packaged need the version that they were compiled with, or a later one.
SHLIBS = "libckptd_client 0 libckptd-client0 (>= {version})\n"
TRIGGERS = "activate-noawait ldconfig\n"
OVERRIDES = f"""\
# It links statically, so that it does not meet a program's own gRPC or protobuf. What is linked in is in
# /usr/share/doc/{LIBRARY}/ckptd.spdx.json.
{LIBRARY}: embedded-library *
"""


def documents(package: Package, name: str) -> dict[str, File]:
    folder = f"usr/share/doc/{name}"
    libraries = "\n".join(f" * {library}" for library in sorted(package.third_party))
    text = deb.COPYRIGHT.format(version=package.version, libraries=libraries)
    return {
        f"{folder}/copyright": File(text.replace(f"/{DOCUMENTS}/", f"/usr/share/doc/{LIBRARY}/").encode()),
        f"{folder}/changelog.gz": File(deb.changelog(package, name, "CHANGELOG.md of ckptd")),
    }


def build_library(package: Package, folder: pathlib.Path) -> pathlib.Path:
    files = package.library(LIBDIR) | documents(package, LIBRARY)
    files |= package.linked_in(f"usr/share/doc/{LIBRARY}")
    files[f"usr/share/lintian/overrides/{LIBRARY}"] = File(OVERRIDES.encode())
    dpkg = {
        "DEBIAN/control": deb.control(package, LIBRARY_CONTROL, files),
        "DEBIAN/md5sums": deb.checksums(files),
        "DEBIAN/shlibs": File(SHLIBS.format(version=package.version).encode()),
        "DEBIAN/triggers": File(TRIGGERS.encode()),
    }
    return deb.pack(package, LIBRARY, files | dpkg, folder)


def build_development(package: Package, folder: pathlib.Path) -> pathlib.Path:
    files = package.development(LIBDIR, f"share/doc/{DEVELOPMENT}") | documents(package, DEVELOPMENT)
    dpkg = {
        "DEBIAN/control": deb.control(package, DEVELOPMENT_CONTROL, files),
        "DEBIAN/md5sums": deb.checksums(files),
    }
    return deb.pack(package, DEVELOPMENT, files | dpkg, folder)
