"""docs/testing.md and docs/nxd.md name no test that is not there, and the mutants fit the sources."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Iterator, Set

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = "".join((ROOT / "docs" / name).read_text() for name in ("testing.md", "nxd.md"))
WORDS = set(re.findall(r"`([^`\n]+)`", TEXT))

sys.path.insert(0, str(ROOT / "tools"))
from mutate_lib import table  # noqa: E402


def sources(pattern: str) -> Iterator[pathlib.Path]:
    for folder in ("storage", "daemon", "client", "tests"):
        yield from (ROOT / folder).rglob(pattern)


def cases() -> Set[str]:
    """Suite.Case of C++, and test_... of Python."""
    found: Set[str] = set()
    for source in sources("*_test.cc"):
        for suite, case in re.findall(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+),\s*(\w+)\)", source.read_text(), re.MULTILINE):
            found.update((f"{suite}.{case}", f"{suite}.*"))
    for source in sources("test_*.py"):
        found.update(re.findall(r"^def (test_\w+)", source.read_text(), re.MULTILINE))
    return found


def test_every_file_that_it_names_is_there() -> None:
    named = {word for word in WORDS if re.fullmatch(r"(storage|daemon|client|tests|tools)/[\w./*]+", word)}
    assert len(named) > 15
    assert not {word for word in named if not (ROOT / word).exists()}


def test_every_test_that_it_names_is_there() -> None:
    named = {w for w in WORDS if re.fullmatch(r"test_\w+", w) or re.fullmatch(r"[A-Z]\w+\.(\w+|\*)", w)}
    assert len(named) > 80
    assert not named - cases()


def test_the_mutants_fit_the_sources() -> None:
    assert not table.check(table.load(), ROOT)
