"""The files of a rank's last part, as the daemon keeps them for the next one."""

from typing import Any, Dict, NamedTuple, Sequence

from ckptd._membership.membership import Joined
from ckptd._saving.part_files import PartFile


class Layout(NamedTuple):
    """A list of files that a session has begun with, by the number that the daemon has given it."""

    joined: Joined  # The number means nothing in another session.
    number: int
    files: Sequence[Any]  # The names, then the sizes.
    offsets: Dict[str, int]  # By name: where the file lies in the part.

    def is_of(self, joined: Joined, files: Sequence[PartFile]) -> bool:
        """Returns whether these are its files, in the same order and with the same sizes."""
        return self.joined is joined and self.files == names_and_sizes(files)


def names_and_sizes(files: Sequence[PartFile]) -> Sequence[Any]:
    """Returns what a part's files are compared by."""
    return [file.name for file in files], [file.size for file in files]
