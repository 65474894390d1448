"""What a root without a daemon asks of the place of its checkpoints."""

from typing import Any, List, Mapping, Optional, Protocol, Tuple

from ckptd import errors
from ckptd._checkpoint_info import CheckpointInfo
from ckptd._reading.verified_file import VerifiedFile


class CheckpointFiles(Protocol):
    """The files of one committed checkpoint that is open. By one thread at a time."""

    @property
    def summary(self) -> Any:
        """The storage.ManifestSummary."""

    @property
    def records(self) -> Mapping[str, Any]:
        """The storage.FileRecord of each file by its path."""

    def open(self, path: str, threads: int) -> VerifiedFile:
        """Opens a file of `records`.

        Args:
            threads: that may compute while the file is read.

        Raises:
            errors.Corrupt: it is missing, or its size is wrong.
            errors.NotFound: the checkpoint was removed meanwhile. That is no damage.
        """

    def close(self) -> None:
        """Closes the files. Called once."""


class Place(Protocol):
    """Where the checkpoints of a root lie."""

    @property
    def name(self) -> str:
        """The absolute path, or the URL."""

    @property
    def readers(self) -> int:
        """How many threads may call open() at a time, because it waits rather than computes."""

    def summaries(self, unreadable: Optional[List[CheckpointInfo]] = None) -> "List[Tuple[int, str]]":
        """Returns (sequence, tag) of each checkpoint whose manifest has a valid head, newest first.

        Adds those with a damaged head, whose sequence is unknown, to `unreadable`, if that is given.
        """

    def open(self, tag: str) -> Tuple[CheckpointInfo, CheckpointFiles]:
        """Opens a checkpoint, or a link to one.

        Raises:
            errors.NotFound: no_checkpoint().
            errors.Corrupt: its manifest is damaged or missing.
        """


def no_checkpoint(tag: str, place: str) -> errors.NotFound:
    """Returns the error for a tag that no committed checkpoint has."""
    return errors.NotFound(f"no checkpoint {tag} is committed in {place}", reason="NO_CHECKPOINT", tag=tag)
