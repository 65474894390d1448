"""Runs the C++ readers and writers of tensor files, through the program in this folder."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any, Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
Tool = Callable[..., Any]


class Refused(Exception):
    """The tool refused a file; the message is the tool's."""


def build() -> str:
    """Builds the tool and returns its path. CKPTD_ARCHIVE_TOOL names one that is already built, such as one
    with a sanitizer.
    """
    built = os.environ.get("CKPTD_ARCHIVE_TOOL")
    if built:
        return built
    script = """
        source tools/lib.sh
        ckptd_bazel build --config=release --noshow_progress --show_result=0 --ui_event_filters=-info //tests/format:archive_tool >&2
        echo "$(ckptd_bazel info --config=release bazel-bin 2>/dev/null)/tests/format/archive_tool"
    """
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
