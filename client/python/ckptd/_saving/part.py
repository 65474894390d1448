"""A part that its user fills file by file."""

import concurrent.futures
from typing import Any, Optional

from ckptd import errors
from ckptd._progress_bar import Progress
from ckptd._saving.save import LevelName, Save
from ckptd._saving.upload import PartUpload
from ckptd._wire.protocol import types


class Part:
    """This rank's part of a save, filled file by file. From :meth:`Run.begin`.

    Use it from one thread at a time until it is sealed. Leaving its ``with`` block seals it; an exception in
    the block aborts the save for all ranks. The part has a :attr:`save`, and shows that save's level, end and
    times as its own.
    """

    def __init__(self, upload: PartUpload) -> None:
        self._upload = upload
        self._save = Save(upload.state)

    @property
    def save(self) -> Save:
        """The save that this part belongs to."""
        return self._save

    def add(self, name: str, value: Any) -> None:
        """Adds one file. Its bytes are copied before the call returns. No-op after a skip.

        A file for which the part has memory already needs no call to the daemon: that the save has failed meanwhile is
        then an error of :meth:`seal`.

        Args:
            name (str): the file's name in the checkpoint; a name belongs to one rank.
            value: as in :meth:`Run.save`.

        Raises:
            Refused: the part is sealed, or has a file of this name.
            TypeError: the value has no form as a file.
            Unavailable: no daemon answered before the save's ``timeout``.
        """
        self._upload.membership.connection.check_usable()
        level = self._upload.level
        if self._upload.has_ended() and level != types.COMMITTED:
            return
        if level != types.OPEN:
            raise errors.Refused(
                f"the part of {self.tag} is sealed and takes no more files", reason="SEALED", tag=self.tag
            )
        if self._upload.has_file(name):
            raise errors.Refused(
                f'the part of {self.tag} already has a file "{name}"; use another name',
                reason="SAVE_CONFLICT",
                tag=self.tag,
            )
        self._upload.add(name, value)

    def seal(self) -> Save:
        """Hands the part over to the daemon, as leaving the ``with`` block does. No-op if it is sealed.

        Returns:
            Save: the save, which goes on by itself once every rank has sealed its part.
        """
        if self._upload.level == types.OPEN:
            with self._upload.abort_on_error():
                self._upload.seal()
        return self._save

    def abort(self, message: str = "") -> None:
        """Ends the save for all ranks. Each of them gets ``message`` in its error."""
        self._upload.abort(message or "aborted by its user")

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.seal()
        elif self._upload.level == types.OPEN:
            self._upload.abort(f"{kind.__name__}: {value}")

    # ---- the save's state

    @property
    def tag(self) -> str:
        """See :attr:`Save.tag`."""
        return self._save.tag

    @property
    def sequence(self) -> int:
        """See :attr:`Save.sequence`."""
        return self._save.sequence

    @property
    def transport(self) -> str:
        """See :attr:`Save.transport`."""
        return self._save.transport

    @property
    def stall_seconds(self) -> float:
        """See :attr:`Save.stall_seconds`."""
        return self._save.stall_seconds

    @property
    def copy_seconds(self) -> float:
        """See :attr:`Save.copy_seconds`."""
        return self._save.copy_seconds

    @property
    def level(self) -> str:
        """See :attr:`Save.level`."""
        return self._save.level

    def wait(
        self, level: LevelName = "committed", timeout: Optional[float] = None, progress: Progress = False
    ) -> Save:
        """See :meth:`Save.wait`."""
        return self._save.wait(level, timeout, progress)

    def future(self, level: LevelName = "committed") -> "concurrent.futures.Future[Save]":
        """See :meth:`Save.future`."""
        return self._save.future(level)

    def __repr__(self) -> str:
        return f"<ckptd.Part {self.tag} {self.level}>"
