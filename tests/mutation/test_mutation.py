"""tools/mutate: options that select mutants, and how a run is resumed."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

from mutation import main, table, tree
from mutation.table import Mutant, StaleTable


def mutant(name: str) -> Mutant:
    return Mutant(name, "a result is ignored", "storage/file.cc", ["//storage:test"], ["-a", "+b"])


def outcome(name: str, death: tree.Death | None = None, broken: str = "") -> str:
    return json.dumps(main.Outcome(mutant(name), 1.0, death, broken).as_json()) + "\n"


DEATH = tree.Death("//storage:test", "FileTest.ReportsResult", "failed")


def test_resumed_run_skips_only_killed_mutants(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text(outcome("a.killed", DEATH) + outcome("a.survived") + outcome("a.broken", broken="no compiler"))
    mutants = [mutant(name) for name in ("a.killed", "a.survived", "a.broken", "a.new")]
    left = main.without_killed(mutants, main.read_results([str(results)]))
    assert [each.name for each in left] == ["a.survived", "a.broken", "a.new"]


def test_last_result_of_a_mutant_counts(tmp_path: pathlib.Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text(outcome("a.x"))
    second.write_text(outcome("a.x", DEATH))
    assert main.read_results([str(first), str(second)])["a.x"]["killed_by"]
    assert not main.read_results([str(second), str(first)])["a.x"]["killed_by"]


def test_line_of_an_interrupted_run_is_ignored(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text(outcome("a.x", DEATH) + outcome("a.y", DEATH)[:20] + outcome("a.y") + outcome("a.z"))
    assert list(main.read_results([str(results)])) == ["a.x", "a.z"]


def test_config_is_passed_to_bazel(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    commands = []

    def bazel(self: tree.Tree, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        commands.append((command, *arguments))
        return subprocess.CompletedProcess(arguments, tree.PASSED, "", "")

    monkeypatch.setattr(tree.Tree, "bazel", bazel)
    tree.Tree(tmp_path, tmp_path, "quick").warm_up(["//storage:test"])
    assert commands[0][:2] == ("test", "--config=quick") and commands[0][-1] == "//storage:test"


def test_mutant_whose_lines_are_not_in_the_source_is_stale() -> None:
    assert mutant("a.x").apply("a\nc").split("\n")[-2:] == ["b", "c"]
    for source in ("c", "a\na"):
        try:
            mutant("a.x").apply(source)
        except StaleTable as error:
            assert "not once" in str(error)
        else:
            raise AssertionError(source)


def test_rule_of_several_nodes_adds_a_mutant_for_the_simulation() -> None:
    diff = ["-a", "+b"]
    lines = ["file storage/file.cc", "tests //storage:test", "rule X7", "mutant x: what", *diff, "mutant y: what", *diff]
    first, simulated, second = table.parse("\n".join(lines), "table.txt")
    assert [(m.name, m.tests, m.diff) for m in (first, simulated, second)] == [
        ("file.x", ["//storage:test"], diff),
        ("X7.file.x", [table.SIMULATION], diff),
        ("file.y", ["//storage:test"], diff),
    ]
