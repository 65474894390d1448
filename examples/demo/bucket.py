"""A bucket on this machine: moto, a server that speaks S3, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
from typing import Dict, Iterator

URL = "s3://checkpoints/run"

# Its port is chosen by the system and printed.
SERVER = """
import threading
import boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
endpoint = "http://127.0.0.1:%d" % server.get_host_and_port()[1]
key = dict(aws_access_key_id="demo", aws_secret_access_key="demo", region_name="us-east-1")
boto3.client("s3", endpoint_url=endpoint, **key).create_bucket(Bucket="checkpoints")
print(endpoint, flush=True)
threading.Event().wait()
"""


@contextlib.contextmanager
def serve(folder: pathlib.Path) -> Iterator[Dict[str, str]]:
    """Yields the environment in which a daemon finds the bucket of URL; its bytes lie in `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise SystemExit("the server of the bucket (moto) has not started; tools/setup installs it")
        yield {
            "AWS_ENDPOINT_URL_S3": endpoint,
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }
    finally:
        process.kill()
        process.wait()
