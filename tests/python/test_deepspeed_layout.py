"""Where the elements of parameters are in ZeRO's flat tensors, against flat tensors that are cut element by element."""

import random

import pytest

from ckptd.deepspeed._resharding import layout


def random_groups(rng):
    names = [f"p{number}" for number in range(rng.randint(1, 7))]
    counts = {name: rng.choice([1, 2, 3, 7, 16, 40]) for name in names}
    return [{name: counts[name] for name in names[first::2]} for first in range(2) if names[first::2]]


def shuffled(groups, rng):
    """Returns the same parameters in another order and other groups."""
    items = [item for group in groups for item in group.items()]
    rng.shuffle(items)
    cut = rng.randint(0, len(items))
    return [dict(part) for part in (items[:cut], items[cut:]) if part]


def flats_of_cut_groups(groups, gaps, ranks):
    """Returns {rank: flat tensors}, made of (name, element) and None for padding, and the size of each."""
    flats, sizes = {rank: [] for rank in range(ranks)}, []
    for group, after in zip(groups, gaps):
        whole = []
        for (name, count), gap in zip(group.items(), after):
            whole += [(name, element) for element in range(count)] + [None] * gap
        size = -(-len(whole) // (2 * ranks)) * 2
        whole += [None] * (size * ranks - len(whole))
        sizes.append(size)
        for rank in range(ranks):
            flats[rank].append(whole[rank * size : (rank + 1) * size])
    return flats, sizes


def flats_of_cut_parameters(groups, ranks):
    flats = {rank: [[] for _ in groups] for rank in range(ranks)}
    for number, group in enumerate(groups):
        for name, count in group.items():
            size = -(-count // ranks)
            whole = [(name, element) for element in range(count)] + [None] * (size * ranks - count)
            for rank in range(ranks):
                flats[rank][number] += whole[rank * size : (rank + 1) * size]
    return flats


def check(saved, there, wanted, pieces):
    """Checks that the copies make each rank's flat tensors out of the saved ones."""
    pieces = list(pieces)
    for rank, flats in wanted.items():
        made = [[None] * len(flat) for flat in flats]
        for copy in layout.copies([piece for piece in pieces if piece.rank == rank], there):
            source = saved[copy.rank][copy.flat][copy.at : copy.at + copy.length]
            assert len(source) == copy.length and None not in source
            made[copy.to_flat][copy.to_at : copy.to_at + copy.length] = source
        assert made == flats


@pytest.mark.parametrize("seed", range(40))
def test_copies_make_the_flat_tensors_of_stages_1_and_2(seed):
    rng = random.Random(seed)
    groups = random_groups(rng)
    sides = []
    for ordered in (groups, shuffled(groups, rng)):
        gaps = [[rng.choice([0, 0, 3]) for _ in group] for group in ordered]
        flats, sizes = flats_of_cut_groups(ordered, gaps, rng.randint(1, 6))
        sides.append((flats, list(layout.pieces_of_cut_groups(ordered, gaps, sizes))))
    check(*sides[0], *sides[1])


@pytest.mark.parametrize("seed", range(40))
def test_copies_make_the_flat_tensors_of_stage_3(seed):
    rng = random.Random(seed)
    groups = random_groups(rng)
    sides = []
    for ordered in (groups, shuffled(groups, rng)):
        ranks = rng.randint(1, 6)
        sides.append((flats_of_cut_parameters(ordered, ranks), list(layout.pieces_of_cut_parameters(ordered, ranks))))
    check(*sides[0], *sides[1])


def test_elements_that_no_rank_has_are_an_error_with_the_name_of_the_parameter():
    there = list(layout.pieces_of_cut_parameters([{"a": 8, "b": 4}], 2))
    with pytest.raises(layout.MissingElements, match="b"):
        layout.copies(layout.pieces_of_cut_parameters([{"b": 4}], 4), [piece for piece in there if piece[:2] != ("b", 2)])
