"""Where the ranks of a job run: which of them one daemon serves, and why that cannot work.

Each rank describes its own place, and computes the same from the places of all.
"""

import json
import os
import socket
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ckptd import errors
from ckptd._adapters.store import words_of
from ckptd._membership import launch

_HOW = (
    "run the service on every node (systemctl start ckptd), with etcd and the folder of the checkpoints in its "
    "configuration: cluster { etcd_endpoints: ... shared_folders: ... } (docs/operations.md, Runs that span nodes); or run "
    "all ranks on one node"
)


class Place(NamedTuple):
    """The place of a rank."""

    host: str
    machine: str  # The boot of its kernel: containers have host names of their own.
    endpoint: str  # Of the daemon that it uses; empty: it would start a private one.
    daemon: str  # The id of that daemon; empty if none has answered.
    private: str  # The folder of a private daemon; empty if it uses another one.
    folder: str  # Identifies the directory in which that folder is.
    error: str  # Why the daemon of the endpoint cannot be used; empty if it can.
    listed: Tuple[int, ...]  # The ranks of its node, as the launcher lists them; empty: it does not.

    def to_text(self) -> str:
        """Returns this place as a message for the other ranks."""
        return json.dumps(self)

    @property
    def marks(self) -> List[str]:
        """Texts of which two ranks share one if one daemon serves both. A daemon that has restarted has another id."""
        if not self.endpoint:
            return [f"private {self.machine} {self.folder} {self.private}"]
        return [f"at {self.machine} {self.host} {self.endpoint}", *([f"of {self.daemon}"] if self.daemon else [])]

    @property
    def words(self) -> str:
        """This place in words, after the ranks: what serves them, or why nothing does."""
        if self.error:
            return f"on {self.host}: {self.error}"
        return f"on {self.host}: {f'the daemon at {self.endpoint}' if self.endpoint else 'no service, and no $CKPTD_ENDPOINT'}"


def place_of_text(text: str) -> Place:
    """Returns the place that Place.to_text() has described."""
    place = Place(*json.loads(text))
    return place._replace(listed=tuple(place.listed))


def own_place(
    endpoint: str, daemon: str, private: str, error: str, rank: int, world_size: int
) -> Place:
    """Returns the place of this process, a rank."""
    listed = launch.ranks_by_launcher(rank, world_size) or launch.block_by_launcher(rank, world_size)
    return Place(
        socket.gethostname(), launch.boot_id(), endpoint, daemon, private, _identity(private), error, listed
    )


def nodes_of(places: Mapping[int, Place]) -> List[List[int]]:
    """Returns the ranks of each node, ascending: those that one daemon serves."""
    node_of: Dict[str, int] = {}  # The first rank of the node, by each mark of its ranks.
    nodes: Dict[int, List[int]] = {}
    for rank, place in sorted(places.items()):
        shared = {node_of[mark] for mark in place.marks if mark in node_of}
        first = min(shared, default=rank)
        ranks = nodes.setdefault(first, [])
        for other in shared - {first}:
            ranks += nodes.pop(other)
            node_of = {mark: first if node == other else node for mark, node in node_of.items()}
        ranks.append(rank)
        node_of.update(dict.fromkeys(place.marks, first))
    return sorted(sorted(ranks) for ranks in nodes.values())


def why_not(places: Mapping[int, Place]) -> Optional[errors.CkptdError]:
    """Returns why these ranks cannot save together, with what to do; None if nothing here speaks against it."""
    nodes = nodes_of(places)
    unserved = [rank for rank, place in places.items() if not place.daemon]
    if len(nodes) == 1 or not unserved:
        return None
    words = "; ".join(f"rank{'s' * (len(node) > 1)} {words_of(node)} {places[node[0]].words}" for node in nodes)
    if len({place.machine for place in places.values()}) > 1 or any(place.error for place in places.values()):
        return errors.make(
            "UNIMPLEMENTED",
            "MULTI_NODE_UNSUPPORTED",
            f"the ranks are on {len(nodes)} nodes, and ckptd does not serve all of them ({words}): {_HOW}",
            ranks=unserved,
        )
    folders = "; ".join(
        f"rank{'s' * (len(node) > 1)} {words_of(node)}: "
        + (f"a private one in {places[node[0]].private}" if places[node[0]].private else f"the one at {places[node[0]].endpoint}")
        for node in nodes
    )
    return errors.invalid(
        f"the ranks use different daemons ({folders}): set the same TMPDIR on all of them, below which private daemons have their "
        "folders, or name one daemon by configure(endpoint=...) or $CKPTD_ENDPOINT"
    )


class Known:
    """What a process knows of the places of its launch's ranks."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._places: Dict[int, Place] = {}

    def add(self, places: Mapping[int, Place]) -> None:
        """Adds the places of some ranks."""
        self._places.update(places)

    @property
    def is_complete(self) -> bool:
        """Whether the places of all ranks are known."""
        return len(self._places) == self._world_size

    def nodes(self, ranks: Sequence[int] = ()) -> List[List[int]]:
        """Returns nodes_of() the ranks that are known, or of these."""
        return nodes_of({rank: self._places[rank] for rank in ranks} if ranks else self._places)

    def local_ranks(self) -> Optional[List[int]]:
        """Returns the ranks on this node; None: what is known does not say more than the launcher does."""
        nodes = self.nodes()
        mine = next((node for node in nodes if self._rank in node), [])
        if self.is_complete:
            return mine
        return mine if len(nodes) > 1 and not self._fits_launcher(mine) else None

    def _fits_launcher(self, mine: Sequence[int]) -> bool:
        """Returns whether the launcher lists ranks for this node, and what is known here does not speak against it."""
        listed = set(self._places[self._rank].listed)
        return bool(listed) and listed & set(self._places) == set(mine)


def _identity(folder: str) -> str:
    """Returns what tells the directory of a private daemon's folder from one of the same name in another container."""
    try:
        found = os.stat(os.path.dirname(folder)) if folder else None
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}" if found is not None else ""
