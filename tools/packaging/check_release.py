#!/usr/bin/python3
"""Checks that a checkout and the packages made of it are a release: tools/release runs it before and after the build.

Prints each mistake in a line, and exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from typing import Callable, Iterator

PROGRAMS = ("ckptd", "ckptctl")
FILES = {
    "wheel": "ckptd-{0}-py3-none-manylinux2014_x86_64.whl",
    "deb": "ckptd_{0}_amd64.deb",
    "library": "libckptd-client0_{0}_amd64.deb",
    "development": "libckptd-dev_{0}_amd64.deb",
    "rpm": "ckptd-{0}-1.x86_64.rpm",
    "rpm_libs": "ckptd-libs-{0}-1.x86_64.rpm",
    "rpm_devel": "ckptd-devel-{0}-1.x86_64.rpm",
    "tarball": "ckptd-{0}-linux-x86_64.tar.gz",
    "image": "ckptd-{0}-oci.tar",
}


def checkout_mistakes(checkout: pathlib.Path, version: str) -> Iterator[str]:
    """What keeps the commit from being a release."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        yield f'VERSION is "{version}"; a release is called MAJOR.MINOR.PATCH'
    sections = re.split(r"^## ", (checkout / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    by_title = {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}
    if by_title.get("[Unreleased]", "").strip():
        yield f"CHANGELOG.md has lines under Unreleased; move them to a section [{version}] - YYYY-MM-DD"
    closed = [title for title in by_title if title.startswith(f"[{version}] - ")]
    if not closed:
        yield f"CHANGELOG.md has no section [{version}] - YYYY-MM-DD"
    for title in closed:
        date = title.removeprefix(f"[{version}] - ")
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            yield f'CHANGELOG.md: the date of {version} is "{date}"; it is written YYYY-MM-DD'
        if "### Upgrade" not in by_title[title]:
            yield f"CHANGELOG.md: the section of {version} has no part Upgrade, which says what to do"
    if not (checkout / "tests/compat/data" / version).is_dir():
        yield (
            f"tests/compat/data/{version} is missing, which later versions are tested with; make it with the release's"
            f" wheel: tests/compat/record.py tests/compat/data/{version}"
        )
    page = (checkout / "docs/install.md").read_text()
    if others := set(re.findall(r"ckptd(?:-[a-z]+\d?)?[-_:](\d+\.\d+\.\d+)", page)) - {version}:
        yield f"docs/install.md names the versions {', '.join(sorted(others))}; it is {version}"


def output_of(*command: str | pathlib.Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.strip()


def members(archive: tarfile.TarFile, prefix: str) -> dict[str, bytes]:
    found = {}
    for name in PROGRAMS:
        member = archive.extractfile(f"{prefix}{name}")
        assert member is not None
        found[name] = member.read()
    return found


def of_wheel(path: pathlib.Path, version: str) -> tuple[str, dict[str, bytes]]:
    with zipfile.ZipFile(path) as wheel:
        metadata = wheel.read(f"ckptd-{version}.dist-info/METADATA").decode()
        programs = {name: wheel.read(f"ckptd-{version}.data/scripts/{name}") for name in PROGRAMS}
    named = re.search(r"^Version: (.*)$", metadata, re.MULTILINE)
    return named[1] if named else "", programs


def of_deb(path: pathlib.Path, version: str) -> tuple[str, dict[str, bytes]]:
    unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True, timeout=120)
    with tarfile.open(fileobj=io.BytesIO(unpacked.stdout)) as archive:
        return output_of("dpkg-deb", "--field", path, "Version"), members(archive, "./usr/bin/")


def of_client_deb(path: pathlib.Path, version: str) -> tuple[str, dict[str, bytes]]:
    """It has none of the programs."""
    return output_of("dpkg-deb", "--field", path, "Version"), {}


def of_rpm(path: pathlib.Path, version: str) -> tuple[str, dict[str, bytes]]:
    with path.open("rb") as file:
        unpacked = subprocess.run(["rpm2archive", "-"], stdin=file, check=True, capture_output=True, timeout=120)
    with tarfile.open(fileobj=io.BytesIO(unpacked.stdout)) as archive:
        prefix = "./usr/bin/" if "./usr/bin/ckptd" in archive.getnames() else "usr/bin/"
        return output_of("rpm", "-qp", "--queryformat=%{VERSION}", path), members(archive, prefix)


def of_client_rpm(path: pathlib.Path, version: str) -> tuple[str, dict[str, bytes]]:
    """It has none of the programs."""
    return output_of("rpm", "-qp", "--queryformat=%{VERSION}", path), {}


def of_tarball(path: pathlib.Path, version: str) -> tuple[str, dict[str, bytes]]:
    with tarfile.open(path) as archive:
        (top,) = {name.partition("/")[0] for name in archive.getnames()}
        return top.removeprefix("ckptd-"), members(archive, f"{top}/bin/")


def of_image(path: pathlib.Path, version: str) -> tuple[str, dict[str, bytes]]:
    with tarfile.open(path) as layout:

        def blob(digest: str) -> bytes:
            member = layout.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert member is not None
            return member.read()

        index = layout.extractfile("index.json")
        assert index is not None
        (manifest,) = json.loads(index.read())["manifests"]
        name = manifest["annotations"]["org.opencontainers.image.ref.name"]
        (layer,) = json.loads(blob(manifest["digest"]))["layers"]
        with tarfile.open(fileobj=io.BytesIO(blob(layer["digest"]))) as archive:
            return name.rpartition(":")[2], members(archive, "usr/bin/")


READERS: dict[str, Callable[[pathlib.Path, str], tuple[str, dict[str, bytes]]]] = {
    "wheel": of_wheel,
    "deb": of_deb,
    "library": of_client_deb,
    "development": of_client_deb,
    "rpm": of_rpm,
    "rpm_libs": of_client_rpm,
    "rpm_devel": of_client_rpm,
    "tarball": of_tarball,
    "image": of_image,
}


def said_by(program: bytes) -> str:
    """What a program answers to --version."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(program)
    path = pathlib.Path(file.name)
    try:
        path.chmod(0o755)
        return output_of(path, "--version")
    finally:
        path.unlink()


def package_mistakes(packages: pathlib.Path, version: str) -> Iterator[str]:
    """What is missing, has another version, or has other programs than the wheel."""
    digests: dict[str, dict[str, str]] = {}
    expected = {kind: name.format(version) for kind, name in FILES.items()}
    for kind, name in expected.items():
        path = packages / name
        if not path.exists():
            yield f"{name} is missing"
            continue
        found, programs = READERS[kind](path, version)
        if found != version:
            yield f'{name} says that it has the version "{found}"; it is {version}'
        for program, data in programs.items():
            if version not in said_by(data).split():
                yield f'{program} of {name} answers "{said_by(data)}" to --version; it is {version}'
        if programs:
            digests[kind] = {program: hashlib.sha256(data).hexdigest() for program, data in programs.items()}
    for kind, found_here in digests.items():
        if found_here != digests.get("wheel", found_here):
            yield f"{expected[kind]} has other programs than the wheel"
    if others := {path.name for path in packages.glob("*ckptd*")} - set(expected.values()):
        yield f"{', '.join(sorted(others))} is no package of {version}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = pathlib.Path
    parser.add_argument("--checkout", type=path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--packages", type=path, help="the folder with the packages; default: check the checkout alone")
    args = parser.parse_args()
    mistakes = list(checkout_mistakes(args.checkout, args.version))
    if args.packages is not None:
        mistakes += package_mistakes(args.packages, args.version)
    for mistake in mistakes:
        print(f"check_release.py: {mistake}", file=sys.stderr)
    sys.exit(1 if mistakes else 0)


if __name__ == "__main__":
    main()
