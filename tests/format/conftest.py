from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from tensor_files import Refused, Tool, build


@pytest.fixture(scope="session")
def tool() -> Tool:
    """Runs the tool: tool("show", path) returns its output, parsed as JSON. Raises Refused on an error."""
    path = build()

    def run(*arguments: Any) -> Any:
        done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        if done.returncode == 1:
            raise Refused(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    return run
