"""Which classes the files of a checkpoint, which are not trusted, may hold: by default none that run code."""

import argparse
import collections
import contextlib
import datetime
import enum
import pathlib
import pickle
import uuid
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from ckptd import errors
from ckptd._torch.reading import script_check, unsafe_globals


class Trust(NamedTuple):
    """The classes that a user allows.

    Attributes:
        weights_only: False allows every class, which may run code.
        safe_globals: classes to allow beside those of torch's ``weights_only`` and plain_classes().
    """

    weights_only: bool = True
    safe_globals: Tuple[Any, ...] = ()

    def allowing(self, classes: Sequence[Any] = ()) -> List[Any]:
        """Returns what torch.serialization.safe_globals() is to allow. classes: of the library whose files they are."""
        return [*plain_classes(), *classes, *self.safe_globals]


def plain_classes() -> List[Any]:
    """Returns classes of Python and numpy that programs save beside tensors, and that run no code when they are loaded."""
    made: List[Any] = [argparse.Namespace, datetime.datetime, datetime.timedelta, datetime.timezone]
    made += [bytes, bytearray, bool, int, float, complex, str, tuple, list, dict, set, frozenset, range, slice]
    made += [collections.deque, collections.defaultdict, pathlib.PosixPath, pathlib.PurePosixPath, uuid.UUID]
    made.append((enum_member, "builtins.getattr"))  # Python 3.11 pickles a member of an enum as getattr(class, name).
    with contextlib.suppress(ImportError):
        import numpy

        multiarray: Any = (getattr(numpy, "_core", None) or numpy.core).multiarray
        made += [numpy.ndarray, numpy.dtype]
        made += [kind for kind in vars(getattr(numpy, "dtypes", None) or numpy.dtype).values() if isinstance(kind, type)]
        for module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # Before numpy 2.0, and since.
            made += [(getattr(multiarray, name), f"{module}.{name}") for name in ("_reconstruct", "scalar")]
    return made


def enum_member(kind: Any, name: Any) -> Any:
    """Returns a member of an enum by its name. It stands for getattr(), which would return anything."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise pickle.UnpicklingError(f"getattr() of {kind!r}, which is no enum")
    return kind[name]


def refusal(what: str, why: str, configure: str) -> errors.Refused:
    """Returns the error for a file with a class that is not allowed.

    Args:
        what: the file.
        why: the classes.
        configure: the function that allows them, such as "ckptd.dcp.configure".
    """
    return errors.Refused(
        f"{what} holds {why}, which could run code: allow it by {configure}(safe_globals=[...]), or everything by "
        f"{configure}(weights_only=False) if you trust the file",
        reason="UNSAFE_GLOBALS",
        path=what,
    )


def load(file: Any, trust: Trust, classes: Sequence[Any], map_location: Any, refuse: "Callable[[str], Exception]") -> Any:
    """Loads an open file as torch.load does, with classes that are allowed.

    Args:
        classes: of the library whose file it is.
        refuse: makes the error for a class that is not allowed.
    """
    import torch

    if not trust.weights_only:
        return torch.load(file, map_location=map_location, weights_only=False)
    file = script_check.checked(file, refuse)
    try:
        with torch.serialization.safe_globals(trust.allowing(classes)):
            return torch.load(file, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        found = unsafe_globals.classes_in(file, error)
        raise refuse(", ".join(found) or unsafe_globals.first_line(error)) from error
