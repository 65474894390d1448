"""Where tests work: temporary folders, and the folders that their modules are imported from."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Protocol, TypeVar

TESTS = pathlib.Path(__file__).resolve().parents[1]


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


@contextlib.contextmanager
def closing(thing: C) -> Iterator[C]:
    """Like contextlib.closing, with the thing's own type."""
    try:
        yield thing
    finally:
        thing.close()


@contextlib.contextmanager
def temporary_folder() -> Iterator[pathlib.Path]:
    """A folder on a disk. pytest's own have paths too long for a Unix socket, which has room for 107 bytes."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def module_path() -> str:
    """A PYTHONPATH with which a process imports the tests' modules as this one does, and what this one's PYTHONPATH has."""
    own = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    tests = [path for path in sys.path if pathlib.Path(path).is_relative_to(TESTS)]
    return os.pathsep.join(dict.fromkeys([*own, *tests]))
