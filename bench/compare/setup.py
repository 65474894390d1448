"""What is compared."""

from __future__ import annotations

import re
from typing import NamedTuple, Tuple

from bench.contenders import catalog


class Setup(NamedTuple):
    contenders: Tuple[str, ...] = catalog.NAMES
    ranks: int = 2
    pool_states: float = 1.25  # How many states the pool of ckptd's daemon holds.


def slug(contender: str) -> str:
    """A contender's name within a figure's name."""
    return re.sub(r"[^a-z]+", "_", contender)


def contenders(dcp: bool, only: str) -> Tuple[str, ...]:
    """The contenders to compare. dcp: the ways to use PyTorch Distributed Checkpoint. only: slugs, separated by commas; empty
    for all. ValueError for one that is none of them.
    """
    names = catalog.DCP_NAMES if dcp else catalog.NAMES
    by_slug = {slug(name): name for name in names}
    wanted = only.split(",") if only else list(by_slug)
    unknown = [name for name in wanted if name not in by_slug]
    if unknown:
        raise ValueError(f"no contender {', '.join(unknown)}; there are {', '.join(by_slug)}")
    return tuple(name for name in names if slug(name) in wanted)
