"""A root that this process reads through the daemon, without being a rank of its run."""

import threading
from typing import Callable, Optional, TypeVar

from ckptd import errors
from ckptd._membership.membership import ATTACH_SECONDS, Joined, RootDirectory
from ckptd._session.connection import Connection

T = TypeVar("T")


class Attachment:
    """A root attached in the present session, and again in each later one. Thread-safe.

    It has what readers need of a Membership. Nothing of it fences, counts as a rank, or makes the root.
    """

    def __init__(self, connection: Connection, root: str, read_threads: int, keep_alive: object) -> None:
        """Does not attach yet. errors.NotFound: there is no such directory.

        Args:
            root: absolute path of the root directory; or the URL of one in a bucket, which the daemon has opened already.
            keep_alive: as in Membership.
        """
        self.connection = connection
        self.root = root
        self.directory = RootDirectory(root, make=False)
        self.read_threads = read_threads
        self.rank = -1
        self._keep_alive = keep_alive
        self._lock = threading.Lock()
        self._present: Optional[Joined] = None
        if self.directory.descriptor is None and not self.directory.is_bucket:
            raise errors.NotFound(
                f"the root {root} cannot be opened: {self.directory.error}", reason="NO_CHECKPOINT"
            )

    def joined(self, timeout: float = ATTACH_SECONDS) -> Joined:
        """Returns the run as attached in the present session; attaches it there if that has not been done yet."""
        session = self.connection.session()
        with self._lock:
            if self._present is None or self._present.session is not session:
                run = session.attach_root(self.directory.descriptor, self.root, timeout)
                self._present = Joined(session, run, 0, "")
            return self._present

    def ask(self, call: "Callable[[Joined], T]", timeout: float) -> T:
        """Returns call(joined), repeated for up to `timeout` seconds while the daemon is away."""
        return self.connection.repeat(lambda: call(self.joined()), timeout)
