"""The packages, built from the wheel and the C++ library of tools/setup, and how docs/install.md installs them."""

from __future__ import annotations

import pathlib
import re
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
VERSION = (REPOSITORY / "VERSION").read_text().strip()
WHEEL = REPOSITORY / "dist" / f"ckptd-{VERSION}-py3-none-manylinux2014_x86_64.whl"
SDK = REPOSITORY / "dist/sdk"
DATE = 1767225600  # 2026-01-01.


def build_packages(
    kind: str, out: pathlib.Path, version: str = VERSION, checkout: pathlib.Path = REPOSITORY
) -> list[pathlib.Path]:
    """One file, but of the kind rpm: ckptd, ckptd-devel and ckptd-libs."""
    out.mkdir(exist_ok=True)
    command = [
        *(REPOSITORY / "tools/packaging/build_packages.py", f"--wheel={WHEEL}", f"--sdk={SDK}"),
        f"--checkout={checkout}",
        *(f"--version={version}", f"--date={DATE}", f"--out={out}", kind),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [pathlib.Path(line) for line in done.stdout.splitlines()]


def build_package(
    kind: str, out: pathlib.Path, version: str = VERSION, checkout: pathlib.Path = REPOSITORY
) -> pathlib.Path:
    """That with the daemon, if there are several."""
    return build_packages(kind, out, version, checkout)[0]


def install_commands(way: str) -> list[str]:
    """The lines that docs/install.md has for one way to install."""
    page = (REPOSITORY / "docs/install.md").read_text()
    match = re.search(rf"^<!-- install: {way} -->\n```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert match, f"docs/install.md has no block {way}"
    return match[1].splitlines()
