"""What a root holds only while a save, a deletion or a recovery is in flight."""

from __future__ import annotations

import os
import pathlib
from typing import List

from harness import until

TIMEOUT = 30.0


def leftovers(root: pathlib.Path) -> List[str]:
    """The entries in flight and in trash, and what recovery or retention is working on."""
    node = root / ".ckptd/nodes/local"
    found = [str(path.relative_to(root)) for name in ("inflight", "trash") for path in (node / name).glob("*")]
    return found + [str(node / name) for name in ("swap", "scratch") if (node / name).exists()]


def temporaries(root: pathlib.Path) -> List[str]:
    """Unfinished records. A killed daemon may leave one, under a fixed name; the next write of the record removes it."""
    # os.walk ignores directories that disappear meanwhile.
    return [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith(".tmp")]


def wait_until_none_left(root: pathlib.Path) -> None:
    """Waits for what is in flight to end, and for trash to be emptied."""
    try:
        until(lambda: not leftovers(root), "an empty trash and nothing in flight", TIMEOUT)
    except AssertionError:
        raise AssertionError(f"left behind: {leftovers(root)}") from None
