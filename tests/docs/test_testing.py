"""The documents name only tests and files that exist, every promise names tests, and the mutants fit the
sources.
"""

from __future__ import annotations

import fnmatch
import functools
import pathlib
import re
import sys
from typing import Iterator, Set

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Decisions and the changelog say what was, the others what is.
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "tools/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]

sys.path.insert(0, str(ROOT / "tests"))
from mutation import table  # noqa: E402


def code_words(text: str) -> Set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


# Pages whose code words with a dot are tests, other than `ckptd.nxd`.
TESTED = "".join((ROOT / "docs" / name).read_text() for name in ("testing.md", "nxd.md"))
WORDS = code_words("".join(document.read_text() for document in DOCUMENTS))


def sources(pattern: str) -> Iterator[pathlib.Path]:
    for folder in ("storage", "daemon", "client", "tests"):
        yield from (ROOT / folder).rglob(pattern)


@functools.lru_cache()
def cases() -> Set[str]:
    """Suite.Case of C++, and test_... of Python."""
    found: Set[str] = set()
    for source in sources("*_test.cc"):
        for suite, case in re.findall(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+),\s*(\w+)\)", source.read_text(), re.MULTILINE):
            found.add(f"{suite}.{case}")
    for source in sources("test_*.py"):
        found.update(re.findall(r"^def (test_\w+)", source.read_text(), re.MULTILINE))
    return found


def test_every_file_that_it_names_is_there() -> None:
    folders = "storage|daemon|client|proto|tests|tools|deploy|bench|examples"
    named = {word for word in WORDS if re.fullmatch(rf"({folders})/[\w./*-]+", word)}
    assert len(named) > 60
    assert not {word for word in named if not list(ROOT.glob(word))}


def named_tests(words: Set[str]) -> Set[str]:
    """Names and patterns, such as `CrashTest.*` and `test_symlink*`."""
    return {w for w in words if re.fullmatch(r"test_[\w*]+|[A-Z][\w*]+Test\.[\w*]+", w)} | (words & cases())


def test_every_test_that_it_names_is_there() -> None:
    named = named_tests(WORDS) | {w for w in code_words(TESTED) if re.fullmatch(r"[A-Z][\w*]+\.[\w*]+", w)}
    assert len(named) > 150
    assert not {name for name in named - cases() if "*" not in name or not fnmatch.filter(cases(), name)}


def test_every_promise_of_the_design_names_tests() -> None:
    design = (ROOT / "docs/design.md").read_text().partition("## What is promised")[2].partition("\n## ")[0]
    promises = re.findall(r"^(\d+)\. \*\*(.+?)\.\*\*", design, re.MULTILINE)
    assert len(promises) == 10
    shown = (ROOT / "docs/testing.md").read_text().partition("## Promises")[2].partition("\n## ")[0]
    sections = dict(re.findall(r"^### (.+)\n((?:(?!### ).*\n?)*)", shown, re.MULTILINE))
    assert list(sections) == [f"{number} {name}" for number, name in promises]
    assert not [heading for heading, body in sections.items() if not named_tests(code_words(body))]


def test_number_of_mutants_and_the_named_ones_are_those_of_the_lists() -> None:
    page = (ROOT / "docs/testing.md").read_text().partition("\n## Mutants\n")[2]
    names = {mutant.name for mutant in table.load()}
    at_least = re.findall(r"more than ([\d,]+)\s+mutants", page)
    assert [int(number.replace(",", "")) < len(names) for number in at_least] == [True]
    named = {word for word in code_words(page) if re.fullmatch(r"[a-z_]+\.[a-z*-]+", word)}
    assert len(named) > 5
    assert not {word for word in named if not fnmatch.filter(names, word)}


def test_the_mutants_fit_the_sources() -> None:
    assert not table.check(table.load(), ROOT)
