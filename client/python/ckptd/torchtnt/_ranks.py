"""What all ranks of a process group must agree on, and the group that they do it with."""

import contextlib
import datetime
from typing import Any, Callable, Iterator, List, Tuple, TypeVar

import torch.distributed as dist

from ckptd import errors

T = TypeVar("T")
_GLOO_TIMEOUT = datetime.timedelta(hours=1)  # As TorchTNT's.


def is_distributed() -> bool:
    """Returns whether there is a default process group."""
    return bool(dist.is_available() and dist.is_initialized())


def from_first_rank(group: Any, make: Callable[[], T]) -> T:
    """Returns on all ranks of a group what a function returns on the group's first one. None: the default group.

    Raises:
        Exception: what the function has raised there.
        CkptdError: on the other ranks, with that error's message and reason.
    """
    if not is_distributed():
        return make()
    group = group or dist.group.WORLD
    error = None
    made: List[Tuple[Any, str, str]] = [(None, "", "")]
    if dist.get_rank(group) == 0:
        try:
            made = [(make(), "", "")]
        except Exception as raised:
            error = raised
            message = f"{type(raised).__name__} on the first rank: {raised}"
            made = [(None, message, getattr(raised, "reason", ""))]
    dist.broadcast_object_list(made, src=dist.get_global_rank(group, 0), group=group)
    value, message, reason = made[0]
    if error is not None:
        raise error
    if message:
        raise errors.make("ABORTED", reason, message)
    return value  # type: ignore[no-any-return]


@contextlib.contextmanager
def gloo_group(group: Any) -> Iterator[Any]:
    """Returns a group, or one of gloo for as long as the context lasts if the group has another back end."""
    if not is_distributed() or dist.get_backend(group) == dist.Backend.GLOO:
        yield group
        return
    made = dist.new_group(timeout=_GLOO_TIMEOUT, backend=dist.Backend.GLOO)
    try:
        yield made
    finally:
        dist.destroy_process_group(made)
