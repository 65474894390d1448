"""tools/conformance --upstream: runs the checkpoint tests of other projects with their own code and with ckptd.

They are those of the source distributions of the package index, of the versions that are installed, and are downloaded when this
runs. Of the libraries that ckptd has adapters for, only accelerate publishes tests of checkpoints there.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from typing import Dict, List, Tuple

from conformance import page, runner

TESTS = pathlib.Path(__file__).resolve().parents[1]
_SECONDS = 1800


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tests of another project."""

    package: str  # In the package index.
    files: Tuple[str, ...]  # Within its source distribution.
    select: str  # pytest's -k.
    plugin: str  # The module that makes these tests save and load through ckptd. It adds a line to $UPSTREAM_SAVES for each save.
    needs: Tuple[str, ...]  # Further packages that the tests import.


SUITES = [
    Suite(
        "accelerate",
        ("tests/test_state_checkpointing.py", "tests/test_accelerator.py"),
        "save or load or Checkpoint",
        "conformance.accelerate_plugin",
        ("parameterized", "torchdata"),
    ),
]


def main() -> int:
    lines = []
    defects = 0
    with tempfile.TemporaryDirectory(prefix="ckptd-upstream-") as folder, runner.daemon(os.path.join(folder, "daemon")) as endpoint:
        for suite in SUITES:
            here = pathlib.Path(folder, suite.package)
            source = _download(suite, here)
            stock = _run(suite, source, here, [], endpoint)
            ours = _run(suite, source, here, ["-p", suite.plugin], endpoint)
            worse = sorted(name for name, outcome in stock.items() if outcome == "passed" and ours.get(name) != "passed")
            for name in worse:
                print(f"{suite.package}: {name} passes with {suite.package} alone, and not with ckptd", file=sys.stderr)
            defects += len(worse)
            through = (here / "saves").read_text().count("\n") if (here / "saves").exists() else 0
            assert through, f"no test of {suite.package} saved through ckptd: {suite.plugin} does not replace what they call"
            lines.append(_row(suite, stock, ours, through))
    text = page.with_upstream(page.PAGE.read_text(), lines)
    page.PAGE.write_text(text)
    print("\n".join([*lines, f"wrote {page.PAGE}", f"{defects} tests pass without ckptd only"]))
    return 1 if defects else 0


def _row(suite: Suite, stock: Dict[str, str], ours: Dict[str, str], through: int) -> str:
    version = importlib.metadata.version(suite.package)
    counts = [f"{list(found.values()).count('passed')} of {len(found)}" for found in (stock, ours)]
    skipped = list(stock.values()).count("skipped")
    files = ", ".join(f"`{suite.package}-{version}/{file}`" for file in suite.files)
    return f"| {files} | {counts[0]} | {counts[1]} | {skipped} | {through} |"


def _download(suite: Suite, folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the source distribution of the version that is installed."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    name = f"{suite.package}=={importlib.metadata.version(suite.package)}"
    build = ["--no-deps", "--no-build-isolation", "--no-binary", suite.package]
    subprocess.run([*pip, "download", *build, "--dest", str(folder), name], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "needs"), *suite.needs], check=True)
    (archive,) = folder.glob("*.tar.gz")
    subprocess.run(["tar", "--extract", "--no-same-owner", "--file", str(archive), "--directory", str(folder)], check=True)
    (source,) = [path for path in folder.iterdir() if (path / "PKG-INFO").is_file()]
    return source


def _run(suite: Suite, source: pathlib.Path, folder: pathlib.Path, options: List[str], endpoint: str) -> Dict[str, str]:
    """Returns how each test ends: passed, failed or skipped."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        report = os.path.join(place, "report.xml")
        path = os.pathsep.join([str(TESTS), str(folder / "needs")])
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": place, "CKPTD_ENDPOINT": endpoint, "OMP_NUM_THREADS": "1"}
        environment["UPSTREAM_SAVES"] = str(folder / "saves")  # A line for each save of the plugin.
        files = [str(source / file) for file in suite.files]
        command = [sys.executable, "-m", "pytest", "-q", "-k", suite.select, f"--junitxml={report}", *options, *files]
        subprocess.run(command, cwd=source, env=environment, timeout=_SECONDS, stdout=sys.stderr)
        found = {}
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found
