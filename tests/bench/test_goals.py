"""Every goal of bench/base/goals.py belongs to a figure of tools/bench, and docs/performance.md has the same goals."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from bench.base.context import BenchContext
from bench.base.goals import BUCKET_GOALS, GOALS, GPU_GOALS, Goal, goal_of
from bench.base.result import Result
from bench.cases import nodes, nodes_dcp

# Seven cases, four minutes on two idle cores.
pytestmark = pytest.mark.timeout(900)

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The cases that a goal is of, and that need no program but the daemon.
CASES = ("save", "handoff", "step", "unchanged", "restore", "ready", "scale", "hostile")


@pytest.fixture(scope="module")
def measured() -> Dict[str, Dict[str, Any]]:
    command = [sys.executable, "-m", "bench", *CASES, "--quick", "--json", "--client=python"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)["figures"]}


def nodes_figures(monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path) -> List[Result]:
    pairs = ("etcd_ms", "etcd_all_ms", "begin_ms", "commit_ms", "writes", "reads")
    figures = {**{name: [1.0, 2.0] for name in pairs}, "join_seconds": 1.0, "next_join_seconds": 1.0}
    monkeypatch.setattr(nodes, "_measure", lambda *_, **__: figures)
    seconds = nodes_dcp.Seconds(stall=[1.0, 1.0], committed=[2.0, 2.0])
    monkeypatch.setattr(nodes_dcp, "measure", lambda *_, **__: dict.fromkeys(nodes_dcp.JOBS, seconds))
    results: List[Result] = []
    nodes.run(BenchContext(folder, quick=True, clients=[], results=results))
    return results


def test_every_goal_is_of_a_figure_beside_its_limit(
    measured: Dict[str, Dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    rows = {name: (row["goal"], row["limit"]) for name, row in measured.items()}
    rows.update({result.name: (result.goal, result.limit) for result in nodes_figures(monkeypatch, tmp_path)})
    for name, goal in GOALS.items():
        assert rows[name][0] == goal.bound, name
        assert rows[name][1], f"{name} does not say what it is held against"


def test_figures_of_a_gpu_are_no_figures_where_there_is_none() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "gpu"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and "needs a GPU" in done.stderr and not done.stdout


def test_daemons_memory_grows_by_its_goal_with_each_checkpoint(measured: Dict[str, Dict[str, Any]]) -> None:
    row = measured["scale.memory_mib"]
    (count,) = re.findall(r"beside (\d+) checkpoints", row["limit"])
    assert row["goal"] == 64 + int(count) * 2 / 1024


def test_figures_of_all_clients_and_clusters_have_the_goal() -> None:
    assert goal_of("save.durable.vs_fio.cpp") == goal_of("save.durable.vs_fio") == Goal(0.97, at_least=True)
    assert goal_of("nodes.commit.p50.3_members") == goal_of("nodes.commit.p50")
    assert goal_of("save.finite_check") is None


def test_performance_page_has_the_goals() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    for name, goal in {**GOALS, **GPU_GOALS, **BUCKET_GOALS}.items():
        sign = "≥" if goal.at_least else "≤"
        assert re.search(rf"^\|.*`{re.escape(name)}`.*\| {sign} {goal.bound:g}\b", text, re.MULTILINE), f"{name} {sign} {goal.bound:g}"
