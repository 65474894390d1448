"""Which bytes of a file are requested together."""

from typing import Iterator, List, NamedTuple, Sequence, Tuple

Piece = Tuple[int, int, int]  # (offset in the file, address, bytes)


class Part(NamedTuple):
    """Whole chunks of a file, one after another, that one request reads."""

    offset: int
    size: int
    pieces: List[Piece]  # What is wanted of them.

    @property
    def is_wanted_whole(self) -> bool:
        """Whether one piece has all of its bytes, which can then be read straight to their place."""
        return len(self.pieces) == 1 and self.pieces[0][2] == self.size


def parts_of(pieces: Sequence[Piece], file_size: int, chunk_bytes: int, part_bytes: int) -> Iterator[Part]:
    """Yields the parts that cover pieces, and no chunk that has none.

    Args:
        pieces: ordered by offset; they do not overlap, and none is empty.
        part_bytes: the size of a part; that of a chunk if it is larger.
    """
    most = max(1, part_bytes // chunk_bytes) * chunk_bytes
    begin = end = 0
    inside: List[Piece] = []
    for offset, address, size in pieces:
        while size > 0:
            if offset >= end and (offset // chunk_bytes * chunk_bytes != end or end - begin >= most):
                if inside:
                    yield Part(begin, end - begin, inside)
                begin = end = offset // chunk_bytes * chunk_bytes
                inside = []
            # As many chunks as the piece needs, and the part may have.
            needed = -(-(offset + size) // chunk_bytes) * chunk_bytes
            end = min(max(end, min(needed, begin + most)), file_size)
            count = min(size, end - offset)
            inside.append((offset, address, count))
            offset, address, size = offset + count, address + count, size - count
    if inside:
        yield Part(begin, end - begin, inside)
