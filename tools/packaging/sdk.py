#!/usr/bin/python3
"""The C++ library for programs outside this tree, as it is installed: header, shared object, pkg-config, CMake.

As a program it writes all that below one folder, for tools/sdk. The files find each other by their places, so the
folder may be moved.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import tempfile
from typing import NamedTuple

SONAME = "libckptd_client.so.0"
DOCUMENTS = "share/doc/ckptd"
EXAMPLES = ("CMakeLists.txt", "train.cc")

PKG_CONFIG = """\
prefix=${{pcfiledir}}/{up_to_prefix}
libdir=${{pcfiledir}}/..
includedir=${{prefix}}/include

Name: ckptd
Description: client library of ckptd, a checkpoint daemon for machine-learning training
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -lckptd_client
"""

CMAKE = """\
# find_package(ckptd) gives the target ckptd::client, whose users are compiled as C++20.
get_filename_component(_ckptd_libdir "${{CMAKE_CURRENT_LIST_DIR}}/../.." ABSOLUTE)
get_filename_component(_ckptd_prefix "${{_ckptd_libdir}}/{up_to_prefix}" ABSOLUTE)
if(NOT TARGET ckptd::client)
  add_library(ckptd::client SHARED IMPORTED)
  set_target_properties(ckptd::client PROPERTIES
    IMPORTED_LOCATION "${{_ckptd_libdir}}/{soname}"
    IMPORTED_SONAME "{soname}"
    INTERFACE_INCLUDE_DIRECTORIES "${{_ckptd_prefix}}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
endif()
unset(_ckptd_libdir)
unset(_ckptd_prefix)
"""

# Programs run with every later library of the same SONAME; they may need what the version that they ask for has.
CMAKE_VERSION = """\
set(PACKAGE_VERSION "{version}")
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"""


class Sdk(NamedTuple):
    """What does not depend on where it is installed."""

    library: bytes
    header: bytes
    examples: dict[str, bytes]
    version: str

    def runtime(self, libdir: str) -> dict[str, bytes]:
        """What a program needs to run. `libdir` is below the prefix, such as "lib"."""
        return {f"{libdir}/{SONAME}": self.library}

    def development(self, libdir: str, documents: str) -> dict[str, bytes]:
        """What it takes to compile a program, but for the link libckptd_client.so to the library."""
        up = "/".join([".."] * len(libdir.split("/")))
        words = {"version": self.version, "soname": SONAME}
        return {
            "include/ckptd/client.h": self.header,
            f"{libdir}/pkgconfig/ckptd.pc": PKG_CONFIG.format(up_to_prefix=f"../{up}", **words).encode(),
            f"{libdir}/cmake/ckptd/ckptd-config.cmake": CMAKE.format(up_to_prefix=up, **words).encode(),
            f"{libdir}/cmake/ckptd/ckptd-config-version.cmake": CMAKE_VERSION.format(**words).encode(),
            **{f"{documents}/examples/cpp/{name}": data for name, data in self.examples.items()},
        }


def links(libdir: str) -> dict[str, str]:
    """Symbolic links and what they lead to."""
    return {f"{libdir}/libckptd_client.so": SONAME}


def stripped(path: pathlib.Path) -> bytes:
    with tempfile.NamedTemporaryFile() as copy:
        subprocess.run(["strip", "--strip-unneeded", "-o", copy.name, path], check=True, timeout=60)
        return pathlib.Path(copy.name).read_bytes()


def read(folder: pathlib.Path, version: str) -> Sdk:
    """What tools/sdk has built in `folder`."""
    examples = {name: (folder / f"{DOCUMENTS}/examples/cpp/{name}").read_bytes() for name in EXAMPLES}
    library = (folder / f"lib/{SONAME}").read_bytes()
    return Sdk(library, (folder / "include/ckptd/client.h").read_bytes(), examples, version)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    path = pathlib.Path
    parser.add_argument("--library", type=path, required=True, help="as it is built")
    parser.add_argument("--header", type=path, required=True, help="ckptd/client.h")
    parser.add_argument("--examples", type=path, required=True, help=f"the folder with {', '.join(EXAMPLES)}")
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=path, required=True, help="a folder that does not exist yet")
    args = parser.parse_args()

    examples = {name: (args.examples / name).read_bytes() for name in EXAMPLES}
    built = Sdk(stripped(args.library), args.header.read_bytes(), examples, args.version)
    for name, data in (built.runtime("lib") | built.development("lib", DOCUMENTS)).items():
        (args.out / name).parent.mkdir(parents=True, exist_ok=True)
        (args.out / name).write_bytes(data)
    for name, target in links("lib").items():
        (args.out / name).symlink_to(target)


if __name__ == "__main__":
    main()
