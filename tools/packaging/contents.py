"""What is installed where: one table for the .deb, the .rpm, the image and the tarball.

The programs and the licences come from the wheel, the other files from the checkout, and the manual pages and the
completion scripts from the programs themselves.
"""

from __future__ import annotations

import datetime
import gzip
import json
import pathlib
import re
import subprocess
import tempfile
import zipfile
from typing import NamedTuple

import man_pages
import sdk


class File(NamedTuple):
    data: bytes
    mode: int = 0o644
    link: str = ""  # What a symbolic link leads to; then there is no data.


# Below the root directory. A tarball has the same without "usr/".
DOCUMENTS = "usr/share/doc/ckptd"
PROGRAMS = {"ckptd": "usr/bin/ckptd", "ckptctl": "usr/bin/ckptctl"}
FROM_CHECKOUT = {
    "LICENSE": f"{DOCUMENTS}/LICENSE",
    "CHANGELOG.md": f"{DOCUMENTS}/CHANGELOG.md",
    "deploy/config/ckptd.txtpb": "etc/ckptd/ckptd.txtpb",
    "deploy/monitoring/alerts.yml": f"{DOCUMENTS}/examples/alerts.yml",
    "deploy/monitoring/dashboard.json": f"{DOCUMENTS}/examples/dashboard.json",
    "deploy/slurm/epilog.sh": f"{DOCUMENTS}/examples/slurm/epilog.sh",
    "deploy/slurm/job.sh": f"{DOCUMENTS}/examples/slurm/job.sh",
    "deploy/slurm/prolog.sh": f"{DOCUMENTS}/examples/slurm/prolog.sh",
    "deploy/systemd/ckptd.service": "lib/systemd/system/ckptd.service",
    "deploy/systemd/ckptd.service.d/cluster.conf": f"{DOCUMENTS}/examples/cluster.conf",
    "deploy/systemd/ckptd.service.d/metrics-socket.conf": f"{DOCUMENTS}/examples/metrics-socket.conf",
    "deploy/systemd/ckptd.service.d/upload.conf": f"{DOCUMENTS}/examples/upload.conf",
    "deploy/systemd/sysctl.d/ckptd.conf": "etc/sysctl.d/ckptd.conf",
    "deploy/systemd/sysusers.d/ckptd.conf": "usr/lib/sysusers.d/ckptd.conf",
    "deploy/systemd/tmpfiles.d/ckptd.conf": "usr/lib/tmpfiles.d/ckptd.conf",
}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/ckptctl",
    "fish": "usr/share/fish/vendor_completions.d/ckptctl.fish",
    "zsh": "usr/share/zsh/vendor-completions/_ckptctl",
}


class Package(NamedTuple):
    """What all packages are made of."""

    version: str
    date: datetime.datetime  # Of every file.
    files: dict[str, File]  # By the path below the root directory.
    third_party: dict[str, str]  # Copyright files of what is linked in, by the name of Debian's package.
    client: sdk.Sdk  # The C++ library for programs.

    @property
    def timestamp(self) -> int:
        return int(self.date.timestamp())

    @property
    def configuration(self) -> list[str]:
        """Files that an operator changes: an upgrade keeps the changes."""
        return sorted(path for path in self.files if path.startswith("etc/"))

    def library(self, libdir: str) -> dict[str, File]:
        """What C++ programs need to run; `libdir` is such as "lib"."""
        return {f"usr/{path}": File(data) for path, data in self.client.runtime(libdir).items()}

    def development(self, libdir: str, documents: str = sdk.DOCUMENTS) -> dict[str, File]:
        """What it takes to compile them."""
        files = {
            f"usr/{path}": File(data) for path, data in self.client.development(libdir, documents).items()
        }
        return files | {f"usr/{path}": File(b"", link=target) for path, target in sdk.links(libdir).items()}

    def linked_in(self, documents: str) -> dict[str, File]:
        """The bill of materials and the licences, where `documents` is those of another package than ckptd."""
        names = {path: path.removeprefix(f"{DOCUMENTS}/") for path in self.files}
        shown = ("third_party/", "ckptd.spdx.json")
        return {
            f"{documents}/{names[path]}": file
            for path, file in self.files.items()
            if names[path].startswith(shown)
        }


