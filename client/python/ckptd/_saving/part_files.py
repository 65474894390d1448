"""The files of a part, and their places in its memory."""

from typing import Any, List, Optional, Sequence

from ckptd._membership.membership import Joined
from ckptd._memory.image import Image, Memory
from ckptd._paths import check_text
from ckptd._saving import file_values
from ckptd._saving.finite import Finite

_PAGE = 4096  # Each file begins on a page of its part: docs/protocol.md.


class PartFile:
    """A file of a part."""

    def __init__(self, name: str, image: Image, value: Any = None) -> None:
        """value: what to check once the image is written; None: nothing."""
        self.name = name
        self.size = image.size
        self.unchecked = value
        # None when it has been copied: its owner may have changed it since.
        self.image: Optional[Image] = image
        self.offset = -1  # In bytes, from the begin of the part; -1 until it has a place.
        self.is_asked = False  # A Begin or an Extend has named it to the daemon.
        self.written: Optional[Joined] = None  # The session in which it has been written.
        self.memory: Optional[Memory] = None  # The memory that it was written to; None if it went over gRPC.


def part_file(name: str, value: Any, check: Optional[Finite], views: str = "compact") -> PartFile:
    """Returns the file of a value that a user saves. TypeError if the value has no form as a file."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a file is {name!r}; it must be a str, such as \"model.pt\"")
    check_text(name, "name of a file", "INVALID_PATH")
    checked = check is not None and file_values.is_torch(name, value)
    image = file_values.image_of(name, value, views, counts_non_finite=checked)
    return PartFile(name, image, value if checked else None)


class PartRoom:
    """The memory of a part as the daemon has given it, and where in it this rank may put files by itself.

    To a growing part the daemon gives at once what the rank's last part took. Files that fit there need no Extend:
    they follow one another, and Seal names them.
    """

    def __init__(self) -> None:
        self._asked_end = 0  # The end of the files that a Begin or an Extend has named, in bytes.
        self._own_end = 0  # How far this rank may place files; 0: it may not.

    def grant(self, segment_sizes: Sequence[int], placements: Any) -> None:
        """Notes an answer to Begin or Extend.

        An older daemon gives no segment that the files do not need, and does not know what a Seal has not asked for.
        """
        self._asked_end = max([self._asked_end, *(_end(place.offset, place.size_bytes) for place in placements)])
        size = sum(segment_sizes)
        if self._own_end > 0 or (segment_sizes and size - segment_sizes[-1] >= self._asked_end):
            self._own_end = size

    def place(self, files: List[PartFile]) -> bool:
        """Gives those of a part's files that have none a place. False, with nothing changed, if they do not all fit."""
        unplaced = [file for file in files if file.offset < 0]
        ends = [max([self._asked_end, *(_end(file.offset, file.size) for file in files if file.offset >= 0)])]
        for file in unplaced:
            ends.append(_end(ends[-1], file.size))
        if unplaced and (self._own_end == 0 or ends[-1] > self._own_end):
            return False
        for file, begin in zip(unplaced, ends):
            file.offset = begin
        return True


def check_places(files: List[PartFile], placements: Any) -> None:
    """Raises RuntimeError if the daemon has not placed files where this rank has put them."""
    for file, place in zip(files, placements):
        if file.offset not in (-1, place.offset):
            raise RuntimeError(f'file "{file.name}" lies at {file.offset} in its part, and the daemon places it at {place.offset}')


def _end(offset: int, size: int) -> int:
    """Returns where the next file begins."""
    return offset + -(-size // _PAGE) * _PAGE
