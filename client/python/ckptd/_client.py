"""A client of one daemon: what connect() returns."""

import os
import weakref
from typing import Any, Optional, Union

from ckptd._saving.save_watcher import SaveWatcher
from ckptd._session.connection import Connection
from ckptd._session.session import socket_path
from ckptd._wire.protocol import messages
from ckptd.run import Run

DEFAULT_ENDPOINT = "unix:/run/ckptd/ckptd.sock"
_CONNECT_SECONDS = 10.0
_STATUS_SECONDS = 10.0


def connect(endpoint: Optional[str] = None, timeout: float = _CONNECT_SECONDS) -> "Client":
    """Connects to a daemon.

    Args:
        endpoint (str, optional): ``unix:/path/to/ckptd.sock``. Default: ``$CKPTD_ENDPOINT``, else
            ``unix:/run/ckptd/ckptd.sock``
        timeout (float): seconds to wait for the daemon's answer. Default: 10

    Returns:
        Client: a client with an open session.

    Raises:
        Unavailable: no daemon answers at the endpoint.
        Refused: the endpoint is not a Unix socket, or this user may not use it.
    """
    return Client(endpoint, timeout=timeout)


class Client:
    """A client of one daemon, made by :func:`connect`; a context manager.

    Thread-safe. It belongs to the process that made it: use after a fork raises ``CkptdError`` with the
    reason ``FORKED``. After a restart of the daemon it connects again by itself. Its session ends with
    :meth:`close`, or when neither the client nor a run, save or checkpoint of it is referred to any more.
    """

    def __init__(
        self, endpoint: Optional[str] = None, keeper: bool = False, timeout: float = _CONNECT_SECONDS
    ) -> None:
        self.endpoint = endpoint or os.environ.get("CKPTD_ENDPOINT") or DEFAULT_ENDPOINT
        socket_path(self.endpoint)
        self._connection = Connection(self.endpoint, keeper, timeout)
        self._watcher = SaveWatcher(self._connection)
        self._connection.on_change(self._watcher.wake)
        self._connection.session()
        if keeper:
            self._watcher.start()
        self._finalizer = weakref.finalize(self, self._connection.close)

    def run(
        self,
        root: "Union[str, os.PathLike[str]]",
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        num_kept_ckpts: Optional[int] = None,
        run_id: str = "",
        attempt: Optional[int] = None,
        commit_timeout: float = 600.0,
    ) -> Run:
        """Joins the job's series of checkpoints in a directory.

        Args:
            root (str or os.PathLike): the directory, which is made if it is missing.
            rank (int, optional): this process's rank. Default: the process group's, else ``$RANK``, else 0
            world_size (int, optional): the number of ranks. Default: the process group's, else
                ``$WORLD_SIZE``, else 1
            num_kept_ckpts (int, optional): how many committed checkpoints to keep, at least 1. Default: all
            run_id (str): the id that the root's run must have. Default: any
            attempt (int, optional): the attempt that this launch must be. Default: any
            commit_timeout (float): seconds from a save's first Begin to its last Seal. Default: 600

        Raises:
            Refused: the root cannot be used, or an argument does not fit it.
            Unavailable: no daemon answers.
        """
        return Run(
            self._connection,
            self._watcher,
            root,
            rank,
            world_size,
            num_kept_ckpts,
            run_id,
            attempt,
            commit_timeout,
            keep_alive=self,
        )

    def status(self) -> Any:
        """Returns the daemon's status, the message ``ckptd.v1.Status``.

        Raises:
            Unavailable: no daemon answers within 10 seconds.
        """
        session = self._connection.session()
        return session.call(session.admin.GetStatus, messages.GetStatusRequest(), _STATUS_SECONDS)

    def close(self) -> None:
        """Ends the session. The daemon drops parts that are not sealed, and finishes those that are."""
        self._finalizer()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ckptd.Client {self.endpoint}>"
