"""A save as its user sees it."""

import concurrent.futures
from typing import Literal, Optional

from ckptd._progress_bar import Progress
from ckptd._saving.save_state import SaveState

LevelName = Literal["staged", "sealed", "committed"]
WaitLevel = Literal["staged", "sealed", "committed", "uploaded"]


class Save:
    """A save whose bytes are staged, or that was skipped. It goes on by itself; waiting for it is optional.

    If the daemon is killed before the save is committed, the next daemon gets it from the memory in which it
    was staged, provided that all ranks still live. Otherwise it fails with the reason ``STAGED_LOST``.

    Thread-safe. From :meth:`Run.save` or :attr:`Part.save`.
    """

    def __init__(self, state: SaveState) -> None:
        self._state = state

    @property
    def tag(self) -> str:
        """The checkpoint's name."""
        return self._state.tag

    @property
    def sequence(self) -> int:
        """The place of the checkpoint in the order of its run; 0 until the daemon has admitted it."""
        return self._state.sequence

    @property
    def transport(self) -> str:
        """How the bytes went to the daemon: ``"shm"``, ``"grpc"`` where shared memory could not be used, or
        empty if nothing was copied.
        """
        return self._state.transport

    def staged(self) -> "Save":
        """Has what this process gives its devices from now on wait for the copies of a save with
        ``stage="overlap"``.

        The state may be changed then. The call itself does not wait for the copies. ``optimizer.step()`` does
        the same by itself.

        Returns:
            Save: this save.
        """
        for copies in self._state.copies:
            copies.hold_devices()
        return self

    @property
    def stall_seconds(self) -> float:
        """How long the trainer waited in all, in seconds."""
        return self._state.stall_seconds

    @property
    def copy_seconds(self) -> float:
        """The part of :attr:`stall_seconds` that was spent copying, in seconds."""
        return self._state.copy_seconds

    @property
    def level(self) -> str:
        """How far the save has come, as last known; does not block.

        One of ``"open"``, ``"staged"``, ``"sealed"`` and ``"committed"``; or, if it did not become a
        checkpoint, ``"skipped"``, ``"superseded"``, ``"failed"`` or ``"indeterminate"``.
        """
        return self._state.level_name

    def wait(
        self, level: WaitLevel = "committed", timeout: Optional[float] = None, progress: Progress = False
    ) -> "Save":
        """Waits until the save has reached a level.

        Args:
            level (str): ``"staged"`` (this rank's part is sealed), ``"sealed"`` (all ranks' parts are),
                ``"committed"`` (durable and published) or ``"uploaded"`` (in the bucket, too). Default:
                ``"committed"``
            timeout (float, optional): seconds to wait. Default: the run's ``commit_timeout``
            progress (bool or callable): shows how many bytes of all ranks are on disk, as in
                :meth:`Checkpoint.load`. Default: ``False``

        Returns:
            Save: this save.

        Raises:
            CheckpointFailed: the save ended without a checkpoint. The subclasses ``Skipped`` and
                ``Superseded`` say that a busy policy ended it.
            Fenced: a newer attempt of the run has begun.
            FileConflict: two ranks claimed one file name.
            Indeterminate: whether the checkpoint is durable is not known.
            Refused: it is committed and will not be uploaded, for example because it is not its turn
                (``NOT_UPLOADED``).
            Unavailable: how the save ended cannot be known.
            WaitTimeout: the level was not reached in time; ``ranks`` are those that have not sealed their
                parts. The save goes on.
        """
        self._state.wait(level, timeout, progress)
        return self

    def future(self, level: LevelName = "committed") -> "concurrent.futures.Future[Save]":
        """Returns a future of :meth:`wait`, of any level but ``"uploaded"``. It needs no thread of its own, and has no
        timeout.
        """
        return self._state.future(level, self)

    def __repr__(self) -> str:
        return f"<ckptd.Save {self.tag} {self.level}>"
