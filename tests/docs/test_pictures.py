"""The pictures of docs/architecture.md, and its tables of steps, are what docs/pictures.py makes."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tomllib
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import pictures  # noqa: E402


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


def test_the_layers_are_those_of_layers_toml() -> None:
    """Each folder is in the picture, above all that it may use."""
    rows = {f"{tree}{name}": row for row, (tree, boxes) in enumerate(pictures.LAYERS) for name, _ in boxes}
    allowed = tomllib.loads((ROOT / "tests/architecture/layers.toml").read_text())["cpp"]
    assert set(allowed) == {folder for folder in rows if not folder.startswith("proto/")}
    upwards = [
        (folder, used)
        for folder, uses in allowed.items()
        for used in uses
        if not used.endswith("/*") and rows[used] <= rows[folder]
    ]
    assert not upwards
