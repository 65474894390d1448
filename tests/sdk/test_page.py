"""docs/cpp.md: its program is compiled as the page says, and trains and resumes."""

from __future__ import annotations

import pathlib
import re
from typing import Dict

import pytest
import sdk_programs

from harness import Daemon, tags, until_equal

DOCUMENTS = [*(sdk_programs.REPOSITORY / "docs").rglob("*.md"), sdk_programs.REPOSITORY / "README.md"]
BLOCK = re.compile(r"(?:<!-- cpp example: (?P<name>\w+) -->\n)?```(?:cpp|c\+\+)\n(?P<code>.*?)```", re.DOTALL)


def programs() -> Dict[str, str]:
    found = [match for document in DOCUMENTS for match in BLOCK.finditer(document.read_text())]
    assert all(match["name"] for match in found), "a C++ block without a mark <!-- cpp example: NAME -->"
    return {match["name"]: match["code"] for match in found}


@pytest.mark.parametrize("name", programs())
def test_cpp_example_of_a_page_saves_and_resumes(
    name: str, tmp_path: pathlib.Path, daemon: Daemon, root: str
) -> None:
    source = tmp_path / f"{name}.cc"
    source.write_text(programs()[name].replace("/data/ckpts", root))
    program = sdk_programs.compile_with_pkg_config(source, tmp_path / name)
    environment = sdk_programs.environment(CKPTD_ENDPOINT=daemon.endpoint)
    assert sdk_programs.run(program, env=environment) == "step_5 is committed\n"
    assert sdk_programs.run(program, env=environment) == "step_10 is committed\n"
    until_equal(lambda: tags(root), ["step_10", "step_9", "step_8"], "what retention keeps")


def test_the_page_has_a_program() -> None:
    assert "loop" in programs()
