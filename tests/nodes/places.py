"""Where etcd and the nodes of a cluster run: all on this host, or each node in namespaces of its own. In a sandbox of a shared
file system each node mounts that.
"""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
from collections.abc import Sequence
from typing import List, Optional, Protocol

from node_namespaces import Namespaces
from shared_file_systems import SharedFileSystem, chosen

from harness import TIMEOUT


class Places(Protocol):
    """Addresses, and the commands that run a program in its place. `close` ends all that is there."""

    etcd_addresses: Sequence[str]
    etcd_wrapper: Sequence[str]

    def share(self, shared: pathlib.Path) -> None:
        """Gets the folder ready that all nodes are going to share; it is empty."""

    def stop_sharing(self, shared: pathlib.Path) -> None:
        """Takes the folder off this host. No node uses it any more."""

    def node_wrapper(self, node: int, shared: pathlib.Path) -> Sequence[str]:
        """Makes a node, where `shared` is that folder."""

    def close(self) -> None: ...


class OneHost:
    """All programs see each other. The loopback addresses are, most likely, no other cluster's of this machine."""

    def __init__(self) -> None:
        network = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}"
        self.etcd_addresses = [f"{network}.{number}" for number in (1, 2, 3)]
        self.etcd_wrapper: List[str] = []

    def share(self, shared: pathlib.Path) -> None:
        pass

    def stop_sharing(self, shared: pathlib.Path) -> None:
        pass

    def node_wrapper(self, node: int, shared: pathlib.Path) -> Sequence[str]:
        return []

    def close(self) -> None:
        pass


def why_no_namespaces() -> str:
    """Why `SeparateHosts` cannot be made here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root"
    links = "ip link add name bridge0 type bridge && ip link add name veth0 type veth peer name veth1"
    done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", links], capture_output=True, text=True)
    return f"needs network namespaces with bridges: {done.stderr.strip()}" if done.returncode else ""


class SeparateHosts:
    """Each node has a network and mounts of its own. A bridge joins them with etcd, whose members are in one place, with the
    server of the file system if there is one; else all nodes mount one local folder.
    """

    def __init__(self, file_system: Optional[SharedFileSystem] = None) -> None:
        self._file_system = file_system
        network = "198.18.0"  # For tests of networks; nothing else in these namespaces has an address.
        self.etcd_addresses = [f"{network}.{number}" for number in (1, 2, 3)]
        self._switch = Namespaces()
        self._nodes: List[Namespaces] = []
        self.etcd_wrapper = self._switch.wrapper
        self._switch.run("ip", "link", "add", "name", "bridge0", "type", "bridge")
        for address in self.etcd_addresses:
            self._switch.run("ip", "address", "add", f"{address}/24", "dev", "bridge0")
        self._switch.run("ip", "link", "set", "bridge0", "up")

    def share(self, shared: pathlib.Path) -> None:
        if self._file_system:
            for state in ("/var/lib", "/run"):  # Each server has its own.
                self._switch.run("mount", "-t", "tmpfs", "tmpfs", state)
            self._file_system.serve(self._switch, self.etcd_addresses[0], shared)

    def stop_sharing(self, shared: pathlib.Path) -> None:
        if os.path.ismount(shared):
            subprocess.run(["umount", "--lazy", str(shared)], check=True, timeout=TIMEOUT)

    def node_wrapper(self, node: int, shared: pathlib.Path) -> Sequence[str]:
        made = Namespaces()
        self._nodes.append(made)
        link = ["ip", "link", "add", "name", f"node{node}", "type", "veth"]
        self._switch.run(*link, "peer", "name", "eth0", "netns", str(made.pid))
        self._switch.run("ip", "link", "set", f"node{node}", "master", "bridge0", "up")
        made.run("ip", "address", "add", f"{self.address(node)}/24", "dev", "eth0")
        made.run("ip", "link", "set", "eth0", "up")
        self._mount(node, shared)
        return made.wrapper

    def _mount(self, node: int, shared: pathlib.Path) -> None:
        if self._file_system:
            self._file_system.mount(self._nodes[node], f"node{node}", shared)
        else:
            self._nodes[node].run("mount", "--bind", str(shared), str(shared))

    def address(self, node: int) -> str:
        return f"198.18.0.{10 + node}"

    def kill(self, node: int) -> None:
        """Ends all processes of a node at once, those of its file system, too."""
        self._nodes[node].kill()

    def boot(self, node: int, shared: pathlib.Path) -> None:
        """Makes a node ready again that was killed."""
        self._nodes[node].run("umount", "--lazy", str(shared))
        self._mount(node, shared)

    def cut(self, node: int) -> None:
        """Takes a node's cable out; the shared folder stays."""
        self._switch.run("ip", "link", "set", f"node{node}", "down")

    def heal(self, node: int) -> None:
        self._switch.run("ip", "link", "set", f"node{node}", "up")

    def close(self) -> None:
        for namespaces in [*self._nodes, self._switch]:
            namespaces.close()


def best_places() -> Places:
    """Nodes on the file system of this sandbox; outside of any, with networks of their own if this machine allows that."""
    file_system = chosen()
    return SeparateHosts(file_system) if file_system or not why_no_namespaces() else OneHost()
