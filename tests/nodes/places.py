"""Where etcd and the nodes of a cluster run: all on this host, or each node in namespaces of its own."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
from collections.abc import Sequence
from typing import List, Protocol

from harness import TIMEOUT


class Places(Protocol):
    """Addresses, and the commands that run a program in its place. `close` ends all that is there."""

    etcd_addresses: Sequence[str]
    etcd_wrapper: Sequence[str]

    def node_wrapper(self, node: int, shared: pathlib.Path) -> Sequence[str]:
        """`shared` is the folder that all nodes share."""

    def close(self) -> None: ...


class OneHost:
    """All programs see each other. The loopback addresses are, most likely, no other cluster's of this machine."""

    def __init__(self) -> None:
        network = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}"
        self.etcd_addresses = [f"{network}.{number}" for number in (1, 2, 3)]
        self.etcd_wrapper: List[str] = []

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


class _Namespaces:
    """A network namespace and a mount namespace. They end with the process that made them, as all that is in them."""

    def __init__(self) -> None:
        hold = ["sh", "-c", "ip link set lo up && echo ready && exec cat"]
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation=private", *hold],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.holder.stdout is not None and self.holder.stdout.readline() == b"ready\n"
        self.pid = self.holder.pid
        self.wrapper = ["nsenter", f"--target={self.pid}", "--net", "--mount"]

    def run(self, *command: str) -> None:
        subprocess.run([*self.wrapper, *command], check=True, timeout=TIMEOUT)

    def close(self) -> None:
        self.holder.communicate(timeout=TIMEOUT)  # Closes its stdin, and waits.


class SeparateHosts:
    """Each node has a network and mounts of its own. A bridge joins them with etcd, whose members are in one place."""

    def __init__(self) -> None:
        network = "198.18.0"  # For tests of networks; nothing else in these namespaces has an address.
        self.etcd_addresses = [f"{network}.{number}" for number in (1, 2, 3)]
        self._switch = _Namespaces()
        self._nodes: List[_Namespaces] = []
        self.etcd_wrapper = self._switch.wrapper
        self._switch.run("ip", "link", "add", "name", "bridge0", "type", "bridge")
        for address in self.etcd_addresses:
            self._switch.run("ip", "address", "add", f"{address}/24", "dev", "bridge0")
        self._switch.run("ip", "link", "set", "bridge0", "up")

    def node_wrapper(self, node: int, shared: pathlib.Path) -> Sequence[str]:
        made = _Namespaces()
        self._nodes.append(made)
        link = ["ip", "link", "add", "name", f"node{node}", "type", "veth"]
        self._switch.run(*link, "peer", "name", "eth0", "netns", str(made.pid))
        self._switch.run("ip", "link", "set", f"node{node}", "master", "bridge0", "up")
        made.run("ip", "address", "add", f"198.18.0.{10 + node}/24", "dev", "eth0")
        made.run("ip", "link", "set", "eth0", "up")
        made.run("mount", "--bind", str(shared), str(shared))
        return made.wrapper

    def cut(self, node: int) -> None:
        """Takes a node's cable out; the shared folder stays."""
        self._switch.run("ip", "link", "set", f"node{node}", "down")

    def heal(self, node: int) -> None:
        self._switch.run("ip", "link", "set", f"node{node}", "up")

    def close(self) -> None:
        for namespaces in [*self._nodes, self._switch]:
            namespaces.close()
