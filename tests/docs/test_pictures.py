"""The pictures of the README and of docs/architecture.md, and the lists of steps, are what docs/pictures.py makes."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import pictures  # noqa: E402


def test_pictures_and_lists_are_up_to_date() -> None:
    run = subprocess.run(
        [sys.executable, str(DOCS / "pictures.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_pictures_are_well_formed_and_shown() -> None:
    page = (DOCS / "architecture.md").read_text()
    for name in ("layers", "save", "restore"):
        xml.etree.ElementTree.parse(DOCS / f"{name}.svg")
        assert f"]({name}.svg)" in page


def test_readme_shows_the_timeline_on_its_first_screen_with_the_figures_of_performance_md() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:12]
    shown = [line for line in first_screen if line.endswith("](docs/timeline.svg)")]
    assert len(shown) == 1
    picture = xml.etree.ElementTree.parse(DOCS / "timeline.svg").getroot()
    words = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    rows = re.findall(r"^\| `?([\w.]+)`? \|(.+)\|$", (DOCS / "performance.md").read_text(), re.MULTILINE)
    for name in ("torch.save", "dcp.async_save", "ckptd"):
        cells = next(cells for contender, cells in rows if contender == name).replace("*", "").split("|")
        stall, durable = cells[1].split()[0], cells[3].strip()
        assert f"{name}: {stall} s, {durable} s" in shown[0]
        assert name in words and f"stands still {stall} s, durable after {durable} s" in words


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
