"""JuiceFS by FUSE: metadata in Redis, objects in a folder, default options."""

from __future__ import annotations

import pathlib
import sys

from node_namespaces import Namespaces
from shared_file_systems.file_system import run, start, succeeds

from harness import until

PROGRAM = str(pathlib.Path(sys.prefix, "bin/juicefs"))
_PORT = 16379
_UNCACHED = ("--attr-cache=0", "--entry-cache=0", "--dir-entry-cache=0", "--open-cache=0")


class JuiceFs:
    def __init__(self) -> None:
        self._metadata = ""
        self._place = pathlib.Path()

    def serve(self, server: Namespaces, address: str, folder: pathlib.Path) -> None:
        self._metadata = f"redis://{address}:{_PORT}/1"
        self._place = folder.with_name("juicefs")
        (self._place / "objects").mkdir(parents=True)
        redis = ("redis-server", "--port", str(_PORT), "--bind", address, "--dir", str(self._place), "--appendonly", "yes")
        start(server.wrapper, self._place / "redis.log", *redis, "--protected-mode", "no")
        ping = ("redis-cli", "-h", address, "-p", str(_PORT), "ping")
        until(lambda: succeeds(server.wrapper, *ping), "redis-server")
        storage = ("--storage=file", f"--bucket={self._place}/objects/", "--trash-days=0")
        run(server.wrapper, PROGRAM, "format", *storage, self._metadata, "shared")
        self._mount(server.network_wrapper, "test", folder, *_UNCACHED)

    def mount(self, node: Namespaces, name: str, folder: pathlib.Path) -> None:
        self._mount(node.wrapper, name, folder)

    def _mount(self, wrapper: "list[str]", name: str, folder: pathlib.Path, *options: str) -> None:
        cache = f"--cache-dir={self._place}/cache-{name}"
        log = f"--log={self._place}/{name}.log"
        run(wrapper, PROGRAM, "mount", "-d", "--no-usage-report", cache, log, *options, self._metadata, str(folder))
