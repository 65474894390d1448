"""The RPMs of deploy/rpm/ckptd.spec, by rpmbuild: ckptd, and the C++ library in ckptd-libs and ckptd-devel."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from contents import DOCUMENTS, File, Package, compressed, write_tree

# Debian's place -> that of Fedora and SUSE.
PLACES = {
    "lib/systemd/": "usr/lib/systemd/",
    "usr/share/zsh/vendor-completions/": "usr/share/zsh/site-functions/",
}
LIBDIR = "lib64"


def placed(path: str) -> str:
    for debian, other in PLACES.items():
        if path.startswith(debian):
            return other + path.removeprefix(debian)
    return path


def library_files(package: Package) -> dict[str, File]:
    # rpmbuild finds what a library needs and provides only if it is executable, as libraries are on Fedora.
    library = {path: file._replace(mode=0o755) for path, file in package.library(LIBDIR).items()}
    folder = "usr/share/doc/ckptd-libs"
    licence = {f"{folder}/LICENSE": package.files[f"{DOCUMENTS}/LICENSE"]}
    return library | package.linked_in(folder) | licence


def files_of(package: Package) -> dict[str, dict[str, File]]:
    """By the name of a package in the spec."""
    return {
        "daemon": {placed(path): file for path, file in compressed(package.files).items()},
        "libs": library_files(package),
        "devel": package.development(LIBDIR, "share/doc/ckptd-devel"),
    }


def listing(files: dict[str, File], configuration: list[str]) -> str:
    """Files, and the folders that no other package has."""
    parents = {parent for path in files for parent in pathlib.PurePath(path).parents}
    own = sorted(str(folder) for folder in parents if any("ckptd" in part for part in folder.parts))
    lines = [f"%dir %attr(755, root, root) /{folder}" for folder in own]
    for path, file in files.items():
        kind = "%config(noreplace) " if path in configuration else ""
        mode = "-" if file.link else f"{file.mode:o}"
        lines.append(f"{kind}%attr({mode}, root, root) /{path}")
    return "\n".join(lines) + "\n"


def build(package: Package, spec: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the package of the daemon, and after it those of the library."""
    if shutil.which("rpmbuild") is None:
        sys.exit("rpm.py: rpmbuild is not installed; install Debian's package rpm, or name the other kinds")
    with tempfile.TemporaryDirectory(prefix="ckptd-rpm-") as temporary:
        top = pathlib.Path(temporary)
        for name, files in files_of(package).items():
            write_tree(files, top / "tree")
            (top / f"listing-{name}").write_text(listing(files, package.configuration))
        macros = {
            "_topdir": f"{top}/build",
            "package_version": package.version,
            "tree": f"{top}/tree",
            "listing": f"{top}/listing",
            # The files are as they shall be, and nothing of this machine and of this day goes in.
            "debug_package": "%{nil}",
            "__os_install_post": "%{nil}",
            "_build_id_links": "none",
            "_buildhost": "localhost",
            "_binary_payload": "w1.xzdio",
            "use_source_date_epoch_as_buildtime": "1",
            "clamp_mtime_to_source_date_epoch": "1",
        }
        defined = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
        command = ["rpmbuild", "-bb", "--quiet", "--target=x86_64", *defined, str(spec)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(package.timestamp), "HOME": temporary}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, timeout=600)
        built = sorted((top / "build/RPMS").rglob("*.rpm"))
        targets = [folder / path.name for path in built]
        for path, target in zip(built, targets):
            target.write_bytes(path.read_bytes())
    return targets
