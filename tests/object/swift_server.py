"""OpenStack Swift with its S3 API: a whole object store, of one process for each kind of server, on loopback."""

from __future__ import annotations

import contextlib
import getpass
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
from typing import Iterator, List

from bucket_servers import BUCKET, BucketServer
from harness.waiting import TIMEOUT, until

BACKEND = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
swift_dir = {folder}
devices = {folder}/devices
recon_cache_path = {folder}
mount_check = false
disable_fallocate = true
workers = 0
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""

PROXY = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
swift_dir = {folder}
workers = 0
[pipeline:main]
pipeline = catch_errors cache listing_formats s3api tempauth bulk slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_trainer = secret .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""

HASHES = """\
[swift-hash]
swift_hash_path_suffix = suffix
swift_hash_path_prefix = prefix
"""


def free_ports(count: int) -> List[int]:
    """Not of the range from which the kernel takes ports for connections: another process's connection could get one of
    them before the server has bound it.
    """
    ports: List[int] = []
    for port in random.sample(range(20000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError(f"no {count} free ports")


def program(name: str) -> List[str]:
    return [sys.executable, "-W", "ignore", str(pathlib.Path(sys.executable).parent / name)]


def make_ring(folder: pathlib.Path, kind: str, port: int) -> None:
    """One device and one copy."""
    builder = str(folder / f"{kind}.builder")
    for step in (["create", "4", "1", "0"], ["add", f"r1z1-127.0.0.1:{port}/one", "1"], ["rebalance"]):
        done = subprocess.run(
            [*program("swift-ring-builder"), builder, *step], capture_output=True, text=True, timeout=TIMEOUT
        )
        assert done.returncode == 0, done.stdout + done.stderr


def start_swift(folder: pathlib.Path) -> Iterator[BucketServer]:
    """`folder` is new, and of a file system with extended attributes."""
    (folder / "devices" / "one").mkdir(parents=True)
    (folder / "swift.conf").write_text(HASHES)
    kinds = ["account", "container", "object", "proxy"]
    processes: List[subprocess.Popen[bytes]] = []
    try:
        for kind, port in zip(kinds, free_ports(len(kinds))):
            if kind != "proxy":
                make_ring(folder, kind, port)
            text = PROXY if kind == "proxy" else BACKEND
            configuration = folder / f"{kind}.conf"
            configuration.write_text(text.format(kind=kind, port=port, folder=folder, user=getpass.getuser()))
            with open(folder / f"{kind}.log", "wb") as log:
                processes.append(
                    subprocess.Popen(
                        [*program(f"swift-{kind}-server"), str(configuration), "-v"],
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        server = BucketServer("swift", f"http://127.0.0.1:{port}", "test:trainer", "secret", lacks=())
        until(lambda: makes_bucket(server), f"Swift to make a bucket ({folder}/*.log)")
        yield server
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(TIMEOUT)


def makes_bucket(server: BucketServer) -> bool:
    try:
        server.client().create_bucket(Bucket=BUCKET)
    except Exception:  # noqa: BLE001 - of botocore, which has no common base of what a starting server answers
        return False
    return True
