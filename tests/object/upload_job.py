"""A daemon whose runs upload to a bucket behind a relay that tests close, and a job that saves there."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import uuid
from typing import Any, Optional

import ckptd
from bucket_servers import BUCKET, BucketServer
from ckptd.local_daemon import find_program
from harness import DaemonProgram
from slow_proxy import Proxy

SIZE = (16 << 20) + 4321  # Two parts.


class Job:
    """A daemon with the server's environment, and a run that uploads to a prefix of its own."""

    def __init__(
        self,
        folder: pathlib.Path,
        server: BucketServer,
        configuration: str = "",
        proxy: Optional[Any] = None,
    ) -> None:
        """`proxy` leads to the server, and has `endpoint` and `end()`; None: a Proxy."""
        self.server = server
        self.proxy: Any = proxy or Proxy(server.endpoint)
        self.prefix = uuid.uuid4().hex
        self.url = f"s3://{BUCKET}/{self.prefix}"
        self.root = folder / "root"
        self.daemon = DaemonProgram(
            folder,
            "pool { bytes: 134217728 segment_bytes: 2097152 huge_pages: PLAIN }\nmetrics { port: 0 }\n"
            + (configuration or f'upload {{ allowed_prefixes: "s3://{BUCKET}" }}\n'),
        )
        self.client: Optional[ckptd.Client] = None

    def start(self) -> ckptd.Client:
        environment = {**self.server.environment(), "AWS_ENDPOINT_URL_S3": self.proxy.endpoint}
        if not self.daemon.running():
            assert self.daemon.launch(environment=environment), self.daemon.log()
        if self.client is None:
            self.client = ckptd.connect(self.daemon.endpoint)
        return self.client

    def run(self, **options: Any) -> ckptd.Run:
        return self.start().run(self.root, upload=ckptd.Upload(self.url, **options))

    def tool(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [find_program("ckptctl"), f"--endpoint={self.daemon.endpoint}", *arguments],
            env=self.server.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def uploaded(self) -> set[str]:
        """The tags that the bucket has a whole checkpoint of."""
        listed = self.server.client().list_objects_v2(Bucket=BUCKET, Prefix=self.prefix)
        keys = [found["Key"] for found in listed.get("Contents", [])]
        return {key.split("/")[1] for key in keys if key.endswith("/.ckptd/manifest")}

    def status(self) -> Any:
        (run,) = self.daemon.status().runs
        return run.uploads

    def lose_disk(self) -> None:
        """Ends the daemon, and the node comes back with an empty disk."""
        self.restart_without(self.root)

    def restart_without(self, *folders: pathlib.Path) -> None:
        assert self.client is not None
        self.client.close()
        self.client = None
        self.daemon.end(signal.SIGKILL)
        for folder in folders:
            shutil.rmtree(folder)
        shutil.rmtree(self.daemon.folder / "state")

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        self.daemon.close()
        self.proxy.end()


def save(run: ckptd.Run, step: int, size: int = 1000) -> ckptd.Save:
    return run.save(f"step_{step}", step=step, files={"data.bin": os.urandom(size)})