def from_wheel(wheel: pathlib.Path, date: datetime.datetime) -> tuple[dict[str, File], dict[str, str]]:
    """The programs with the bill of materials, and the licences of what is linked into them."""
    files: dict[str, File] = {}
    third_party = {}
    with zipfile.ZipFile(wheel) as opened:
        for name in opened.namelist():
            data = opened.read(name)
            if match := re.fullmatch(r"[^/]+\.data/scripts/(\w+)", name):
                files[PROGRAMS[match[1]]] = File(data, 0o755)
            elif match := re.fullmatch(r"[^/]+\.dist-info/licenses/third_party/(.+)", name):
                third_party[match[1]] = data.decode(errors="replace")
            elif re.fullmatch(r"[^/]+\.dist-info/sboms/.+", name):
                bill = json.loads(data)
                bill["creationInfo"]["created"] = date.strftime("%Y-%m-%dT%H:%M:%SZ")
                text = json.dumps(bill, indent=1) + "\n"
                files[f"{DOCUMENTS}/{pathlib.PurePath(name).name}"] = File(text.encode())
    return files, third_party


def from_programs(
    programs: dict[str, bytes], sample: str, version: str, day: datetime.date
) -> dict[str, File]:
    """What the programs say of themselves: manual pages and completion scripts."""
    with tempfile.TemporaryDirectory(prefix="ckptd-package-") as folder:
        paths = {}
        for name, data in programs.items():
            paths[name] = pathlib.Path(folder, name)
            paths[name].write_bytes(data)
            paths[name].chmod(0o755)
        files = {
            "usr/share/man/man1/ckptctl.1": File(man_pages.ckptctl_page(paths["ckptctl"], version, day)),
            "usr/share/man/man5/ckptd.config.5": File(man_pages.config_page(sample, version, day)),
            "usr/share/man/man8/ckptd.8": File(man_pages.ckptd_page(paths["ckptd"], version, day)),
        }
        for shell, path in COMPLETIONS.items():
            command = [paths["ckptctl"], "completion", shell]
            files[path] = File(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return files


def collect(
    wheel: pathlib.Path, library: pathlib.Path, checkout: pathlib.Path, version: str, date: datetime.datetime
) -> Package:
    files, third_party = from_wheel(wheel, date)
    files |= {path: File((checkout / source).read_bytes()) for source, path in FROM_CHECKOUT.items()}
    for name, text in third_party.items():
        files[f"{DOCUMENTS}/third_party/{name}"] = File(text.encode())
    programs = {name: files[path].data for name, path in PROGRAMS.items()}
    sample = (checkout / "deploy/config/ckptd.txtpb").read_text()
    files |= from_programs(programs, sample, version, date.date())
    return Package(version, date, dict(sorted(files.items())), third_party, sdk.read(library, version))


def compressed(files: dict[str, File]) -> dict[str, File]:
    """As distributions want it: manual pages and changelogs with gzip."""
    result = {}
    for path, file in files.items():
        if path.startswith("usr/share/man/") or "/CHANGELOG" in path:
            result[f"{path}.gz"] = File(gzip.compress(file.data, mtime=0), file.mode)
        else:
            result[path] = file
    return result


def write_tree(files: dict[str, File], root: pathlib.Path) -> None:
    """Writes the files as they will be installed. Folders are for everybody, whatever the umask is."""
    for path, file in files.items():
        target = root / path
        for folder in reversed(target.relative_to(root).parents):
            (root / folder).mkdir(exist_ok=True)
            (root / folder).chmod(0o755)
        if file.link:
            target.symlink_to(file.link)
            continue
        target.write_bytes(file.data)
        target.chmod(file.mode)
