"""Where a rank stands in the job: its coordinates, taken as they are and never computed from sizes."""

import dataclasses
import datetime
import os
import sys
from typing import Any, Dict, Optional, Tuple

from ckptd import _rank


@dataclasses.dataclass(frozen=True)
class Topology:
    """This rank's coordinates: in tensor, pipeline, data, context, expert and expert-data parallelism.

    Every rank gives its own; two ranks may not have the same. With expert parallelism dp counts all ranks that hold the same
    non-expert weights, and edp those that hold the same experts. rank and world_size: of the job; None: as the process group
    or the launcher says. ValueError says what does not fit together.
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
    edp_rank: Optional[int] = None  # None: ep_size is 1, and edp is dp.
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
            raise ValueError(f"rank={self.rank} and world_size={self.world_size}: give both or neither")
        if self.ep_size > 1 and self.cp_size > 1:
            raise ValueError(
                f"ep_size is {self.ep_size} and cp_size is {self.cp_size}; one of them must be 1: the names of NxD's files "
                "cannot tell such ranks apart"
            )
        if self.ep_size > 1 and (self.edp_size or 0) * self.ep_size != self.dp_size:
            raise ValueError(
                f"edp_size is {self.edp_size}, ep_size {self.ep_size} and dp_size {self.dp_size}; dp_size must be edp_size x "
                "ep_size"
            )

    @property
    def replica(self) -> Tuple[int, int]:
        """Which of how many ranks that hold the same weights."""
        if self.ep_size > 1:
            assert self.edp_rank is not None and self.edp_size is not None  # As checked.
            return self.edp_rank, self.edp_size
        return self.dp_rank * self.cp_size + self.cp_rank, self.dp_size * self.cp_size


def complete(topology: Optional[Topology]) -> Topology:
    """The topology that was given, else NxD's, else the process group as pure data parallelism; with rank and world_size."""
    found = topology or _of_nxd()
    rank = found.rank if found is not None else None
    world_size = found.world_size if found is not None else None
    member = _rank.membership(rank, world_size)
    if found is None:
        found = Topology(dp_rank=member.rank, dp_size=member.world_size)
    size = found.tp_size * found.pp_size * found.dp_size * found.cp_size
    if size != member.world_size:
        raise ValueError(
            f"the topology has tp {found.tp_size} x pp {found.pp_size} x dp {found.dp_size} x cp {found.cp_size} = {size} "
            f"ranks, and the job has {member.world_size}"
        )
    return dataclasses.replace(found, rank=member.rank, world_size=member.world_size)


def is_known(topology: Optional[Topology]) -> bool:
    """Whether somebody says which rank this is: before that, each process of a job would take itself for rank 0 of 1."""
    return (
        topology is not None
        or _rank._process_group() is not None
        or ("RANK" in os.environ and "WORLD_SIZE" in os.environ)
    )


def check_together(topology: Topology, name: str, seconds: float) -> None:
    """ValueError on every rank where two have the same coordinates: then others' parts would be saved by nobody. By the process
    group's store, where there is a group; name: the same on all ranks, and new each time.
    """
    if _rank._process_group() is None:
        return
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    owners: Dict[bytes, int] = {}
    keys = [f"ckptd/nxd/{name}/{rank}" for rank in range(topology.world_size or 1)]
    store.set(keys[topology.rank or 0], repr(dataclasses.replace(topology, rank=None, world_size=None)))
    try:
        store.wait(keys, datetime.timedelta(seconds=seconds))
    except RuntimeError:
        return  # The save will say who is missing.
    for rank, key in enumerate(keys):
        coordinates = bytes(store.get(key))
        if coordinates in owners:
            raise ValueError(
                f"ranks {owners[coordinates]} and {rank} have the same coordinates, {coordinates.decode()}; every rank gives its own, or "
                "parts of the model are saved by nobody"
            )
        owners[coordinates] = rank


def _of_nxd() -> Optional[Topology]:
    """None where NxD is not in use, or not initialised."""
    state = sys.modules.get("neuronx_distributed.parallel_layers.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None

    def ask(kind: str) -> Any:
        """(rank, size); older releases do not know every kind."""
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
