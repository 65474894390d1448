"""The pictures of docs/architecture.md, and its tables of steps, are what docs/pictures.py makes."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import xml.etree.ElementTree

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def test_pictures_and_tables_are_up_to_date() -> None:
    run = subprocess.run(
        [sys.executable, str(DOCS / "pictures.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_pictures_are_well_formed_and_shown() -> None:
    page = (DOCS / "architecture.md").read_text()
    for name in ("layers", "save", "restore"):
        xml.etree.ElementTree.parse(DOCS / f"{name}.svg")
        assert f"]({name}.svg)" in page
