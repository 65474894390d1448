"""GlusterFS by FUSE: one brick, default options."""

from __future__ import annotations

import pathlib

from node_namespaces import Namespaces
from shared_file_systems.file_system import PROGRAMS, run, start, succeeds

from harness import until

_VOLUME = "shared"
# So that the test sees each change at once.
_UNCACHED = ("--attribute-timeout=0", "--entry-timeout=0", "--negative-timeout=0", "--auto-invalidation=yes")


class GlusterFs:
    def __init__(self) -> None:
        self._address = ""
        self._logs = pathlib.Path()

    def serve(self, server: Namespaces, address: str, folder: pathlib.Path) -> None:
        self._address = address
        self._logs = folder.parent
        brick = folder.with_name("brick")
        brick.mkdir()
        log = self._logs / "glusterd.log"
        configuration = PROGRAMS / "etc/glusterfs/glusterd.vol"
        start(server.wrapper, log, "glusterd", "--no-daemon", f"--volfile={configuration}", f"--log-file={log}")
        gluster = ("gluster", "--mode=script", "volume")
        until(lambda: succeeds(server.wrapper, *gluster, "list"), "glusterd")
        run(server.wrapper, *gluster, "create", _VOLUME, "transport", "tcp", f"{address}:{brick}", "force")
        run(server.wrapper, *gluster, "start", _VOLUME)
        self._mount(server.network_wrapper, "test", folder, *_UNCACHED)

    def mount(self, node: Namespaces, name: str, folder: pathlib.Path) -> None:
        self._mount(node.wrapper, name, folder)

    def _mount(self, wrapper: "list[str]", name: str, folder: pathlib.Path, *options: str) -> None:
        log = f"--log-file={self._logs}/glusterfs-{name}.log"
        volume = (f"--volfile-server={self._address}", f"--volfile-id={_VOLUME}")
        run(wrapper, "glusterfs", *volume, log, *options, str(folder))
        # The client answers before it has found the brick.
        until(lambda: succeeds(wrapper, "stat", "-f", str(folder)), f"the mount of {name}")
