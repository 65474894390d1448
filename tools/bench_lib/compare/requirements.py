"""What only this section needs is installed when it runs for the first time."""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys
from typing import Dict

import machine

FILE = pathlib.Path(__file__).with_suffix(".txt")


def install() -> None:
    """Into the virtual environment that we run in. A SystemExit when they cannot be had."""
    wanted = dict(line.split("==") for line in FILE.read_text().splitlines())
    if versions(*wanted) == wanted:
        return
    machine.say(f"compare: {', '.join(FILE.read_text().split())} into {sys.prefix}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", f"--requirement={FILE}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"'{' '.join(command)}' ended with {done.returncode}:\n{done.stderr[-2000:]}")
    importlib.invalidate_caches()


def versions(*packages: str) -> Dict[str, str]:
    """Those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
