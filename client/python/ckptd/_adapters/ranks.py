"""Collectives of the adapters: messages between the ranks of a process group. Every rank makes the same calls.

A rank that never calls makes the others wait for the process group's own time limit. Where ranks
must name the missing ones before that, as in NxD's adapter, nxd/_store.py exchanges texts by the group's store instead.
"""

import contextlib
import datetime
from typing import Any, Callable, Iterator, List, Optional, Tuple, TypeVar

import torch.distributed as dist

from ckptd import errors
from ckptd._membership import launch

T = TypeVar("T")
_GLOO_TIMEOUT = datetime.timedelta(hours=1)  # The same as TorchTNT's.


def is_distributed() -> bool:
    """Returns whether there is a default process group."""
    return launch.process_group() is not None


def from_all_ranks(message: T, group: Any = None) -> List[T]:
    """Returns the messages of all ranks of a group, in their order there. group: None is the default one."""
    found: List[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, message, group=group)
    return found


def words_of_first_rank(error: Exception) -> Exception:
    """Returns a CkptdError with the message and the reason of an error of the first rank."""
    return errors.make("ABORTED", getattr(error, "reason", ""), f"{type(error).__name__} on the first rank: {error}")


def from_first_rank(
    make: Callable[[], T], group: Any = None, error_elsewhere: Callable[[Exception], Exception] = words_of_first_rank
) -> T:
    """Returns on all ranks of a group what a function returns on the group's first one.

    Args:
        make: called on the first rank. If it raises, that rank tells the others first: they wait for its answer.
        group: None is the default one. Without a process group, this process is the first rank.
        error_elsewhere: returns, of the exception that `make` has raised, the one that the other ranks raise. It must
            be one that pickle can restore.

    Raises:
        Exception: what `make` has raised, on the first rank; what `error_elsewhere` has returned, on the others.
    """
    if not is_distributed():
        return make()
    group = group or dist.group.WORLD
    error: Optional[Exception] = None
    answer: List[Tuple[Any, Optional[Exception]]] = [(None, None)]
    if dist.get_rank(group) == 0:
        try:
            answer = [(make(), None)]
        except Exception as raised:
            error = raised
            answer = [(None, error_elsewhere(raised))]
    dist.broadcast_object_list(answer, src=dist.get_global_rank(group, 0), group=group)
    value, failure = answer[0]
    failure = error or failure
    if failure is not None:
        raise failure
    return value  # type: ignore[no-any-return]


@contextlib.contextmanager
def gloo_group(group: Any) -> Iterator[Any]:
    """Returns a group, or one of gloo for as long as the context lasts if the group has another back end.

    TorchTNT does so, too: what DCP's collectives send are objects, which NCCL would copy through the memory of GPUs.
    """
    if not is_distributed() or dist.get_backend(group) == dist.Backend.GLOO:
        yield group
        return
    ranks = None if group is None else dist.get_process_group_ranks(group)
    made = dist.new_group(ranks, _GLOO_TIMEOUT, dist.Backend.GLOO, use_local_synchronization=ranks is not None)
    try:
        yield made
    finally:
        dist.destroy_process_group(made)
