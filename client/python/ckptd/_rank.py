"""Which rank of which launch this process is. Asks the environment and the process group; starts no
collective, ever.
"""

import datetime
import os
import sys
from typing import Any, NamedTuple, Optional

from ckptd import errors

# By these launchers say how many processes they started. Where one says more than one and nothing says
# which rank this is, guessing would let several processes be rank 0.
_SIZE_HINTS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")


class Membership(NamedTuple):
    rank: int
    world_size: int
    local_world_size: int  # 0: all of them are on this node, as far as is known.
    launch_id: str


def membership(rank: Optional[int] = None, world_size: Optional[int] = None) -> Membership:
    """Arguments first, then the process group, then RANK and WORLD_SIZE, then 0 of 1."""
    if (rank is None) != (world_size is None):
        raise errors.invalid(f"rank={rank} and world_size={world_size}: give both or neither")
    group = _process_group()
    if rank is None or world_size is None:
        rank, world_size = _found(group)
    if world_size < 1 or not 0 <= rank < world_size:
        raise errors.invalid(
            f"rank is {rank} and world_size is {world_size}; 0 <= rank < world_size must hold"
        )
    return Membership(rank, world_size, _local_world_size(world_size), _launch_id(group))


def _found(group: Any) -> "tuple[int, int]":
    if group is not None:
        return int(group.get_rank()), int(group.get_world_size())
    rank, world_size = _number("RANK"), _number("WORLD_SIZE")
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise errors.invalid(
            "only one of $RANK and $WORLD_SIZE is set; set both or neither, or give rank= and world_size="
        )
    for hint in _SIZE_HINTS:
        if (_number(hint) or 1) > 1:
            raise errors.invalid(
                f"${hint} says that there are {os.environ[hint]} processes, but nothing says which rank this one is; "
                "give rank= and world_size=, or set RANK and WORLD_SIZE, or initialise the process group first"
            )
    return 0, 1


def _process_group() -> Any:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _number(name: str) -> Optional[int]:
    text = os.environ.get(name, "")
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise errors.invalid(f'${name} is "{text}", which is not a number') from None


def _local_world_size(world_size: int) -> int:
    local = _number("LOCAL_WORLD_SIZE")
    return local if local is not None and 0 < local < world_size else 0


def _launch_id(group: Any) -> str:
    """The same on all ranks of one launch, another one for each launch, as far as can be known. At most 500
    characters.
    """
    explicit = os.environ.get("CKPTD_LAUNCH_ID")
    if explicit:
        return f"env-{explicit}"[:500]
    return (
        _from_store(group)
        or _from_launcher()
        or f"parent-{_boot()}-{os.getppid()}-{_start_time(os.getppid())}"
    )[:500]


def _from_store(group: Any) -> str:
    """A name that the first rank to ask leaves in the process group's store, which lives as long as the
    launch.
    """
    if group is None:
        return ""
    try:
        from torch.distributed.distributed_c10d import _get_default_store

        store = _get_default_store()
        # Not compare_set: only some stores have it.
        if store.add("ckptd/launch/claims", 1) == 1:
            store.set("ckptd/launch/id", os.urandom(16).hex())
        store.wait(["ckptd/launch/id"], datetime.timedelta(seconds=60))
        return "store-" + bytes(store.get("ckptd/launch/id")).decode()
    except (ImportError, AttributeError, RuntimeError, ValueError):  # Another torch, or a store that is gone.
        return ""


def _from_launcher() -> str:
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment:
        # The id is "none" unless the user chose one, so it alone does not tell two launches apart; the
        # folder of the error files is made anew for each, and for each restart.
        folder = os.path.dirname(os.path.dirname(environment.get("TORCHELASTIC_ERROR_FILE", "")))
        restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"elastic-{environment['TORCHELASTIC_RUN_ID']}-{restart}-{folder or environment.get('MASTER_PORT', '')}"
    if "SLURM_STEP_ID" in environment:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return "slurm-" + "-".join(environment.get(name, "0") for name in names)
    for name in ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"):
        if environment.get(name):
            return f"mpi-{environment[name]}"
    return ""


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """In clock ticks since boot: tells a process from a later one with the same number."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"
