"""Each C++ target names the libraries whose headers it includes, as clang's layering check (tools/check clang) asks.

gcc builds without these names, because a header may be reached through the dependencies of a dependency. Here all BUILD
files are read in a second; clang needs an hour to say the same.
"""

from __future__ import annotations

import collections
import pathlib
import re
from typing import Any, Dict, List, Set

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREES = ("storage", "daemon", "client", "tests", "bench", "examples")


class Rules(Dict[str, Any]):
    """What a BUILD file sees: each function is a rule, whose arguments are kept."""

    def __init__(self) -> None:
        super().__init__(glob=lambda *_, **__: [], select=lambda _: [], load=lambda *_, **__: None)
        self["ckptd_fuzz_target"] = lambda deps, **arguments: self.targets.append({"deps": [*deps, ":fuzz"], **arguments})
        self.targets: List[Dict[str, Any]] = []

    def __missing__(self, name: str) -> Any:
        if name in ("True", "False", "None"):
            raise KeyError(name)
        return lambda *_, **arguments: self.targets.append(arguments)


def targets_of(package: str, text: str) -> Dict[str, Dict[str, Any]]:
    rules = Rules()
    exec(compile(text, f"{package}/BUILD", "exec"), {"__builtins__": {}}, rules)
    return {f"//{package}:{target['name']}": target for target in rules.targets if "name" in target}


def label(package: str, name: str) -> str:
    if name.startswith(":"):
        return f"//{package}{name}"
    if name.startswith("//") and ":" not in name:
        return f"{name}:{name.rpartition('/')[2]}"
    return name


def missing(builds: Dict[str, str], sources: Dict[str, str]) -> List[str]:
    """`builds`: text of each BUILD file by package; `sources`: text of each C++ file by path."""
    targets = {name: (package, target) for package, text in builds.items() for name, target in targets_of(package, text).items()}
    owners: Dict[str, Set[str]] = collections.defaultdict(set)
    for name, (package, target) in targets.items():
        for header in target.get("hdrs", []):
            owners[f"{package}/{header}"].add(name)
    found = []
    for name, (package, target) in sorted(targets.items()):
        named = {name} | {label(package, dependency) for dependency in target.get("deps", [])}
        for file in [*target.get("srcs", []), *target.get("hdrs", [])]:
            path = f"{package}/{file}"
            for include in re.findall(r'^#include "([^"]+)"', sources.get(path, ""), re.MULTILINE):
                if include in owners and not owners[include] & named:
                    found.append(f"{name}: {path} includes {include}; add {' or '.join(sorted(owners[include]))} to deps")
    return found


def test_targets_name_the_libraries_whose_headers_they_include() -> None:
    builds, sources = {}, {}
    for tree in TREES:
        for path in (ROOT / tree).rglob("BUILD"):
            builds[str(path.parent.relative_to(ROOT))] = path.read_text()
        for path in [*(ROOT / tree).rglob("*.cc"), *(ROOT / tree).rglob("*.h")]:
            sources[str(path.relative_to(ROOT))] = path.read_text()
    assert len(builds) > 30 and len(sources) > 500
    found = missing(builds, sources)
    assert not found, "\n".join(found)


def test_header_of_a_library_that_is_not_named_is_found() -> None:
    builds = {
        "storage/a": 'load("//:x.bzl", "ckptd_cc_library")\nckptd_cc_library(name = "a", hdrs = ["a.h"])\n',
        "storage/b": 'ckptd_cc_library(name = "b", srcs = ["b.cc"], hdrs = ["b.h"], deps = ["//storage/a"])\n'
        'ckptd_cc_test(name = "b_test", srcs = ["b_test.cc"], deps = [":b"])\n',
    }
    sources = {
        "storage/b/b.cc": '#include "storage/b/b.h"\n#include "storage/a/a.h"\n#include <a>\n',
        "storage/b/b_test.cc": '#include "storage/a/a.h"\n',
    }
    assert missing(builds, sources) == ["//storage/b:b_test: storage/b/b_test.cc includes storage/a/a.h; add //storage/a:a to deps"]
