"""ZeRO's state of stage 3 for another number of ranks: each parameter is cut into equal parts."""

from typing import Any, Dict, List, Mapping, Sequence

import torch

from ckptd.deepspeed._resharding.layout import Copy, copies, part_of, pieces_of_cut_parameters
from ckptd.deepspeed._resharding.saved_shards import STATE, Cut, Shards
from ckptd.deepspeed._saved_parts import Files, refused

_FP32 = "fp32_flat_groups"
_BASE = "optimizer_state_dict"
_Elements = Sequence[Mapping[str, int]]  # For each sub-group, the numbers of elements of its parameters by name, in their order.


class PartitionedState:
    """The content that this rank's file of ZeRO's state would have, at stage 3."""

    def __init__(self, optimizer: Any, shards: Shards, before: _Elements, now: _Elements, saved_ranks: int, ranks: int) -> None:
        """before, now: the parameters as they were saved, and as they are."""
        self._optimizer, self._shards = optimizer, shards
        self._before, self._now = before, now
        self._saved_ranks, self._ranks = saved_ranks, ranks
        self._sizes = [flat.numel() for flat in optimizer.fp32_partitioned_groups_flat]
        self._sizes_before = [flat.numel() for flat in shards[0][STATE][_FP32]]
        _check_sizes(before, saved_ranks, self._sizes_before)
        _check_sizes(now, ranks, self._sizes)

    def plan(self, rank: int) -> List[Copy]:
        """Returns what this rank takes from where."""
        return plan(self._before, self._saved_ranks, self._now, self._ranks, rank)

    def make(self, cut: Cut) -> Dict[str, Any]:
        """Returns what is not as in the file of the first rank that saved."""
        flats = [torch.zeros(size, dtype=self._shards[0][STATE][_FP32][0].dtype) for size in self._sizes]
        return {
            _FP32: cut.fill(flats, lambda rank: self._shards[rank][STATE][_FP32]),
            _BASE: self._base_state(cut),
            "partition_count": self._optimizer.partition_count,
        }

    def _base_state(self, cut: Cut) -> Dict[str, Any]:
        """Returns the state of torch's optimizer, which numbers the sub-groups of its first group first."""
        groups = cut.whole(self._shards.file(0), self._shards[0][STATE][_BASE]["param_groups"])
        order: List[int] = []
        for number, group in enumerate(groups):
            own = [sub for sub, of in sorted(self._optimizer.sub_group_to_group_id.items()) if of == number]
            group["params"] = list(range(len(order), len(order) + len(own)))
            order += own
        number_before = {name: number for number, group in enumerate(self._before) for name in group}
        like = [number_before[next(iter(group))] for group in self._now]
        states = cut.states(self._sizes, self._states, self._sizes_before, like)
        return {"state": {order.index(sub): state for sub, state in enumerate(states) if state}, "param_groups": groups}

    def _states(self, rank: int) -> List[Any]:
        base = self._shards[rank][STATE][_BASE]
        return [base["state"].get(number, {}) for group in base["param_groups"] for number in group["params"]]


def plan(before: _Elements, saved_ranks: int, now: _Elements, ranks: int, rank: int) -> List[Copy]:
    """Returns what a rank takes from where."""
    mine = [piece for piece in pieces_of_cut_parameters(now, ranks) if piece.rank == rank]
    return copies(mine, pieces_of_cut_parameters(before, saved_ranks))


def _check_sizes(groups: _Elements, ranks: int, found: Sequence[int]) -> None:
    wanted = [sum(part_of(count, ranks) for count in group.values()) for group in groups]
    if wanted != found:
        raise refused(f"flat tensors of {ranks} ranks have {found} elements, and equal parts of the parameters {wanted}")


def frozen_parts(
    files: Files, models: Shards, shapes: Mapping[str, torch.Size], saved_ranks: int, ranks: int, rank: int
) -> Dict[str, torch.Tensor]:
    """Reads a rank's parts of the parameters that are not trained. models: the files of the model's state."""
    groups = [{name: shape.numel()} for name, shape in shapes.items()]

    def saved(of_rank: int) -> List[torch.Tensor]:
        return [models[of_rank]["frozen_param_fragments"][name] for name in shapes]

    cut = Cut(files, models, plan(groups, saved_ranks, groups, ranks, rank))
    sizes = [part_of(shape.numel(), ranks) for shape in shapes.values()]
    made = cut.fill([torch.zeros(size, dtype=each.dtype) for size, each in zip(sizes, saved(0))], saved)
    cut.run()
    return dict(zip(shapes, made))
