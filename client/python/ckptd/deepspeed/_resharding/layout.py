"""The places of parameters' elements on ZeRO's ranks, and the copies that another number of ranks needs.

A rank's state is flat tensors, numbered from 0. Stages 1 and 2 put the parameters of a group one after the other and cut
the whole into equal parts; stage 3 cuts each parameter, and puts the parts of a sub-group one after the other.
"""

from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence

Groups = Sequence[Mapping[str, int]]  # The elements of the parameters of each flat tensor, by name and in order.


class Piece(NamedTuple):
    """Neighbouring elements of one parameter in a flat tensor of one rank."""

    name: str
    first: int  # Its first element in the parameter.
    length: int
    rank: int
    flat: int  # The number of the flat tensor.
    at: int  # Its first element in the flat tensor.


class Copy(NamedTuple):
    """Elements that one rank's flat tensor takes from another's."""

    rank: int
    flat: int
    at: int
    to_flat: int
    to_at: int
    length: int


class MissingElements(Exception):
    """No rank has some elements of a parameter; its name is the argument."""


def pieces_of_cut_groups(groups: Groups, gaps: Sequence[Sequence[int]], sizes: Sequence[int]) -> Iterator[Piece]:
    """Yields the pieces of all ranks at stage 1 or 2.

    gaps: elements of padding after each parameter of each group. sizes: of a rank's part of each group, in elements.
    """
    for flat, (group, after, size) in enumerate(zip(groups, gaps, sizes)):
        begin = 0
        for (name, count), gap in zip(group.items(), after):
            yield from _cut(name, begin, count, flat, size)
            begin += count + gap


def _cut(name: str, begin: int, count: int, flat: int, size: int) -> Iterator[Piece]:
    """Cuts a parameter that begins somewhere in a group into pieces of ranks."""
    at = begin
    while at < begin + count:
        rank, offset = divmod(at, size)
        now = min(size - offset, begin + count - at)
        yield Piece(name, at - begin, now, rank, flat, offset)
        at += now


def pieces_of_cut_parameters(groups: Groups, ranks: int) -> Iterator[Piece]:
    """Yields the pieces of all ranks at stage 3."""
    for flat, group in enumerate(groups):
        at = 0
        for name, count in group.items():
            size = part_of(count, ranks)
            for rank in range(ranks):
                first = rank * size
                if first < count:
                    yield Piece(name, first, min(size, count - first), rank, flat, at)
            at += size


def part_of(count: int, ranks: int) -> int:
    """Returns how many elements, with padding, each rank has of a parameter at stage 3."""
    return -(-count // ranks)


def copies(wanted: Iterable[Piece], there: Iterable[Piece]) -> List[Copy]:
    """Returns where the elements of the wanted pieces are. MissingElements if one is nowhere."""
    by_name: Dict[str, List[Piece]] = {}
    for piece in there:
        by_name.setdefault(piece.name, []).append(piece)
    found: List[Copy] = []
    for want in wanted:
        shared = [copy for have in by_name.get(want.name, ()) for copy in _shared(want, have)]
        if sum(copy.length for copy in shared) != want.length:
            raise MissingElements(want.name)
        found += shared
    return found


def _shared(want: Piece, have: Piece) -> Iterator[Copy]:
    first = max(want.first, have.first)
    length = min(want.first + want.length, have.first + have.length) - first
    if length > 0:
        yield Copy(have.rank, have.flat, have.at + first - have.first, want.flat, want.at + first - want.first, length)
