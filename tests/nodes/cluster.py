"""Daemons that share a folder: each a node with a state directory, sockets and a name of its own."""

from __future__ import annotations

import itertools
import json
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any, Dict, List, Optional

from certificates import Authority
from etcd_members import EtcdMembers
from places import Places

from harness import DaemonProgram, Killer, ckptctl, until

NAMES = ("gpu1", "gpu2", "gpu3")
# How many times as long as elsewhere a program may take here: Linux in user mode runs it on a part of one core.
SLOWNESS = 3 if "User Mode Linux" in pathlib.Path("/proc/cpuinfo").read_text() else 1
# Short, so that the tests are; a daemon that a busy machine holds up for longer loses its registration.
LEASE_SECONDS = 6 * SLOWNESS  # Longer than etcd takes to elect another leader, which is two seconds and more.
GRACE_SECONDS = 2
ETCD_TIMEOUT_SECONDS = 2 * SLOWNESS
# How long an outcome may take that waits for no lease; and how much longer than its lease one may take that does.
PROMPT_SECONDS = 10 * SLOWNESS
# A node may have renewed its lease right before; an election, and the next coordinator, come after it.
LOSS_SECONDS = LEASE_SECONDS + GRACE_SECONDS + PROMPT_SECONDS


class Node(DaemonProgram):
    """A daemon that is killed and started again with the same state."""

    def __init__(
        self,
        folder: pathlib.Path,
        name: str,
        endpoints: Sequence[str],
        shared: pathlib.Path,
        wrapper: Sequence[str],
        killable: bool,
        pool_bytes: int = 64 << 20,
        authority: Optional[Authority] = None,
        configuration: str = "",
        environment: Optional[Dict[str, str]] = None,
    ) -> None:
        """`wrapper` is the command that runs the daemon and its ranks, such as one that enters a namespace. `killable`:
        each start has a `killer`. `environment`: the daemon's, beside this process's.
        """
        folder.mkdir()
        self.environment = environment
        self.name = name
        self.wrapper = wrapper
        self.killable = killable
        self._killer: Optional[Killer] = None
        self._starts = itertools.count(1)
        members = " ".join(f'etcd_endpoints: "{endpoint}"' for endpoint in endpoints)
        if authority:
            files = (authority.file, authority.certificate(name), authority.key(name))
            members += ' etcd_ca_file: "{}" etcd_certificate_file: "{}" etcd_key_file: "{}"'.format(*files)
        super().__init__(
            folder,
            f"pool {{ bytes: {pool_bytes} }} metrics {{ port: -1 }}\n"
            f'cluster {{ node_name: "{name}" {members} shared_folders: "{shared}"\n'
            f"  lease_seconds: {LEASE_SECONDS} node_grace_seconds: {GRACE_SECONDS}"
            f" etcd_timeout_seconds: {ETCD_TIMEOUT_SECONDS} }}\n" + configuration,
        )
        self.start()

    def start(self) -> None:
        wrapper = [*self.wrapper]
        if self.killable:
            self._killer = Killer(self.folder / f"killer{next(self._starts)}")
            wrapper += self._killer.wrapper()
        assert self.launch(wrapper=wrapper, environment=self.environment), self.log()

    @property
    def killer(self) -> Killer:
        """Chooses at which system call the daemon that runs now is killed."""
        assert self._killer is not None, f"{self.name} is not killable"
        return self._killer

    def ask(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Runs ckptctl on this node."""
        return ckptctl(*arguments, endpoint=self.endpoint, check=check, wrapper=self.wrapper)

    def listed(self, root: str) -> List[Dict[str, Any]]:
        """The checkpoints that this node lists, the newest first, as ckptctl describes them."""
        found: List[Dict[str, Any]] = json.loads(self.ask("--output=json", "list", root).stdout)["checkpoints"]
        return found

    def tags(self, root: str) -> List[str]:
        return [checkpoint["tag"] for checkpoint in self.listed(root)]

    def is_registered(self) -> bool:
        return bool(self.status().cluster.registered)

    def coordinator(self, root: str = "") -> str:
        """The node that decides for the shared run that is open here, or for that of `root`, as this node knows it; empty: none."""
        runs = [run for run in self.status().cluster.shared_runs if root in ("", run.root)]
        return str(runs[0].coordinator) if runs else ""


class Cluster:
    """etcd and the nodes, at their places (places.py)."""

    def __init__(
        self,
        folder: pathlib.Path,
        places: Places,
        killable: bool = False,
        names: Sequence[str] = NAMES,
        pool_bytes: int = 64 << 20,
        authority: Optional[Authority] = None,
        configuration: str = "",
        environments: Sequence[Optional[Dict[str, str]]] = (),
    ) -> None:
        """`authority`: etcd takes its certificates alone; it has signed those of the nodes. `configuration`: more of each
        daemon's. `environments`: of the daemons, one of each.
        """
        self.shared = folder.resolve() / "shared"
        self.shared.mkdir()
        self.root = str(self.shared / "run")
        self.places = places
        self.nodes: List[Node] = []
        self.etcd = EtcdMembers(places.etcd_addresses, places.etcd_wrapper, authority)
        try:
            places.share(self.shared)
            for number, name in enumerate(names):
                wrapper = places.node_wrapper(number, self.shared)
                endpoints = self.etcd.endpoints()
                environment = environments[number] if environments else None
                more = (pool_bytes, authority, configuration, environment)
                self.nodes.append(Node(folder / name, name, endpoints, self.shared, wrapper, killable, *more))
            self.wait_until_registered()
        except BaseException:
            self.close()
            raise

    def wait_until_registered(self) -> None:
        for node in self.nodes:
            until(lambda node=node: node.is_registered(), f"the registration of {node.name}")

    def coordinator(self) -> Node:
        """The node that decides for the run, once all nodes that have the run open agree on it."""

        def agreed() -> "List[Node]":
            names = {node.coordinator() for node in self.nodes if node.running()}
            return [node for node in self.nodes if names == {node.name}]

        return until(agreed, "a coordinator that all nodes know")[0]

    def followers(self) -> List[Node]:
        """The other nodes."""
        coordinator = self.coordinator()
        return [node for node in self.nodes if node is not coordinator]

    def logs(self) -> str:
        logs = [f"---- {node.name}\n{node.log()}" for node in self.nodes]
        return "\n".join([*logs, f"---- etcd\n{self.etcd.log()}"])

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.etcd.close()
        self.places.stop_sharing(self.shared)
