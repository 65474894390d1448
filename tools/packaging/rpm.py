"""The RPM: the files of contents.py with deploy/rpm's scripts, by rpmbuild."""

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


def placed(path: str) -> str:
    for debian, other in PLACES.items():
        if path.startswith(debian):
            return other + path.removeprefix(debian)
    return path


def listing(package: Package, files: dict[str, File]) -> str:
    lines = [f"%dir %attr(755, root, root) /{folder}" for folder in ("etc/ckptd", DOCUMENTS)]
    for path, file in files.items():
        kind = "%config(noreplace) " if path in package.configuration else ""
        lines.append(f"{kind}%attr({file.mode:o}, root, root) /{path}")
    return "\n".join(lines) + "\n"


def build(package: Package, spec: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    if shutil.which("rpmbuild") is None:
        sys.exit("rpm.py: rpmbuild is not installed; install Debian's package rpm, or name the other kinds")
    files = {placed(path): file for path, file in compressed(package.files).items()}
    with tempfile.TemporaryDirectory(prefix="ckptd-rpm-") as temporary:
        top = pathlib.Path(temporary)
        write_tree(files, top / "tree")
        (top / "listing").write_text(listing(package, files))
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
        (built,) = (top / "build/RPMS").rglob("*.rpm")
        target = folder / built.name
        target.write_bytes(built.read_bytes())
    return target
