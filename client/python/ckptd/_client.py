"""A client of one daemon: what connect() returns."""

import os
import time
import weakref
from typing import Any, Optional, Sequence, Union

from ckptd import errors
from ckptd._bucket_url import is_bucket_url
from ckptd._checkpoint_paths import has_manifest
from ckptd._membership.membership import JoinOptions
from ckptd._paths import root_name
from ckptd._run_reader import DaemonRoot
from ckptd._saving.save_watcher import SaveWatcher
from ckptd._session.connection import Connection
from ckptd._session.session import socket_path
from ckptd._wire.protocol import messages
from ckptd.retention import Keep, keep_of_arguments
from ckptd.run import Run
from ckptd.uploads import Upload

DEFAULT_ENDPOINT = "unix:/run/ckptd/ckptd.sock"
_CONNECT_SECONDS = 10.0
_STATUS_SECONDS = 10.0
_RETRY_SECONDS = 0.05


def connect(endpoint: Optional[str] = None, timeout: Optional[float] = None) -> "Client":
    """Connects to a daemon.

    Args:
        endpoint (str, optional): ``unix:/path/to/ckptd.sock``. Default: ``$CKPTD_ENDPOINT``, else
            ``unix:/run/ckptd/ckptd.sock``
        timeout (float, optional): seconds to wait for a daemon that is being started. Default: none; it fails
            at once where no daemon is, and after 10 seconds where one does not answer

    Returns:
        Client: a client with an open session.

    Raises:
        Unavailable: no daemon answers at the endpoint.
        Refused: the endpoint is not a Unix socket, or this user may not use it.
    """
    if timeout is None:
        return Client(endpoint)
    deadline = time.monotonic() + timeout
    while True:
        try:
            return Client(endpoint, timeout=max(_RETRY_SECONDS, deadline - time.monotonic()))
        except errors.Unavailable:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_SECONDS)  # There is no event to wait for while a daemon starts.


def _root_name(root: "Union[str, os.PathLike[str]]") -> str:
    """Returns the absolute path of a root, or its URL. Refuses a checkpoint: the daemon would make a root's files in it."""
    name = root_name(root)
    if not is_bucket_url(name) and has_manifest(name):
        raise errors.invalid(f"the root is {name}, which is a checkpoint; name the directory that holds it, {os.path.dirname(name)}")
    return name


def _check_bucket_root(url: str, upload: Optional[Upload], share_unchanged: bool) -> None:
    """Raises errors.Refused for options that a root in a bucket does not have."""
    if upload is not None:
        raise errors.invalid(f"the root is {url}, a bucket itself, and upload= was given; leave it out, or use a directory as the root")
    if share_unchanged:
        raise errors.invalid(f"the root is {url}, and share_unchanged=True was given; only a directory shares files: leave it out")

_STAGING_SECONDS = 600.0  # The longest that close() waits for copies from devices.


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
        takeover: bool = False,
        *,
        retention: Optional[Keep] = None,
        local_ranks: Optional[Sequence[int]] = None,
        upload: Optional[Upload] = None,
        share_unchanged: bool = False,
    ) -> Run:
        """Joins the job's series of checkpoints in a directory, or in a bucket.

        Args:
            root (str or os.PathLike): the directory, which is made if it is missing; or ``s3://BUCKET/PREFIX``, for a run
                on one node, whose checkpoints then never touch a disk.
            rank (int, optional): this process's rank. Default: the process group's, else ``$RANK``, else 0
            world_size (int, optional): the number of ranks. Default: the process group's, else
                ``$WORLD_SIZE``, else 1
            num_kept_ckpts (int, optional): how many of the newest committed checkpoints to keep, at least 1.
                Short for ``retention=Keep(last=...)``. Default: all
            run_id (str): the id that the root's run must have. Default: any
            attempt (int, optional): the attempt that this launch must be. Default: any
            commit_timeout (float): seconds from a save's first Begin to its last Seal. Default: 600
            takeover (bool): fence off another job that still runs in the root. Not needed for a restart of
                the same job (the same parent process, Slurm job or ``$CKPTD_JOB_ID``), nor once a process of
                the other job has ended. Default: ``False``, which waits 10 s for the other job's end and then
                raises ``Refused`` with the reason ``RUN_IN_USE``
            retention (Keep, optional): which committed checkpoints to keep, if it is not only the last ones.
                Default: all
            local_ranks (Sequence[int], optional): the ranks on this node, this one among them, in a job on several
                nodes. Default: what torchrun or ``srun`` list, else a block of ``$LOCAL_WORLD_SIZE`` ranks, else all
            upload (Upload, optional): the bucket to which the daemon copies checkpoints; the same on all ranks. Default:
                none
            share_unchanged (bool): do not write files of this rank that the newest checkpoint has under the same name
                with the same bytes, such as those of frozen weights: the file system shares their blocks (XFS, btrfs), or
                they become hard links. The daemon reads them back and compares every byte first. Damage of a shared
                file damages all checkpoints that have it. Default: ``False``

        If this process holds the rank already, the new Run takes it over, and the older one says so when it
        is used.

        Raises:
            Refused: the root cannot be used, or an argument does not fit it.
            Unavailable: no daemon answers.
        """
        name = _root_name(root)
        if is_bucket_url(name):
            _check_bucket_root(name, upload, share_unchanged)
        return Run(
            self._connection,
            self._watcher,
            name,
            rank,
            world_size,
            JoinOptions(
                run_id, attempt or 0, keep_of_arguments(retention, num_kept_ckpts), commit_timeout, takeover, upload, share_unchanged
            ),
            keep_alive=self,
            local_ranks=local_ranks,
        )

    def open(self, root: "Union[str, os.PathLike[str]]") -> DaemonRoot:
        """Opens a root to list and read its checkpoints through the daemon, without being a rank of its job.

            with client.open("/data/ckpts").open("latest") as checkpoint:
                state = checkpoint.load("model.pt")

        Args:
            root (str or os.PathLike): the directory, which must exist.

        Raises:
            NotFound: there is no such directory.
            Refused: the root cannot be used.
            Unavailable: no daemon answers.
        """
        self._connection.check_usable()
        if is_bucket_url(root):  # Its daemon would take the run from the one of the job that trains.
            raise errors.invalid(f"client.open() reads directories, and {root} is in a bucket; write ckptd.open_root({str(root)!r})")
        return DaemonRoot(self._connection, _root_name(root), keep_alive=self)

    def _serves(self, root: str) -> bool:
        """Returns whether the daemon has a root open."""
        return any(run.path == root for run in self.status().runs)

    def _open_served(self, url: str) -> DaemonRoot:
        """As open(), of a root in a bucket that the daemon has for the job that trains: another daemon would take it away."""
        return DaemonRoot(self._connection, url, keep_alive=self)

    def status(self) -> Any:
        """Returns the daemon's status, the message ``ckptd.v1.Status``.

        Raises:
            Unavailable: no daemon answers within 10 seconds.
        """
        session = self._connection.session()
        return session.call(session.admin.GetStatus, messages.GetStatusRequest(), _STATUS_SECONDS)

    def close(self) -> None:
        """Ends the session. The daemon drops parts that are not sealed, and finishes those that are.

        Saves with ``stage="overlap"`` are sealed first.
        """
        self._connection.unfinished.wait(_STAGING_SECONDS)
        self._finalizer()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ckptd.Client {self.endpoint}>"
