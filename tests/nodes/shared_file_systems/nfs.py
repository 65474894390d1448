"""NFS 4.2: the kernel's server and its client, default options. The test sees the server's folder itself."""

from __future__ import annotations

import pathlib

from node_namespaces import Namespaces
from shared_file_systems.file_system import run, start


class Nfs:
    def __init__(self) -> None:
        self._address = ""
        self._served = ""

    def serve(self, server: Namespaces, address: str, folder: pathlib.Path) -> None:
        self._address = address
        self._served = str(folder)
        run(server.wrapper, "mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
        run(server.wrapper, "mkdir", "-p", "/var/lib/nfs/v4recovery")
        run(server.wrapper, "touch", "/var/lib/nfs/etab", "/var/lib/nfs/rmtab")
        run(server.wrapper, "exportfs", "-i", "-o", "rw,no_root_squash,no_subtree_check,fsid=0", f"*:{folder}")
        start(server.wrapper, folder.with_name("mountd.log"), "rpc.mountd", "--foreground", "-N", "2", "-N", "3")
        run(server.wrapper, "rpc.nfsd", "--no-nfs-version", "3", "--grace-time", "10", "--lease-time", "10", "8")

    def mount(self, node: Namespaces, name: str, folder: pathlib.Path) -> None:
        # What mount.nfs would find out is given here: it wants a name service.
        run(node.wrapper, "mount", "-i", "-t", "nfs4", f"{self._address}:/", str(folder), "-o", self._options(node))

    def _options(self, node: Namespaces) -> str:
        return f"vers=4.2,addr={self._address}"
