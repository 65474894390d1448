"""The server of the bucket, as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Dict

URL = "s3://bench"


class Server:
    """Runs within a `with` block."""

    def __init__(self, niceness: int = 0) -> None:
        """niceness: of its process; 19 where it stands for another machine."""
        self._niceness = niceness

    def __enter__(self) -> "Server":
        command = [sys.executable, "-m", "bench.cases.bucket.object_server", str(self._niceness)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = f"http://127.0.0.1:{self._line()}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        return float(self._ask("cpu"))

    def empty(self) -> None:
        """Removes all objects. Their memory is for the next ones."""
        self._ask("empty")

    @property
    def environment(self) -> Dict[str, str]:
        """That of a program whose bucket it is."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        files = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
        keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
        return {**kept, **files, **keys, "AWS_ENDPOINT_URL_S3": self.endpoint}

    def _ask(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"the server of the bucket ended with status {self._process.wait()}")
        return line
