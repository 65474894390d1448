"""Copies a folder to a bucket or back, by s3transfer: with the client of awscrt, in C, or with boto3's threads.

client_program.py crt|threads upload|fetch ENDPOINT PREFIX FOLDER. Prints the seconds and those of CPU, without the start
of Python. What is fetched is durable then, as it is after `ckptctl fetch`.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from typing import Any, Dict, List

BUCKET = "bench"
PART_BYTES = 16 << 20  # As ckptd's.
# The server checks no signature.
KEYS = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}


def crt_manager(endpoint: str) -> Any:
    import awscrt.auth
    import botocore.session
    from s3transfer.crt import BotocoreCRTRequestSerializer, CRTTransferManager, create_s3_crt_client

    session = botocore.session.Session()
    session.set_credentials(*KEYS.values())
    # Path style: the name of the bucket is in no host's name here.
    options = {"region_name": "us-east-1", "endpoint_url": endpoint, "config": path_style()}
    credentials = awscrt.auth.AwsCredentialsProvider.new_static(*KEYS.values())
    client = create_s3_crt_client("us-east-1", credentials, part_size=PART_BYTES, use_ssl=False)
    return CRTTransferManager(client, BotocoreCRTRequestSerializer(session, options))


def threads_manager(endpoint: str) -> Any:
    import boto3
    from s3transfer.manager import TransferConfig, TransferManager

    client = boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint, config=path_style(), **KEYS)
    return TransferManager(client, TransferConfig(PART_BYTES, PART_BYTES, max_request_concurrency=10))


def path_style() -> Any:
    from botocore.config import Config

    return Config(s3={"addressing_style": "path"})


def upload(manager: Any, prefix: str, folder: pathlib.Path, names: List[str]) -> None:
    checked = {"ChecksumAlgorithm": "CRC32C"}
    waiting = [
        manager.upload(str(folder / name), BUCKET, f"{prefix}/{name}", dict(checked)) for name in names
    ]
    for each in waiting:
        each.result()


def fetch(manager: Any, prefix: str, folder: pathlib.Path, names: List[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    waiting = [manager.download(BUCKET, f"{prefix}/{name}", str(folder / name)) for name in names]
    for each in waiting:
        each.result()
    for name in names:
        with open(folder / name, "rb") as file:
            os.fsync(file.fileno())


def main() -> None:
    kind, what, endpoint, prefix, path, *names = sys.argv[1:]
    made: Dict[str, Any] = {"crt": crt_manager, "threads": threads_manager}
    with made[kind](endpoint) as manager:
        begin, cpu = time.perf_counter(), sum(os.times()[:2])
        {"upload": upload, "fetch": fetch}[what](manager, prefix, pathlib.Path(path), names)
        seconds, cpu = time.perf_counter() - begin, sum(os.times()[:2]) - cpu
    print(json.dumps({"seconds": seconds, "cpu": cpu}))


if __name__ == "__main__":
    main()
