"""The README's tour, pasted again and again by a user without privileges, prints the same each time."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Dict, Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRANGER = 54321  # A uid that no account has; 65534 owns no run.


@pytest.fixture
def home() -> Iterator[pathlib.Path]:
    """A folder that the unprivileged user owns."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-tour-test-"))
    if os.geteuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def example(document: str, name: str) -> str:
    text = (ROOT / document).read_text()
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)\n```", text, re.DOTALL)
    assert found, f"{document} has no example {name}"
    return found[1]


def unprivileged() -> Dict[str, Any]:
    return {"user": STRANGER, "group": STRANGER, "extra_groups": []} if os.geteuid() == 0 else {}


@pytest.mark.parametrize(
    "document, name, printed",
    [
        ("README.md", "quick-start", "torch.Size([1024, 1024])\n"),
        (
            "docs/python.md",
            "tour",
            "['step_5', 'step_4', 'step_3']\nstep_5 5 b'hello'\ntorch.Size([1024, 1024])\n",
        ),
    ],
)
def test_tour_pasted_again_and_again_prints_the_same_each_time(
    home: pathlib.Path, document: str, name: str, printed: str
) -> None:
    code = example(document, name)
    assert "/tmp/ckptd-tour" in code and "/data/" not in code, "the tour needs a folder that anybody can make"
    code = code.replace("/tmp/ckptd-tour", str(home / "tour"))
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "CKPTD_ENDPOINT")}
    lines_of_grpc = 0
    for _ in range(4):  # What the first two leave may differ; the tour of Python keeps three checkpoints.
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=home,
            env={**environment, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **unprivileged(),
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == printed
        # gRPC may write so of a descriptor of its own when the last channel of a process is closed. To keep a channel open
        # would keep its threads in processes that have ended their work with ckptd, and that may fork.
        lines = done.stderr.splitlines()
        others = [line for line in lines if "encountered epoll_wait error: Bad file descriptor" not in line]
        assert others == []
        lines_of_grpc += len(lines)
    assert lines_of_grpc <= 1, "that is rare"
