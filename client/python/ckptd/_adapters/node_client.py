"""The client that the adapters of other libraries share: of the node's daemon, or else of a private one."""

import logging
import os
import tempfile
import threading
import weakref
from typing import Any, Callable, Dict, Optional, Set, Tuple

from ckptd import errors
from ckptd._adapters import places, root_paths, store
from ckptd._client import DEFAULT_ENDPOINT, Client, connect
from ckptd._membership import launch
from ckptd._run_reader import DaemonRoot
from ckptd.local_daemon import LocalDaemon
from ckptd.run import Run

_log = logging.getLogger("ckptd")
_POOL_DIVISOR = 4  # A private daemon's pool is this machine's memory divided by this.
_OTHERS_SECONDS = 5.0  # How long ranks that save alone wait for the places of the others.

_NEEDS_CONFIGURATION = "MULTI_NODE_UNSUPPORTED"

Ranks = Tuple[int, ...]


class NodeClient:
    """Connects at the first use. meet() and join() are thread-safe; the others are not.

    The daemon is that of the endpoint, else of ``$CKPTD_ENDPOINT``, else the node's service, else a private
    daemon, which all ranks of this user on this machine share and which needs no root. A launch whose ranks are on
    several nodes gets no private daemon.
    """

    def __init__(self, name: str, endpoint: Optional[str] = None, pool_bytes: Optional[int] = None) -> None:
        """
        Args:
            name: of the adapter's module in this package, for messages.
            pool_bytes: the most memory of a private daemon. Default: a quarter of this machine's memory
        """
        self._name = name
        self._endpoint = endpoint
        self._pool_bytes = pool_bytes
        self._client: Optional[Client] = None
        self._private: Optional[LocalDaemon] = None
        self._lock = threading.RLock()
        self._launch = _KnownLaunch(None)

    def connected(self) -> Client:
        """Returns the client. ``CkptdError`` if there is no daemon and none can be started."""
        with self._lock:
            if self._client is None:
                self._client = connect(self._named() if self.finds_daemon() else self._start_private())
            return self._client

    def finds_daemon(self) -> bool:
        """Returns whether a daemon is named or this process uses one: then connected() starts none."""
        return bool(self._client or self._named())

    def serves(self, root: str) -> bool:
        """Returns whether the daemon has a root in a bucket already. Starts none."""
        return self.finds_daemon() and self.connected()._serves(root)

    def reader(self, root: str) -> Optional[DaemonRoot]:
        """Returns what reads a root for a process that is no rank; None for one in a bucket that no daemon serves()."""
        if root_paths.of(root).is_directory:
            return self.connected().open(root)
        return self.connected()._open_served(root) if self.serves(root) else None

    def seconds_without_daemon(self) -> float:
        """Returns for how long no daemon has answered; 0 while one answers, and before the first use."""
        return self._client._connection.outage.seconds() if self._client is not None else 0.0

    def close(self) -> None:
        """Closes the client, and leaves a private daemon, which publishes what is sealed."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        private, self._private = self._private, None
        if private is not None:
            private.stop()

    # ---- the launch of this process

    def meet(self, ranks: Ranks, seconds: float) -> None:
        """Learns where ranks are: each of them calls it. No-op once it is known, and without other ranks.

        Args:
            ranks: of the process group, ascending; empty: all.
            seconds: to wait for the others.

        Raises:
            errors.Refused: they cannot save together. All of them raise it, before anything was copied.
            errors.CheckpointFailed: some have not called it in time (``RANKS_MISSING``).
        """
        with self._lock:
            known = self._of_launch()
        world_size = known.world_size
        ranks = () if len(ranks) == world_size else ranks
        if world_size == 1 or known.is_met(ranks):
            return
        with known.lock_of(ranks):
            if known.is_met(ranks):
                return
            place = self._place(known.rank, world_size).to_text()
            store.post(self._key("place"), place)
            texts = known.exchange(
                self._key("places"), place, ranks, seconds, "save or load a checkpoint", lambda found: self._with_others(found, ranks)
            )
            found = {rank: places.place_of_text(text) for rank, text in texts.items()}
            refusal = places.why_not({rank: found[rank] for rank in ranks or store.every_rank()})
            if refusal is not None:
                raise refusal
            known.add(ranks, found)

    def announce(self) -> None:
        """Tells the other ranks where this one is, without waiting: those of a process group that save without it need it.

        No-op without other ranks.
        """
        known = self._of_launch()
        if known.world_size > 1:
            store.post(self._key("place"), self._place(known.rank, known.world_size).to_text())

    def join(self, root: str, ranks: Ranks, seconds: float, join: "Callable[[], Run]") -> Run:
        """Joins a run together with other ranks: each of them calls it. Arguments and errors are those of meet(), and:

        Args:
            join: joins as this rank.
        """
        self.meet(ranks, seconds)
        known = self._launch
        ranks = () if len(ranks) == known.world_size else ranks
        if not known.spans_nodes(ranks) or known.has_joined(root, ranks):
            return join()
        with known.lock_of(ranks):
            run: Optional[Run] = None
            failure: Optional[Exception] = None
            try:
                run = join()
            except Exception as error:  # The others wait for this rank's answer.
                failure = error
            told = "" if failure is None else f"{getattr(failure, 'reason', '')}\n{failure}"
            key = f"{self._key('join')}/{root}"
            texts = known.exchange(key, told, ranks, seconds, f"join the run in {root}")
            refusal = _refusal_of(root, texts)
            if refusal is not None:
                raise refusal from failure
            known.set_joined(root, ranks)
            assert run is not None  # Or else join() has failed.
            return run

    def knows_ranks(self) -> bool:
        """Returns whether the places of all ranks of this launch are known: then a run may be joined without meet()."""
        return self._of_launch().is_complete

    def local_ranks(self) -> Optional[Any]:
        """Returns the ranks of this launch on this node; None: as the launcher has them."""
        return self._of_launch().local_ranks()

    def _of_launch(self) -> "_KnownLaunch":
        """Returns what is known of the launch. A new process group is a new launch."""
        distributed = launch.process_group()
        group = distributed.group.WORLD if distributed is not None else None
        if self._launch.group is not group:
            self._launch = _KnownLaunch(group)
        return self._launch

    def _place(self, rank: int, world_size: int) -> places.Place:
        """Returns where this process runs. Connects to a daemon, and starts none."""
        endpoint = self._private.endpoint if self._private is not None else self._named()
        if not endpoint:
            return places.own_place("", "", _private_folder(), "", rank, world_size)
        private = _private_folder() if self._private is not None else ""
        try:
            daemon = self.connected()._connection.session().daemon_instance
        except errors.CkptdError as error:
            return places.own_place(endpoint, "", private, str(error), rank, world_size)
        return places.own_place(endpoint, daemon, private, "", rank, world_size)

    def _with_others(self, found: Dict[int, str], ranks: Ranks) -> Dict[int, str]:
        """Adds the places of ranks that take no part, as far as they have told them.

        It waits only where they matter: some ranks of a node must name all of that node, which the launcher has not told.
        """
        of_ranks = {rank: places.place_of_text(text) for rank, text in found.items()}
        others = [rank for rank in store.every_rank() if ranks and rank not in found]
        is_needed = len(places.nodes_of(of_ranks)) > 1 and not all(place.listed for place in of_ranks.values())
        return {**found, **store.await_texts(self._key("place"), others, _OTHERS_SECONDS if is_needed and others else 0.0)}

    def _key(self, what: str) -> str:
        return f"{self._name}/{what}"

    # ---- the daemon

    def _named(self) -> str:
        """Returns the endpoint of the daemon that is named, or of the service; empty if there is neither."""
        named = self._endpoint or os.environ.get("CKPTD_ENDPOINT") or ""
        return named or (DEFAULT_ENDPOINT if os.path.exists(DEFAULT_ENDPOINT.partition(":")[2]) else "")

    def _start_private(self) -> str:
        folder = _private_folder()
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        pool = self._pool_bytes or max(1 << 30, memory // _POOL_DIVISOR)
        _log.info(
            "ckptd: there is neither $CKPTD_ENDPOINT nor a service, so all ranks use a private daemon in %s with up to %d MiB; "
            "choose another one with ckptd.%s.configure()",
            folder,
            pool >> 20,
            self._name,
        )
        # populate_bytes=0: the daemon takes memory when a save needs it, and not when an adapter is installed.
        self._private = LocalDaemon(folder, pool_bytes=pool, populate_bytes=0).start()
        return self._private.endpoint


class _KnownLaunch:
    """What this process knows of one launch. group: the process group, None without one."""

    def __init__(self, group: Any) -> None:
        self.group = group
        distributed = launch.process_group()
        has_group = group is not None and distributed is not None
        self.rank = int(distributed.get_rank()) if has_group else 0
        self.world_size = int(distributed.get_world_size()) if has_group else 1
        self._known = places.Known(self.rank, self.world_size)
        self._met: Dict[Ranks, bool] = {}  # Whether these ranks are on several nodes.
        self._joined: Set[Tuple[str, Ranks]] = set()
        self._locks: Dict[Ranks, threading.RLock] = {}

    def is_met(self, ranks: Ranks) -> bool:
        return ranks in self._met or () in self._met

    def add(self, ranks: Ranks, found: "Dict[int, places.Place]") -> None:
        self._known.add(found)
        self._met[ranks] = len(self._known.nodes(ranks)) > 1

    @property
    def is_complete(self) -> bool:
        return self._known.is_complete

    def local_ranks(self) -> Optional[Any]:
        return self._known.local_ranks()

    def spans_nodes(self, ranks: Ranks) -> bool:
        """Returns whether these ranks, which have met, are on several nodes."""
        if ranks not in self._met and () in self._met:
            self._met[ranks] = len(self._known.nodes(ranks)) > 1
        return self._met.get(ranks, False)

    def has_joined(self, root: str, ranks: Ranks) -> bool:
        return (root, ranks) in self._joined

    def set_joined(self, root: str, ranks: Ranks) -> None:
        self._joined.add((root, ranks))

    def lock_of(self, ranks: Ranks) -> threading.RLock:
        """Returns a lock for what these ranks do together: their threads do it once."""
        return self._locks.setdefault(ranks, threading.RLock())

    def exchange(
        self, key: str, text: str, ranks: Ranks, seconds: float, what: str, complete: Optional[store.Complete] = None
    ) -> Dict[int, str]:
        """Returns the texts of ranks. CheckpointFailed if some have not come in time: the next call waits for them again."""
        numbers = _numbers_of(self.group)
        number = numbers.get((key, ranks), 0)
        name = f"{key}/{store.name_of(ranks)}/{number}"
        found = store.exchange(name, text, seconds, what, ranks, complete)
        missing = [rank for rank in ranks or store.every_rank() if rank not in found]
        if missing:
            raise errors.make(
                "DEADLINE_EXCEEDED",
                "RANKS_MISSING",
                f"ranks {store.words_of(missing)} have not begun to {what} within {seconds:g} s; all ranks must do so together",
                ranks=missing,
            )
        numbers[key, ranks] = number + 1
        return found


def _refusal_of(root: str, texts: Dict[int, str]) -> Optional[errors.CkptdError]:
    """Returns the error for all ranks, of why some cannot join (the reason, and a line with the rest); None if all have."""
    failures = {rank: text.partition("\n") for rank, text in texts.items() if text}
    if not failures:
        return None
    # The daemon of one node says what to configure; that of another one may see only that its lock is held.
    rank = min(failures, key=lambda rank: (failures[rank][0] != _NEEDS_CONFIGURATION, rank))
    reason, _, words = failures[rank]
    return errors.make("FAILED_PRECONDITION", reason, f"rank {rank} cannot save to {root}: {words}", ranks=sorted(failures))


# A process group, and how many exchanges of each key and ranks it has had: configure() does not begin anew.
_counted: Tuple[Any, Dict[Tuple[str, Ranks], int]] = (None, {})


def _numbers_of(group: Any) -> Dict[Tuple[str, Ranks], int]:
    global _counted
    if _counted[0] is not group:
        _counted = (group, {})
    return _counted[1]


def _private_folder() -> str:
    """Returns the folder of the private daemon, which is one for all adapters of this user."""
    return os.path.join(tempfile.gettempdir(), f"ckptd-{os.getuid()}")


def call_in_child(method: "Callable[[], Any]") -> None:
    """Has a method called in each child that this process forks, as long as its object lives.

    What belongs to the parent cannot be used there: its clients, and locks that its other threads may hold.
    """
    found = weakref.WeakMethod(method)

    def call() -> None:
        present = found()
        if present is not None:
            present()

    os.register_at_fork(after_in_child=call)
