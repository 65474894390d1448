"""The classes for which torch refuses a file with ``weights_only=True``."""

import re
from typing import Any, List

import torch

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NAMED = re.compile(r"GLOBAL ([\w.]+) was not an allowed global")


def classes_in(file: Any, error: Exception) -> List[str]:
    """Returns the qualified names of the classes and functions of a file that are not allowed.

    Nothing of the file is run. Where torch cannot list them, this is the one that its error names, if any.

    Args:
        file: a seekable file in torch's format.
        error: torch's refusal to load it.
    """
    try:
        file.seek(0)
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except Exception:  # An older torch, or a file that it cannot list.
        return _NAMED.findall(str(error))[:1]


def first_line(error: Exception) -> str:
    """Returns the first line of torch's message, without the codes that colour a terminal."""
    return _COLOURS.sub("", (str(error).splitlines() or [""])[0])
