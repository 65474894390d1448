"""Reads many slices of files at once, in the order of the disk and each chunk once."""

from typing import Any, Callable, ContextManager, Dict, List, Sequence, Tuple

from ckptd import errors
from ckptd._memory.native import address_of
from ckptd._reading.verified_file import VerifiedFile

Range = Tuple[str, int, int]  # (file, offset, bytes)
_Piece = Tuple[int, int, int]  # (offset, address, bytes)


def read_ranges(
    ranges: Sequence[Range], into: Sequence[Any], open_file: Callable[[str, int], ContextManager[VerifiedFile]]
) -> None:
    """Fills into[i] with ranges[i], see Checkpoint.read_ranges(). open_file(name, how many bytes of it are read)."""
    places: Dict[str, List[_Piece]] = {}
    kept = []
    for (name, offset, size), buffer in zip(ranges, into):
        if memoryview(buffer).nbytes != size:
            raise errors.invalid(f"{size} bytes of {name} were asked for, and their buffer has {memoryview(buffer).nbytes}")
        address, keep = address_of(buffer)
        kept.append(keep)
        places.setdefault(name, []).append((offset, address, size))
    for name, wanted in sorted(places.items()):
        with open_file(name, sum(size for _, _, size in wanted)) as file:
            for offset, _, size in wanted:
                if offset < 0 or size < 0 or offset + size > file.size:
                    raise errors.invalid(
                        f"bytes {offset} to {offset + size} of {name} were asked for, and it has {file.size}"
                    )
            pieces = sorted(piece for piece in wanted if piece[2] > 0)
            while pieces:  # More than once only if slices overlap.
                now, pieces = _split_overlapping(pieces)
                file.scatter(now)


def _split_overlapping(pieces: List[_Piece]) -> Tuple[List[_Piece], List[_Piece]]:
    """Splits ordered pieces into some that do not overlap each other, and the rest."""
    now: List[_Piece] = []
    later: List[_Piece] = []
    end = 0
    for piece in pieces:
        if piece[0] < end:
            later.append(piece)
            continue
        now.append(piece)
        end = piece[0] + piece[2]
    return now, later
