"""The client that the adapters of other libraries share: of the node's daemon, or else of a private one."""

import logging
import os
import tempfile
import weakref
from typing import Any, Callable, Optional

from ckptd._client import DEFAULT_ENDPOINT, Client, connect
from ckptd.local_daemon import LocalDaemon

_log = logging.getLogger("ckptd")
_POOL_DIVISOR = 4  # A private daemon's pool is this machine's memory divided by this.


class NodeClient:
    """Connects at the first use. Not thread-safe.

    The daemon is that of the endpoint, else of ``$CKPTD_ENDPOINT``, else the node's service, else a private
    daemon, which all ranks of this user on this machine share and which needs no root.
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

    def connected(self) -> Client:
        """Returns the client. ``CkptdError`` if there is no daemon and none can be started."""
        if self._client is None:
            self._client = connect(self._endpoint if self.finds_daemon() else self._start_private())
        return self._client

    @property
    def private_folder(self) -> str:
        """The folder of the private daemon; empty if this process uses another one, or none yet."""
        return self._private.folder if self._private is not None else ""

    def finds_daemon(self) -> bool:
        """Returns whether a daemon is named or this process uses one: then connected() starts none."""
        named = self._endpoint or os.environ.get("CKPTD_ENDPOINT") or self._client
        return bool(named) or os.path.exists(DEFAULT_ENDPOINT.partition(":")[2])

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

    def _start_private(self) -> str:
        folder = os.path.join(tempfile.gettempdir(), f"ckptd-{os.getuid()}")  # One for all adapters of this user.
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
