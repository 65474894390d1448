"""The rank and the launch of this process: from arguments, the process group, or the launcher's
environment.

Never starts a collective: a rank that is missing must not block the others here.
"""

import datetime
import os
import sys
from typing import Any, NamedTuple, Optional, Sequence, Tuple

from ckptd import errors

# Launchers set these to the number of processes that they started. Where one is more than 1 and nothing tells
# the rank, we refuse: a default of rank 0 would let several processes save as rank 0.
_SIZE_HINTS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")

# How many processes of the launch are on this node: torchrun, Open MPI, MVAPICH, and what is built on MPICH.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


class Launch(NamedTuple):
    """This process in one launch of the job."""

    rank: int
    world_size: int
    local_world_size: int  # Ranks on this node; 0 if all of them are, as far as is known.
    launch_id: str  # The same on all ranks of a launch; at most 500 characters.
    job: str = ""  # The same in all launches of one job, as far as is known; at most 500 characters.
    local_ranks: Tuple[int, ...] = ()  # The ranks on this node, ascending; empty: a block of local_world_size ranks.


def find_launch(
    rank: Optional[int] = None, world_size: Optional[int] = None, local_ranks: Optional[Sequence[int]] = None
) -> Launch:
    """Returns this process's place in its launch.

    The arguments come first, then the process group, then $RANK and $WORLD_SIZE, then rank 0 of 1.

    Args:
        local_ranks: the ranks on this node. None: as the launcher's environment has them.

    Raises:
        errors.Refused: the rank is not known or does not fit the world size.
    """
    rank, world_size = checked_rank(rank, world_size)
    group = process_group()
    listed = ranks_by_launcher(rank, world_size) if local_ranks is None else tuple(sorted(set(local_ranks)))
    if listed and (rank not in listed or not 0 <= listed[0] <= listed[-1] < world_size):
        raise errors.invalid(
            f"local_ranks is {list(listed)}; it must name the ranks of this node, rank {rank} among them, of [0, {world_size})"
        )
    local = len(listed) % world_size if listed else _local_world_size(world_size)
    launch_id = _launch_id(group, world_size) if local == 0 else _launch_id_of_nodes(group)
    return Launch(rank, world_size, local, launch_id, _job_id(), listed if local else ())


def ranks_by_launcher(rank: int, world_size: int) -> Tuple[int, ...]:
    """Returns the ranks on this node as srun or torchrun list them, ascending; empty if neither does.

    srun may assign them to nodes in any way. torchrun gives each node one block, of any size.
    """
    environment = os.environ
    tasks = environment.get("SLURM_GTIDS", "")
    if tasks and (_number_in("SLURM_PROCID"), _number_in("SLURM_STEP_NUM_TASKS")) == (rank, world_size):
        found = tuple(sorted(int(task) for task in tasks.split(",") if task.isdigit()))
        return found if rank in found and found[-1] < world_size else ()
    if "TORCHELASTIC_RUN_ID" in environment and (_number_in("RANK"), _number_in("WORLD_SIZE")) == (rank, world_size):
        place, count = _number_in("LOCAL_RANK"), _number_in("LOCAL_WORLD_SIZE")
        if place is not None and count is not None and 0 <= place < count and place <= rank <= world_size - (count - place):
            return tuple(range(rank - place, rank - place + count))
    return ()


