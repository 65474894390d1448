"""The table of mutants: what is planted where, and which tests are asked.

A file mutants/*.txt has sections, each of one source file:

    file storage/fs/file_system.cc
    tests //storage/fs:file_system_test //storage/commit:crash_test

    mutant new-file-sync: a new file's bytes are not synced
       CKPTD_RETURN_IF_ERROR(WriteFully(fs, file.get(), 0, std::as_bytes(std::span(content))));
    -  return fs.Sync(file.get(), SyncMode::kData);
    +  return absl::OkStatus();

A mutant is a piece of a unified diff without line numbers: lines to be there, to go and to come. The lines that
are to be there must be in the source exactly once; where they are not, the table is stale, which is an error and
no dead mutant. The tests are in the order in which they are asked: the quickest that can see it first;
//storage/commit:crash_test=OrderTest.* are some cases of one. Lines of `#` are comments.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Iterator, List, Tuple

TABLE = pathlib.Path(__file__).parent / "mutants"


class StaleTable(Exception):
    """The table does not fit the sources, or cannot be read."""


@dataclasses.dataclass
class Mutant:
    name: str  # publish.manifest-sync
    what: str
    file: str
    tests: List[str]
    diff: List[str] = dataclasses.field(default_factory=list)

    def apply(self, source: str) -> str:
        """The source with the bug in it."""
        old = [line[1:] for line in self.diff if line[0] in " -"]
        new = [line[1:] for line in self.diff if line[0] in " +"]
        if old == new:
            raise StaleTable(f"{self.name} changes nothing")
        lines = source.split("\n")
        places = [at for at in range(len(lines) - len(old) + 1) if lines[at : at + len(old)] == old]
        if len(places) != 1:
            raise StaleTable(f"the lines of {self.name} are {len(places)} times in {self.file}, not once")
        at = places[0]
        return "\n".join(QUIET + lines[:at] + new + lines[at + len(old) :])


# What a bug leaves behind without use would be an error of the compiler, where a test is to find it.
QUIET = [
    *(f'#pragma GCC diagnostic ignored "-Wunused-{what}"' for what in ("function", "variable", "parameter")),
    '#pragma GCC diagnostic ignored "-Wunused-but-set-variable"',
]


def parse(text: str, where: str) -> Iterator[Mutant]:
    file, tests = "", []
    mutant = None
    for number, line in enumerate(text.split("\n"), 1):
        word, _, rest = line.partition(" ")
        if mutant is not None and line[:1] in (" ", "-", "+"):
            mutant.diff.append(line)
            continue
        if mutant is not None and (word in ("file", "tests", "mutant")):
            yield mutant
            mutant = None
        if word == "file":
            file, tests = rest, []
        elif word == "tests":
            tests = rest.split()
        elif word == "mutant" and ": " in rest and file and tests:
            slug, _, what = rest.partition(": ")
            mutant = Mutant(f"{pathlib.PurePath(file).stem}.{slug}", what, file, tests)
        elif line.strip() and not line.startswith("#"):
            raise StaleTable(f"{where}:{number}: {line!r} is no line of a table of mutants")
    if mutant is not None:
        yield mutant


def load(folder: pathlib.Path = TABLE) -> List[Mutant]:
    mutants = [m for path in sorted(folder.glob("*.txt")) for m in parse(path.read_text(), path.name)]
    names = [m.name for m in mutants]
    twice = {name for name in names if names.count(name) > 1}
    if twice or not mutants:
        raise StaleTable(f"names that are there twice: {sorted(twice)}" if twice else f"{folder} is empty")
    return mutants


def check(mutants: List[Mutant], root: pathlib.Path) -> List[Tuple[str, str]]:
    """(name, why) of those that do not fit the sources."""
    stale = []
    for mutant in mutants:
        try:
            mutant.apply((root / mutant.file).read_text())
        except (OSError, StaleTable) as error:
            stale.append((mutant.name, str(error)))
    return stale
