"""Installs the packages that only the comparison needs, when it runs for the first time."""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys
from typing import Dict

from bench.base import machine

FILE = pathlib.Path(__file__).with_suffix(".txt")


def install() -> None:
    """Installs into the current virtual environment. SystemExit if pip fails."""
    wanted = dict(line.split("==") for line in FILE.read_text().splitlines())
    if versions(*wanted) == wanted:
        return
    machine.log(f"compare: installing {', '.join(FILE.read_text().split())} into {sys.prefix}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", f"--requirement={FILE}"]
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
