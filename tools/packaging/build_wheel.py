#!/usr/bin/python3
"""Packs the wheel: the Python package, its generated code and native library, and the programs as scripts.

The same inputs give the same bytes: nothing of the day, the user or the folder goes in.
"""

import argparse
import base64
import hashlib
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile

# The programs are static and run on any kernel that is new enough; the native library needs glibc 2.17.
TAG = "py3-none-manylinux2014_x86_64"
TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def metadata(project: dict, version: str) -> str:
    """The core metadata of pyproject.toml's table [project]."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License: {project['license']}",
        f"Keywords: {','.join(project['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
    ]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {requirement}; extra == "{extra}"' for requirement in requirements]
    return "\n".join(lines) + "\n"


def entry_points(project: dict) -> str:
    """The commands that an installer makes scripts for, and what other packages look for in this one."""
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    lines = []
    for group, places in groups.items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in sorted(places.items()))]
    return "\n".join(lines) + "\n"


def module_name(path: pathlib.Path) -> str:
    """Where a module goes: client/python/X and (generated) .../bin/proto/X are both X."""
    text = path.as_posix()
    for root in ("client/python/", "/bin/proto/"):
        if root in text:
            return text.split(root, 1)[1]
    sys.exit(f"build_wheel.py: {path} is neither below client/python nor generated from proto/")


def license_name(path: pathlib.Path) -> str:
    """The Debian package of .../PACKAGE/debian/copyright or .../licenses/PACKAGE."""
    return path.parent.parent.name if path.name == "copyright" else path.name


def stripped(path: pathlib.Path) -> bytes:
    with tempfile.NamedTemporaryFile() as copy:
        subprocess.run(["strip", "--strip-unneeded", "-o", copy.name, path], check=True)
        return pathlib.Path(copy.name).read_bytes()


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def write_wheel(out: pathlib.Path, files: dict[str, tuple[int, bytes]], info: str) -> None:
    """Writes name → (mode, bytes), RECORD last, as the format asks for."""
    record = f"{info}/RECORD"
    lines = [record_line(name, data) for name, (_, data) in sorted(files.items())]
    files = dict(sorted(files.items())) | {record: (0o644, "".join([*lines, f"{record},,\n"]).encode())}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, (mode, data) in files.items():
            entry = zipfile.ZipInfo(name, TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix: the next field is a mode
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    path = pathlib.Path
    parser.add_argument("--out", type=path, required=True)
    parser.add_argument("--project", type=path, required=True, help="pyproject.toml")
    parser.add_argument("--version-file", type=path, required=True)
    parser.add_argument("--license", type=path, required=True)
    parser.add_argument("--native", type=path, required=True, help="the native library of the package")
    parser.add_argument("--sbom", type=path, required=True, help="what is linked into the programs")
    parser.add_argument("--programs", type=path, nargs="+", required=True)
    parser.add_argument("--modules", type=path, nargs="+", required=True)
    parser.add_argument("--third-party-licenses", type=path, nargs="+", required=True)
    args = parser.parse_args()

    project = tomllib.loads(args.project.read_text())["project"]
    version = args.version_file.read_text().strip()
    stem = f"{project['name']}-{version}"
    info = f"{stem}.dist-info"

    files = {module_name(module): (0o644, module.read_bytes()) for module in args.modules}
    if len(files) < len(set(args.modules)):
        sys.exit("build_wheel.py: two modules of one name")
    files[f"{project['name']}/_native.so"] = (0o755, stripped(args.native))
    for program in args.programs:
        files[f"{stem}.data/scripts/{program.name}"] = (0o755, stripped(program))
    files[f"{info}/METADATA"] = (0o644, metadata(project, version).encode())
    files[f"{info}/entry_points.txt"] = (0o644, entry_points(project).encode())
    files[f"{info}/WHEEL"] = (
        0o644,
        f"Wheel-Version: 1.0\nGenerator: ckptd\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode(),
    )
    files[f"{info}/licenses/LICENSE"] = (0o644, args.license.read_bytes())
    files[f"{info}/sboms/{args.sbom.name}"] = (0o644, args.sbom.read_bytes())  # The place is that of PEP 770.
    for license in args.third_party_licenses:
        files[f"{info}/licenses/third_party/{license_name(license)}"] = (0o644, license.read_bytes())
    write_wheel(args.out, files, info)


if __name__ == "__main__":
    main()
