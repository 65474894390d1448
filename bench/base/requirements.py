"""Installs the packages that only one case needs, when it runs for the first time."""

from __future__ import annotations

import importlib
import importlib.metadata
import pathlib
import subprocess
import sys
from typing import Dict

from bench.base import machine


def install(case: str, file: pathlib.Path) -> None:
    """Installs what a file of requirements pins, into the current virtual environment. SystemExit if pip fails."""
    wanted = dict(line.split("==") for line in file.read_text().splitlines())
    if versions(*wanted) == wanted:
        return
    machine.log(f"{case}: installing {', '.join(file.read_text().split())} into {sys.prefix}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", f"--requirement={file}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"'{' '.join(command)}' ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    importlib.invalidate_caches()


def versions(*packages: str) -> Dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
