"""The table of mutants: what each one changes, and which tests must detect it.

A file mutants/*.txt has sections, each of one source file:

    file storage/fs/file_system.cc
    tests //storage/fs:file_system_test //storage/commit/local:crash_test

    mutant new-file-sync: a new file's bytes are not synced
       CKPTD_RETURN_IF_ERROR(WriteFully(fs, file.get(), 0, std::as_bytes(std::span(content))));
    -  return fs.Sync(file.get(), SyncMode::kData);
    +  return absl::OkStatus();

A mutant is a hunk of a unified diff without line numbers. Its context and removed lines must be in the source
exactly once; otherwise the table is stale, which is an error and not a killed mutant. The tests run in the given
order: the quickest that can detect the mutant first; //storage/commit/local:crash_test=OrderTest.* selects cases of a
test. Lines that begin with `#` are comments.

`rule X7` before a mutant says that it leaves out a rule of the protocol of several nodes (docs/design.md), and adds a
second mutant, X7.publish.new-file-sync, which the simulation of several nodes must detect by itself.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Iterator, List, Tuple

TABLE = pathlib.Path(__file__).parent / "mutants"
SIMULATION = "//tests/sim_nodes:nodes_simulation_test"


class StaleTable(Exception):
    """The table does not match the sources, or cannot be read."""


@dataclasses.dataclass
class Mutant:
    name: str  # publish.manifest-sync
    what: str
    file: str
    tests: List[str]
    diff: List[str] = dataclasses.field(default_factory=list)
    rule: str = ""  # X7; empty: none.

    def apply(self, source: str) -> str:
        """Returns the source with the mutant applied."""
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


# A mutant may leave code unused. That must not be a compiler error: a test is to find the mutant.
QUIET = [
    *(f'#pragma GCC diagnostic ignored "-Wunused-{what}"' for what in ("function", "variable", "parameter")),
    '#pragma GCC diagnostic ignored "-Wunused-but-set-variable"',
]


def parse(text: str, where: str) -> Iterator[Mutant]:
    file, tests, rule = "", [], ""
    mutant = None
    for number, line in enumerate(text.split("\n"), 1):
        word, _, rest = line.partition(" ")
        if mutant is not None and line[:1] in (" ", "-", "+"):
            mutant.diff.append(line)
            continue
        if mutant is not None and word in ("file", "tests", "mutant", "rule"):
            yield from with_rule(mutant)
            mutant = None
        if word == "file":
            file, tests = rest, []
        elif word == "tests":
            tests = rest.split()
        elif word == "rule":
            rule = rest
        elif word == "mutant" and ": " in rest and file and tests:
            slug, _, what = rest.partition(": ")
            mutant = Mutant(f"{pathlib.PurePath(file).stem}.{slug}", what, file, tests, rule=rule)
            rule = ""
        elif line.strip() and not line.startswith("#"):
            raise StaleTable(f"{where}:{number}: {line!r} is not a line of a table of mutants")
    if mutant is not None:
        yield from with_rule(mutant)


def with_rule(mutant: Mutant) -> Iterator[Mutant]:
    yield mutant
    if mutant.rule:
        yield dataclasses.replace(mutant, name=f"{mutant.rule}.{mutant.name}", tests=[SIMULATION])


def load(folder: pathlib.Path = TABLE) -> List[Mutant]:
    mutants = [m for path in sorted(folder.glob("*.txt")) for m in parse(path.read_text(), path.name)]
    names = [m.name for m in mutants]
    twice = {name for name in names if names.count(name) > 1}
    if twice or not mutants:
        raise StaleTable(f"duplicate names: {sorted(twice)}" if twice else f"{folder} is empty")
    return mutants


def check(mutants: List[Mutant], root: pathlib.Path) -> List[Tuple[str, str]]:
    """Returns (name, reason) of the mutants that do not match the sources."""
    stale = []
    for mutant in mutants:
        try:
            mutant.apply((root / mutant.file).read_text())
        except (OSError, StaleTable) as error:
            stale.append((mutant.name, str(error)))
    return stale
