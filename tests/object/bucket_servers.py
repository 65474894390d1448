"""Servers that speak S3, for tests, and the environment that leads ckptctl to one of them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any, Dict, Iterator, Tuple

import boto3
import pytest
from harness.waiting import TIMEOUT

BUCKET = "checkpoints"
# For tests that do not run against every server: moto is the quick one, and Swift compares checksums.
with_moto = pytest.mark.parametrize("server", ["moto"], indirect=True, scope="session")
with_swift = pytest.mark.parametrize("server", ["swift"], indirect=True, scope="session")

# What the least policy of docs/buckets.md allows.
POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"],
            "Resource": f"arn:aws:s3:::{BUCKET}",
        },
        {
            "Effect": "Allow",
            "Action": [
                "s3:GetObject",
                "s3:PutObject",
                "s3:DeleteObject",
                "s3:AbortMultipartUpload",
                "s3:ListMultipartUploadParts",
            ],
            "Resource": f"arn:aws:s3:::{BUCKET}/*",
        },
    ],
}

# Its port is chosen by the system and printed. After the calls that make bucket, user, policy and key, it checks
# signatures and policies.
MOTO = """
import threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
"""


@dataclasses.dataclass
class BucketServer:
    name: str
    endpoint: str
    access_key: str
    secret_key: str
    lacks: Tuple[str, ...]  # What of the contract of ObjectStore it is known to lack.

    def environment(self) -> Dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {
            **kept,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def client(self, service: str = "s3", **more: Any) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            **more,
        )


def start_moto() -> Iterator[BucketServer]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", MOTO],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4"},
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "moto has not started"
        lacks = ("checksums", "ended uploads")
        server = BucketServer("moto", f"http://127.0.0.1:{port}", "first", "first", lacks)
        server.client().create_bucket(Bucket=BUCKET)
        iam = server.client("iam")
        iam.create_user(UserName="trainer")
        iam.put_user_policy(UserName="trainer", PolicyName="least", PolicyDocument=json.dumps(POLICY))
        key = iam.create_access_key(UserName="trainer")["AccessKey"]
        server.access_key, server.secret_key = key["AccessKeyId"], key["SecretAccessKey"]
        yield server
    finally:
        process.kill()
        process.wait(TIMEOUT)
