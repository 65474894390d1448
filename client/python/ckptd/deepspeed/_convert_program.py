"""Runs `ckptctl convert`, and turns its refusals into exceptions."""

import json
import re
import subprocess
from typing import Any, Dict, List, Type

from ckptd import errors
from ckptd.local_daemon import find_program


class CannotConvert(errors.Refused, ValueError):
    """The checkpoint cannot be converted without loss; the message says why."""


class NoCheckpoint(errors.NotFound, FileNotFoundError):
    """The checkpoint, or a part of it, does not exist."""


_BY_REASON: Dict[str, Type[errors.CkptdError]] = {
    "ENOENT": NoCheckpoint,
    "NO_OPTIMIZER_STATE": NoCheckpoint,
    "INCOMPLETE_CHECKPOINT": CannotConvert,
    "CANNOT_CONVERT": CannotConvert,
    "UNSAFE_PICKLE": CannotConvert,
    "INVALID_ARGUMENT": CannotConvert,
    "OUTPUT_IS_INPUT": CannotConvert,
    "CORRUPT_ARCHIVE": errors.Corrupt,
    "MIXED_CHECKPOINT": CannotConvert,
}


def convert(command: str, arguments: List[str]) -> Any:
    """Runs a conversion and returns its answer.

    Raises:
        NoCheckpoint: a file or directory of the input does not exist.
        CannotConvert: the input or an argument is refused.
        errors.Corrupt: a file of a committed checkpoint is not what its manifest says.
        errors.CkptdError: everything else, with the reason of docs/protocol.md.
    """
    words = [find_program("ckptctl"), "convert", command, "--output=json", *arguments]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)
    last = (done.stderr.strip().splitlines() or [f"ckptctl ended with status {done.returncode}"])[-1]
    found = re.fullmatch(r"(?:ckptctl: )?(.*?)(?: \[(\w+)\])?", last)
    message, reason = (found[1], found[2] or "") if found else (last, "")
    if reason in _BY_REASON:
        raise _BY_REASON[reason](message, reason=reason)
    raise errors.make("", reason, message)
