"""The modules of bench and examples import each other as tests/architecture/layers.toml allows, and in no circle."""

from __future__ import annotations

import ast
import graphlib
import pathlib
import tomllib
from typing import Dict, List, Set

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS: Dict[str, List[str]] = tomllib.loads((ROOT / "tests/architecture/layers.toml").read_text())["bench"]
Graph = Dict[str, Set[str]]  # module -> the modules that it imports


def sources() -> Dict[str, str]:
    """Text by module."""
    found = {}
    for path in [*(ROOT / "bench").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def graph_of(texts: Dict[str, str]) -> Graph:
    """Counts all imports: at the top of a module, inside functions, and under TYPE_CHECKING."""
    graph: Graph = {}
    for module, text in texts.items():
        found: Set[str] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module and not node.level, f"{module} has a relative import; write it in full"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found.update(name if name in texts else node.module for name in names)
        graph[module] = (found & set(texts)) - {module}
    return graph


def layer_of(module: str) -> str:
    """Its package of two parts, or "bench"; "" for examples/__init__.py, which imports nothing."""
    if module in ("bench", "bench.__main__"):
        return "bench"
    return ".".join(module.split(".")[:2]) if "." in module else ""


def violations(graph: Graph) -> List[str]:
    return [
        f"{module} may not import {other}"
        for module, others in sorted(graph.items())
        for other in sorted(others)
        if layer_of(other) not in (layer_of(module), *LAYERS.get(layer_of(module), []))
    ]


def test_bench_and_examples_import_what_the_table_allows() -> None:
    texts = sources()
    assert len(texts) > 40
    assert violations(graph_of(texts)) == []
    assert {layer_of(module) for module in texts} - {""} == set(LAYERS)


def test_bench_and_examples_import_in_no_circle() -> None:
    graphlib.TopologicalSorter(graph_of(sources())).prepare()  # Raises CycleError.
    graphlib.TopologicalSorter(LAYERS).prepare()


@pytest.mark.parametrize(
    "planted",
    [
        "from bench.cases import save\n",
        "import bench.cases.save\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bench.cases.save import run\n",
        "def late():\n    from bench.cases import save\n",
    ],
)
def test_planted_upward_import_is_found(planted: str) -> None:
    texts = sources()
    graph = graph_of({**texts, "bench.base.fio": texts["bench.base.fio"] + planted})
    assert violations(graph) == ["bench.base.fio may not import bench.cases.save"]
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph).prepare()
