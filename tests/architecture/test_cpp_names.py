"""No two files of the daemon, the storage library and the client define types with one name.

The linker takes the members of one of them for both: a program then destroys an object as if it were another one. No compiler
sees that, for it sees one file at a time.
"""

from __future__ import annotations

import collections
import pathlib
import re
from typing import Dict, List, Set

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREES = ("storage", "daemon", "client")

NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^\s*#[^\n]*', re.DOTALL | re.MULTILINE)
RAW_STRING = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)
NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)\s*$")
TYPE = re.compile(r"^(?:template\s*<.*>\s*)?(?:class|struct|union|enum(?:\s+class)?)\s+(?:\w+\(.*?\)\s+)?(\w+)(?:\s+final)?\s*(?::[^:].*)?$", re.DOTALL)


def types_in(text: str) -> List[str]:
    """The types that a C++ file defines in named namespaces, with these."""
    code = NOT_CODE.sub(" ", RAW_STRING.sub(" ", text))
    found: List[str] = []
    around: List[str] = []  # The namespaces; "" for any other block, and for one without a name.
    end = 0
    for match in re.finditer("[{};]", code):
        head = code[end : match.start()].strip()
        end = match.end()
        if match.group() == "}":
            around.pop()
        elif match.group() == "{":
            namespace = NAMESPACE.search(head)
            defined = TYPE.match(head)
            if defined and all(around):
                found.append("::".join([*around, defined.group(1)]))
            around.append(namespace.group(1) if namespace else "")
    return found


def names_of_two(sources: Dict[str, str]) -> List[str]:
    """`sources`: text by path."""
    files: Dict[str, Set[str]] = collections.defaultdict(set)
    for path, text in sources.items():
        for name in types_in(text):
            files[name].add(path)
    return [f"{name}: {', '.join(sorted(paths))}" for name, paths in sorted(files.items()) if len(paths) > 1]


def test_no_two_files_define_types_with_one_name() -> None:
    sources = {
        str(path.relative_to(ROOT)): path.read_text()
        for tree in TREES
        for path in [*(ROOT / tree).rglob("*.h"), *(ROOT / tree).rglob("*.cc")]
    }
    assert len(sources) > 500
    assert names_of_two(sources) == []


def test_types_of_named_namespaces_alone_are_compared() -> None:
    header = "namespace a {\nclass B;\nstruct Part : public C {\n  struct Inner { int x; };\n};\n}  // namespace a\n"
    hidden = "namespace a {\nnamespace {\nstruct Part { int y; };\n}\nvoid f() { struct Part { int z; }; }\n}\n"
    elsewhere = 'namespace b {\nconst char* text = "struct Part {";\nenum class Part { kOne };\n}\n'
    again = "namespace a {\ntemplate <typename T>\nclass Part final { T t; };\n}\n"
    assert types_in(header) == ["a::Part"]
    assert names_of_two({"h": header, "hidden": hidden, "elsewhere": elsewhere}) == []
    assert names_of_two({"h": header, "again": again}) == ["a::Part: again, h"]
