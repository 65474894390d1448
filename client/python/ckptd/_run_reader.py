"""Looking at the checkpoints of a root through the daemon: for runs, and for readers that are no rank."""

import os
from typing import Any, List, Optional, Union

from ckptd import errors
from ckptd._checkpoint_info import CheckpointInfo, info_of_message
from ckptd._membership.attachment import Attachment
from ckptd._membership.membership import ATTACH_SECONDS, RPC_SECONDS, Joined, Membership
from ckptd._memory import native
from ckptd._paths import root_name, tag_text
from ckptd._reading.read_reports import ReadReporter
from ckptd._session.connection import Connection
from ckptd._wire.protocol import messages, set_duration, types
from ckptd.restore import Checkpoint, open_root, opened_by_daemon

_PAGE_SIZE = 1000  # Checkpoints in one answer of ListCheckpoints.
WAIT_GRACE_SECONDS = 10.0  # The daemon answers a waiting call this much after its timeout, at the latest.


class RunReader:
    """The checkpoints of one root, as the daemon knows them. Thread-safe."""

    root: str

    def __init__(self, access: "Union[Membership, Attachment]") -> None:
        self._access = access

    def latest(self) -> Optional[CheckpointInfo]:
        """Returns the newest committed checkpoint, or None.

        Raises:
            Unavailable: no daemon answered within 30 seconds.
        """

        def ask(joined: Joined) -> Any:
            request = messages.GetCheckpointRequest(
                name=f"{joined.run}/checkpoints/latest", view=messages.FULL
            )
            return joined.session.call(joined.session.checkpoints.GetCheckpoint, request, RPC_SECONDS)

        try:
            return info_of_message(self._access.ask(ask, RPC_SECONDS))
        except errors.NotFound as error:
            if error.reason != "NO_CHECKPOINT":
                raise
            return None

    def list(self, show_all: bool = False) -> List[CheckpointInfo]:
        """Returns the committed checkpoints, newest first.

        Args:
            show_all (bool): also return the saves in flight, and the failed ones that the daemon remembers.
                Default: ``False``

        Raises:
            Unavailable: no daemon answered within 30 seconds.
        """
        found: List[CheckpointInfo] = []
        token = ""

        def ask(joined: Joined) -> Any:
            request = messages.ListCheckpointsRequest(
                parent=joined.run, page_size=_PAGE_SIZE, page_token=token, show_all=show_all, view=messages.FULL
            )
            return joined.session.call(joined.session.checkpoints.ListCheckpoints, request, RPC_SECONDS)

        while True:
            page = self._access.ask(ask, RPC_SECONDS)
            found += [info_of_message(checkpoint) for checkpoint in page.checkpoints]
            token = page.next_page_token
            if not token:
                return found

    def open(self, tag: "Union[str, int]" = "latest", *, strict: bool = False, background: bool = False) -> Checkpoint:
        """Opens a committed checkpoint for reading by this process alone. Fences no attempt off.

        Args:
            tag (str): the checkpoint, or a link to one; ``"latest"`` is the newest one that is not known to be
                damaged. Default: ``"latest"``
            strict (bool): raise ``Corrupt`` rather than open a damaged checkpoint, or an older one in its
                place. Default: ``False``
            background (bool): read with idle priority, for a reader such as an evaluation beside a job that
                trains. It uses a core only when nothing else wants it (SCHED_IDLE), and the disk serves its
                reads last if its scheduler has an idle class. It may take very long while every core is busy.
                Default: ``False``

        Returns:
            Checkpoint: a context manager.

        Raises:
            NotFound: there is no such checkpoint.
            Corrupt: see ``strict``; or every checkpoint is damaged.
            Unavailable: no daemon answered within 30 seconds.
        """

        tag = tag_text(tag)
        path = os.path.join(self.root, tag)
        if tag != "latest" and not self._access.directory.is_bucket and os.path.islink(path):
            root, linked = os.path.split(os.path.realpath(path))
            if root != os.path.realpath(self.root):
                return open_root(root).open(linked, strict=strict, background=background)
            tag = linked

        def ask(joined: Joined) -> Any:
            request = messages.OpenCheckpointRequest(name=f"{joined.run}/checkpoints/{tag}", strict=strict)
            return joined, joined.session.call(
                joined.session.checkpoints.OpenCheckpoint, request, RPC_SECONDS
            )

        joined, response = self._access.ask(ask, RPC_SECONDS)
        reporter = ReadReporter(self._access, info_of_message(response.checkpoint))
        checkpoint = self._opened(joined, response, reporter)
        checkpoint.background = background
        return checkpoint

    def _wait_for_end(self, tag: str, timeout: float) -> CheckpointInfo:
        """Returns the newest save of a tag, of any attempt, when it has ended or after `timeout` seconds."""

        def ask(joined: Joined) -> Any:
            request = messages.WaitRequest(name=f"{joined.run}/checkpoints/{tag}", level=types.COMMITTED)
            set_duration(request.timeout, timeout)
            return joined.session.call(
                joined.session.checkpoints.Wait, request, timeout + WAIT_GRACE_SECONDS
            )

        return info_of_message(self._access.ask(ask, timeout).checkpoint)

    def _opened(self, joined: Joined, response: Any, reporter: ReadReporter) -> Checkpoint:
        access = self._access
        return opened_by_daemon(
            access.directory.descriptor, joined.session, response, access.read_threads, reporter
        )


class DaemonRoot(RunReader):
    """The checkpoints of a root, read through the daemon without being a rank. From :meth:`Client.open`.

    It needs no rank and fences no attempt off: an evaluation beside the job that trains, or a notebook, uses it. A
    checkpoint that is still in the daemon's memory is read from there, and retention keeps one that is open.

    Thread-safe. Calls that need the daemon wait while it restarts.

    Attributes:
        root (str): the absolute path of the root, or its URL.
    """

    def __init__(
        self, connection: Connection, root: "Union[str, os.PathLike[str]]", keep_alive: object
    ) -> None:
        self.root = root_name(root)
        attachment = Attachment(connection, self.root, native.read_threads(1), keep_alive)
        super().__init__(attachment)
        connection.repeat(attachment.joined, ATTACH_SECONDS)

    def __repr__(self) -> str:
        return f"<ckptd.DaemonRoot {self.root}>"
