"""The modules of the Python package import each other as tests/architecture/layers.toml allows, and in no
circle.

All imports count: those at the top of a module, those inside functions, and those under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import pathlib
import tomllib
from typing import Dict, Iterator, List, Set

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS: Dict[str, List[str]] = tomllib.loads((ROOT / "tests/architecture/layers.toml").read_text())["python"]
SOURCES = ROOT / "client/python"
PACKAGE = "ckptd"
# They are not in the source tree, and import nothing of the package.
GENERATED = ("ckptd.v1", "ckptd.storage")


def module_name(path: str) -> str:
    """`path` is relative to client/python."""
    parts = pathlib.PurePath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_below(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imports_of(module: str, text: str, modules: Set[str]) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it."""
    is_package = any(other.startswith(module + ".") for other in modules)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = module.split(".")[: None if is_package and node.level == 1 else -(node.level - is_package)]
                base = ".".join([*anchor, *([node.module] if node.module else [])])
            # `from package import module` imports the module; `from module import name` the module before it.
            found = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names]
        else:
            continue
        for name in found:
            if is_below(name, PACKAGE) and not any(is_below(name, generated) for generated in GENERATED):
                yield name


def graph_of(sources: Dict[str, str]) -> Dict[str, Set[str]]:
    """module -> the modules that it imports. `sources`: text by path."""
    texts = {module_name(path): text for path, text in sources.items()}
    return {module: set(imports_of(module, text, set(texts))) - {module} for module, text in texts.items()}


def layer_of(module: str, layers: Dict[str, List[str]]) -> str:
    """The most specific entry of the table that a module belongs to; empty if there is none.

    A package's name stands for the modules below it, but the name of the whole package for its __init__
    alone.
    """
    found = [name for name in layers if module == name or (name != PACKAGE and is_below(module, name))]
    return max(found, key=len, default="")


def violations(graph: Dict[str, Set[str]], layers: Dict[str, List[str]]) -> List[str]:
    found = []
    for module, imported in sorted(graph.items()):
        layer = layer_of(module, layers)
        if not layer:
            found.append(f"{module} is not in tests/architecture/layers.toml")
            continue
        for other in sorted(imported):
            other_layer = layer_of(other, layers)
            if other_layer != layer and other_layer not in layers[layer]:
                found.append(f"{module} may not import {other}")
    return found


def circle(graph: Dict[str, Set[str]]) -> List[str]:
    """The modules of one circle, in the order in which they import each other; empty if there is none."""
    done: Set[str] = set()

    def visit(module: str, path: List[str]) -> List[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph.get(module, ())):
            found = visit(other, [*path, module])
            if found:
                return found
        done.add(module)
        return []

    return next((found for found in (visit(module, []) for module in sorted(graph)) if found), [])


@pytest.fixture(scope="module")
def sources() -> Dict[str, str]:
    ignored = [SOURCES / generated.replace(".", "/") for generated in GENERATED]
    return {
        path.relative_to(SOURCES).as_posix(): path.read_text()
        for path in sorted((SOURCES / PACKAGE).rglob("*.py"))
        if not any(folder in path.parents for folder in ignored)
    }


def test_modules_import_what_the_table_allows(sources: Dict[str, str]) -> None:
    assert len(sources) > 40
    assert violations(graph_of(sources), LAYERS) == []


def test_no_modules_import_each_other_in_a_circle(sources: Dict[str, str]) -> None:
    assert circle(graph_of(sources)) == []


def test_table_has_no_circle_and_no_entry_that_nobody_needs(sources: Dict[str, str]) -> None:
    assert circle({layer: set(allowed) for layer, allowed in LAYERS.items()}) == []
    used: Dict[str, Set[str]] = {layer: set() for layer in LAYERS}
    for module, imported in graph_of(sources).items():
        layer = layer_of(module, LAYERS)
        used[layer] |= {layer_of(other, LAYERS) for other in imported} - {layer}
    assert {layer: sorted(allowed) for layer, allowed in LAYERS.items()} == {
        layer: sorted(others) for layer, others in used.items()
    }


@pytest.mark.parametrize(
    "planted",
    [
        "from ckptd._saving import upload\n",
        "from ckptd._saving.upload import PartUpload\n",
        "import ckptd._saving.upload\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ckptd._saving.upload import PartUpload\n",
        "def late():\n    from ckptd._saving.upload import PartUpload\n",
        "from .._saving.upload import PartUpload\n",
        "from .._saving import upload\n",
    ],
)
def test_planted_circle_and_upward_import_are_found(sources: Dict[str, str], planted: str) -> None:
    path = "ckptd/_membership/membership.py"
    graph = graph_of({**sources, path: sources[path] + planted})
    assert violations(graph, LAYERS) == ["ckptd._membership.membership may not import ckptd._saving.upload"]
    found = circle(graph)
    assert {"ckptd._membership.membership", "ckptd._saving.upload"} <= set(found)


def test_planted_circle_inside_a_package_is_found(sources: Dict[str, str]) -> None:
    path = "ckptd/_saving/save_state.py"
    graph = graph_of({**sources, path: sources[path] + "from . import upload\n"})
    assert violations(graph, LAYERS) == []
    assert set(circle(graph)) == {"ckptd._saving.save_state", "ckptd._saving.upload"}


def test_module_without_an_entry_in_the_table_is_found(sources: Dict[str, str]) -> None:
    graph = graph_of({**sources, "ckptd/_new.py": "import os\n"})
    assert violations(graph, LAYERS) == ["ckptd._new is not in tests/architecture/layers.toml"]
