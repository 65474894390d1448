"""A rank's coordinates in the job, as they are given and never computed from sizes."""

import dataclasses
import os
import sys
from typing import Any, Dict, Optional, Tuple

from ckptd._membership import launch


@dataclasses.dataclass(frozen=True)
class Topology:
    """This rank's coordinates in tensor (tp), pipeline (pp), data (dp), context (cp), expert (ep) and
    expert-data (edp) parallelism.

    Every rank gives its own, and no two ranks may have the same. With expert parallelism, dp counts all ranks
    that hold the same non-expert weights, and edp those that hold the same experts. ``edp_rank`` and
    ``edp_size`` may be None if ``ep_size`` is 1. ``rank`` and ``world_size`` are those of the job, by default
    those of the process group or the launcher.

    Raises:
        ValueError: the numbers do not fit together.
    """

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    dp_rank: int = 0
    dp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1
    ep_rank: int = 0
    ep_size: int = 1
    edp_rank: Optional[int] = None  # None if ep_size is 1: then edp is dp.
    edp_size: Optional[int] = None
    rank: Optional[int] = None
    world_size: Optional[int] = None

    def __post_init__(self) -> None:
        for kind in ("tp", "pp", "dp", "cp", "ep", "edp"):
            rank, size = getattr(self, f"{kind}_rank"), getattr(self, f"{kind}_size")
            if kind == "edp" and rank is None and size is None and self.ep_size == 1:
                continue
            if not isinstance(rank, int) or not isinstance(size, int) or not 0 <= rank < size:
                raise ValueError(
                    f"{kind}_rank is {rank} and {kind}_size is {size}; 0 <= {kind}_rank < {kind}_size must hold"
                )
        if (self.rank is None) != (self.world_size is None):
            raise ValueError(f"rank={self.rank} and world_size={self.world_size} were given; give both or neither")
        if self.ep_size > 1 and self.cp_size > 1:
            raise ValueError(
                f"ep_size is {self.ep_size} and cp_size is {self.cp_size}; one of them must be 1, because the names of NxD's files "
                "do not distinguish such ranks"
            )
        if self.ep_size > 1 and (self.edp_size or 0) * self.ep_size != self.dp_size:
            raise ValueError(
                f"edp_size is {self.edp_size}, ep_size {self.ep_size} and dp_size {self.dp_size}; dp_size must be edp_size x "
                "ep_size"
            )

    @property
    def replica(self) -> Tuple[int, int]:
        """(index, count) of this rank among those that hold the same weights."""
        if self.ep_size > 1:
            assert self.edp_rank is not None and self.edp_size is not None  # The check above has made sure.
            return self.edp_rank, self.edp_size
        return self.dp_rank * self.cp_size + self.cp_rank, self.dp_size * self.cp_size


def complete(topology: Optional[Topology]) -> Topology:
    """Returns the topology that was given, else NxD's, else pure data parallelism, with rank and world_size
    filled in.
    """
    found = topology or _of_nxd()
    rank = found.rank if found is not None else None
    world_size = found.world_size if found is not None else None
    rank, world_size = launch.checked_rank(rank, world_size)
    if found is None:
        found = Topology(dp_rank=rank, dp_size=world_size)
    size = found.tp_size * found.pp_size * found.dp_size * found.cp_size
    if size != world_size:
        raise ValueError(
            f"the topology has tp {found.tp_size} x pp {found.pp_size} x dp {found.dp_size} x cp {found.cp_size} = {size} "
            f"ranks, but the job has {world_size}"
        )
    return dataclasses.replace(found, rank=rank, world_size=world_size)


def is_known(topology: Optional[Topology]) -> bool:
    """Returns whether this process's rank is known.

    Before that, every process of a job would default to rank 0 of 1.
    """
    return (
        topology is not None
        or launch.process_group() is not None
        or ("RANK" in os.environ and "WORLD_SIZE" in os.environ)
    )


def check_distinct(coordinates: "Dict[int, str]") -> None:
    """Raises ValueError if two ranks have the same coordinates: then some parts would not be saved.

    coordinates: as a text, by rank.
    """
    owners: Dict[str, int] = {}
    for rank, text in sorted(coordinates.items()):
        if text in owners:
            raise ValueError(
                f"ranks {owners[text]} and {rank} have the same coordinates, {text}; every rank must give its own, "
                "or parts of the model are not saved"
            )
        owners[text] = rank


def _of_nxd() -> Optional[Topology]:
    """Returns NxD's topology; None if NxD is not in use or not initialised."""
    state = sys.modules.get("neuronx_distributed.parallel_layers.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None

    def ask(kind: str) -> Any:
        """Returns (rank, size) of a kind of parallelism; older releases do not have every kind."""
        rank = getattr(state, f"get_{kind}_rank", None)
        size = getattr(state, f"get_{kind}_size", None)
        return (0, 1) if rank is None or size is None else (int(rank()), int(size()))

    tp_rank, tp_size = ask("tensor_model_parallel")
    pp_rank, pp_size = ask("pipeline_model_parallel")
    dp_rank, dp_size = ask("data_parallel")
    cp_rank, cp_size = ask("context_model_parallel")
    ep_rank, ep_size = ask("expert_model_parallel")
    edp_rank, edp_size = ask("expert_data_parallel") if ep_size > 1 else (None, None)
    return Topology(
        tp_rank, tp_size, pp_rank, pp_size, dp_rank, dp_size, cp_rank, cp_size, ep_rank, ep_size, edp_rank, edp_size
    )
