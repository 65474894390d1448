"""The recovery scripts that DeepSpeed puts beside its checkpoints."""

import filecmp
import os
from typing import Any


def are_current(package: Any, folder: str) -> bool:
    """Returns whether a directory has all recovery scripts, as this release would write them.

    package: DeepSpeed's package of utilities, which has the originals.
    """
    source = os.path.dirname(os.path.abspath(package.__file__))
    names = [name for name in os.listdir(source) if name.startswith("zero_to_") and name.endswith(".py")]
    return all(_is_copy(os.path.join(source, name), os.path.join(folder, name)) for name in names)


def _is_copy(original: str, copy: str) -> bool:
    try:
        return os.access(copy, os.X_OK) and filecmp.cmp(original, copy, shallow=False)
    except OSError:
        return False