def block_by_launcher(rank: int, world_size: int) -> Tuple[int, ...]:
    """Returns the block of $LOCAL_WORLD_SIZE ranks (or another launcher's number) that holds a rank; empty if there is none."""
    local = next(filter(None, map(_number_in, _LOCAL_SIZES)), 0)
    if not 0 < local < world_size or world_size % local:
        return ()
    return tuple(range(rank // local * local, rank // local * local + local))


def checked_rank(rank: Optional[int] = None, world_size: Optional[int] = None) -> "tuple[int, int]":
    """Returns (rank, world size): the arguments, or where both are None what find_rank() returns.

    Raises:
        errors.Refused: the rank is not known or does not fit the world size.
    """
    if (rank is None) != (world_size is None):
        raise errors.invalid(f"rank={rank} and world_size={world_size} were given; give both or neither")
    if rank is None or world_size is None:
        rank, world_size = find_rank()
    if world_size < 1 or not 0 <= rank < world_size:
        raise errors.invalid(
            f"rank is {rank} and world_size is {world_size}; 0 <= rank < world_size must hold"
        )
    return rank, world_size


def find_rank() -> "tuple[int, int]":
    """Returns (rank, world size) where no arguments give them. errors.Refused: the rank is not known."""
    group = process_group()
    if group is not None:
        return int(group.get_rank()), int(group.get_world_size())
    rank, world_size = _number_in("RANK"), _number_in("WORLD_SIZE")
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise errors.invalid(
            "only one of $RANK and $WORLD_SIZE is set; set both or neither, or give rank= and world_size="
        )
    for hint in _SIZE_HINTS:
        if (_number_in(hint) or 1) > 1:
            raise errors.invalid(
                f"${hint} says that there are {os.environ[hint]} processes, but nothing says which rank this one is; "
                "give rank= and world_size=, or set RANK and WORLD_SIZE, or initialise the process group first"
            )
    return 0, 1


def process_group() -> Any:
    """Returns torch.distributed if this process has initialised its default group, else None.

    Never imports torch.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _number_in(name: str) -> Optional[int]:
    """Returns the number in an environment variable; None if it is unset or empty."""
    text = os.environ.get(name, "")
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise errors.invalid(f'${name} is "{text}", which is not a number') from None


def _local_world_size(world_size: int) -> int:
    """Returns how many of the ranks are on this node; 0: all of them, as far as is known.

    Raises:
        errors.Refused: the launcher says that the ranks are on several nodes, and not how many are on this one.
    """
    for name in _LOCAL_SIZES:
        local = _number_in(name)
        if local is not None:
            return local if 0 < local < world_size else 0
    nodes = _number_in("SLURM_STEP_NUM_NODES") or 1
    if nodes > 1 and _number_in("SLURM_STEP_NUM_TASKS") == world_size:
        raise errors.invalid(
            f"srun has started these {world_size} ranks on {nodes} nodes ($SLURM_STEP_NUM_NODES), and nothing says how many of "
            "them are on this one; set LOCAL_WORLD_SIZE to that number on every node"
        )
    return 0


def _launch_id(group: Any, world_size: int) -> str:
    """Returns a text that is the same on all ranks of one launch and differs between launches, as far as is
    known.

    Without a launcher, a single rank is a launch of its own: its parent may be a shell, which starts the job again and
    again. Of several ranks the parent is the launch: all that is known to be the same is who started them.
    """
    explicit = os.environ.get("CKPTD_LAUNCH_ID")
    if explicit:
        return f"env-{explicit}"[:500]
    return (
        _from_store(group)
        or _from_launcher()
        or (f"process-{process_id()}" if world_size == 1 else _parent())
    )[:500]


def _launch_id_of_nodes(group: Any) -> str:
    """Returns the same as _launch_id() for a launch on several nodes: nothing in it is of this node alone.

    Raises:
        errors.Refused: nothing that all nodes know tells the launch apart from others.
    """
    explicit = os.environ.get("CKPTD_LAUNCH_ID")
    if explicit:
        return f"env-{explicit}"[:500]
    shared = _from_store(group) or _from_elastic_run() or _from_scheduler()
    if shared:
        return shared[:500]
    raise errors.invalid(
        "the launch spans nodes ($LOCAL_WORLD_SIZE is smaller than the world), and nothing identifies it on all of "
        "them; set CKPTD_LAUNCH_ID to a text that is the same on all nodes and differs between launches, give "
        "torchrun --rdzv-id, or initialise the process group first"
    )


def _from_elastic_run() -> str:
    """Returns the id of a torchrun launch that all nodes know; empty if there is none.

    The id of the run is "none" unless the user chose one. The restart count is of the rendezvous: a restart is
    one of all nodes.
    """
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if run in ("", "none"):
        return ""
    return f"elastic-{run}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _job_id() -> str:
    """Returns a text that is the same in all launches of one job: a restart needs no takeover.

    A launcher that restarts its processes stays their parent.
    """
    explicit = os.environ.get("CKPTD_JOB_ID")
    if explicit:
        return f"env-{explicit}"[:500]
    slurm = os.environ.get("SLURM_JOB_ID")
    return f"slurm-{slurm}"[:500] if slurm else _parent()


def _parent() -> str:
    """Returns a text that identifies the parent process among all of this machine."""
    return f"parent-{boot_id()}-{os.getppid()}-{_start_time(os.getppid())}"


_process = (0, "")  # Its id, and what process_id() returns in it.


def process_id() -> str:
    """Returns a random text that identifies this process. A forked child has another one."""
    global _process
    if _process[0] != os.getpid():
        _process = (os.getpid(), os.urandom(16).hex())
    return _process[1]


def _from_store(group: Any) -> str:
    """Returns the id that the first rank to ask put into the process group's store; empty if there is no
    store.

    The store lives as long as the launch.
    """
    if group is None:
        return ""
    try:
        from torch.distributed.distributed_c10d import _get_default_store

        store = _get_default_store()
        # add() and not compare_set(): only some stores have the latter.
        if store.add("ckptd/launch/claims", 1) == 1:
            store.set("ckptd/launch/id", os.urandom(16).hex())
        store.wait(["ckptd/launch/id"], datetime.timedelta(seconds=60))
        return "store-" + bytes(store.get("ckptd/launch/id")).decode()
    except (ImportError, AttributeError, RuntimeError, ValueError):  # Another version of torch, or the store has gone.
        return ""


def _from_launcher() -> str:
    """Returns the id that torchrun, Slurm or MPI give a launch; empty if none of them started this process."""
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment:
        # The id is "none" unless the user chose one, so it alone does not tell two launches apart. torchrun
        # makes a new folder of error files for each launch and each restart.
        folder = os.path.dirname(os.path.dirname(environment.get("TORCHELASTIC_ERROR_FILE", "")))
        restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"elastic-{environment['TORCHELASTIC_RUN_ID']}-{restart}-{folder or environment.get('MASTER_PORT', '')}"
    return _from_scheduler()


def _from_scheduler() -> str:
    """Returns the id that Slurm or MPI give a launch, on all its nodes; empty if neither started this process."""
    environment = os.environ
    if "SLURM_STEP_ID" in environment:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return "slurm-" + "-".join(environment.get(name, "0") for name in names)
    for name in ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"):
        if environment.get(name):
            return f"mpi-{environment[name]}"
    return ""


def boot_id() -> str:
    """Returns the kernel's id of this boot; empty if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Returns when a process started, in clock ticks since boot.

    It tells the process from a later one with its id.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"
