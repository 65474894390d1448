"""The nodes of a job in an adapter's tests: one node, or two, with the same tests.

A conftest.py that imports `nodes` and has the fixtures of harness.session_fixtures may mark tests with ON_ONE_AND_TWO_NODES.
"""

from __future__ import annotations

import pathlib
from typing import Any, Iterator, List, Protocol

import pytest
from cluster import Cluster, Node
from places import OneHost

from harness import closing

ONE_NODE, TWO_NODES = "one node", "two nodes"
ON_ONE_AND_TWO_NODES = pytest.mark.parametrize("nodes", [ONE_NODE, TWO_NODES], indirect=True, scope="session")
ON_TWO_NODES = pytest.mark.parametrize("nodes", [TWO_NODES], indirect=True, scope="session")
_POOL_BYTES = 256 << 20


class JobNodes(Protocol):
    """The places of a job's ranks, and of its checkpoints."""

    folder: str  # For roots.

    def endpoint(self, rank: int) -> str:
        """The endpoint of the daemon that serves a rank."""


class OneNode:
    """All ranks use one private daemon."""

    def __init__(self, daemon: Any, folder: str) -> None:
        self.folder = folder
        self._daemon = daemon

    def endpoint(self, rank: int) -> str:
        return str(self._daemon.endpoint)


class TwoNodes:
    """Even ranks are on one node, odd ones on another, as srun has them with --distribution=cyclic. No variable tells it."""

    def __init__(self, cluster: Cluster) -> None:
        self.folder = str(cluster.shared)
        self.nodes: List[Node] = cluster.nodes

    def endpoint(self, rank: int) -> str:
        return self.nodes[rank % len(self.nodes)].endpoint


@pytest.fixture(scope="session")
def pair_of_nodes(session_folder: str) -> Iterator[Cluster]:
    """Two nodes, for tests that leave them as they are."""
    folder = pathlib.Path(session_folder, "nodes")
    folder.mkdir()
    with closing(Cluster(folder, OneHost(), names=("gpu1", "gpu2"), pool_bytes=_POOL_BYTES)) as made:
        yield made


@pytest.fixture(scope="session")
def nodes(request: pytest.FixtureRequest, session_folder: str) -> JobNodes:
    if getattr(request, "param", ONE_NODE) == TWO_NODES:
        return TwoNodes(request.getfixturevalue("pair_of_nodes"))
    return OneNode(request.getfixturevalue("daemon"), session_folder)
