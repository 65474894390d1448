"""The folders of the C++ sources depend on each other as tests/architecture/layers.toml allows, and on nothing else.

Three ways to break that are looked for: an #include, a dependency in a BUILD file, and a table that allows a circle.
"""

from __future__ import annotations

import pathlib
import re
import tomllib
from typing import Dict, Iterator, List, Tuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS: Dict[str, List[str]] = tomllib.loads((ROOT / "tests/architecture/layers.toml").read_text())["cpp"]
TREES = ("storage", "daemon", "client")
# Third-party packages, generated code and version.h: what they are is fixed by the dependencies of each target.
OUTSIDE = ("proto", "absl", "ckptd", "etcd", "google", "grpcpp", "gtest", "gmock", "nlohmann", "spdlog")


def allows(allowed: List[str], folder: str) -> bool:
    for name in allowed:
        if name == folder or (name.endswith("/*") and folder.startswith(name[:-1])):
            return True
    return False


def violations(sources: Dict[str, str]) -> List[str]:
    """`sources`: text by path; of C++ files and of BUILD files."""
    found = []
    for path, text in sorted(sources.items()):
        folder = str(pathlib.PurePath(path).parent)
        if folder not in LAYERS:
            found.append(f"{path}: the folder is not in tests/architecture/layers.toml")
            continue
        used = dependencies_of_build(text) if path.endswith("BUILD") else includes_of(text)
        for other, line in used:
            if other != folder and not allows(LAYERS[folder], other):
                found.append(f"{path}: {folder} may not depend on {other} ({line})")
    return found


def includes_of(text: str) -> Iterator[Tuple[str, str]]:
    for include in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        folder = str(pathlib.PurePath(include).parent)
        if folder.split("/")[0] not in OUTSIDE:
            yield folder, f'#include "{include}"'


def dependencies_of_build(text: str) -> Iterator[Tuple[str, str]]:
    """Of libraries and programs; a test may depend on tests/ and on more."""
    for rule, body in re.findall(r"^(\w+)\(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL):
        if rule.endswith("_test"):
            continue
        for package in re.findall(r'"//([\w/]+)(?::[\w.]+)?"', body):
            if package.split("/")[0] in (*TREES, "tests"):
                yield package, f'"//{package}"'


def sources() -> Dict[str, str]:
    found = {}
    for tree in TREES:
        for path in [*(ROOT / tree).rglob("*.cc"), *(ROOT / tree).rglob("*.h"), *(ROOT / tree).rglob("BUILD")]:
            if not path.name.endswith("_test.cc"):
                found[str(path.relative_to(ROOT))] = path.read_text()
    return found


def test_sources_depend_only_on_what_the_table_allows() -> None:
    found = sources()
    assert len(found) > 200
    assert not violations(found)


def test_table_allows_no_circle_and_lists_a_folder_after_its_dependencies() -> None:
    names = list(LAYERS)
    for position, folder in enumerate(names):
        for allowed in LAYERS[folder]:
            if allowed.endswith("/*"):
                above = [name for name in names[position + 1 :] if name.startswith(allowed[:-1])]
                assert not above, f"{folder} may depend on {above}, which come after it"
            else:
                assert allowed in names[:position], f"{folder} may depend on {allowed}, which does not come before it"


def test_table_lists_only_folders_that_exist() -> None:
    assert not [folder for folder in LAYERS if not (ROOT / folder / "BUILD").exists()]


@pytest.mark.parametrize(
    "path, text",
    [
        ("storage/commit/local/new.cc", '#include "daemon/engine/engine.h"\n'),
        ("daemon/engine/new.h", '#include "daemon/grpc/calls/unary_call.h"\n'),
        ("client/cpp/new.cc", '#include "daemon/memory/segment_pool.h"\n'),
        ("storage/io/BUILD", 'ckptd_cc_library(\n    name = "io",\n    deps = ["//daemon/base:event_loop"],\n)\n'),
        ("daemon/log/BUILD", 'ckptd_cc_library(\n    name = "log",\n    deps = ["//tests/testing:inbox"],\n)\n'),
        ("storage/new/new.cc", ""),
    ],
)
def test_forbidden_dependency_is_reported(path: str, text: str) -> None:
    assert len(violations({path: text})) == 1
