"""ZeRO's state of stages 1 and 2 for another number of ranks: groups of whole parameters are cut into equal parts."""

from typing import Any, Dict, List, Mapping, Sequence

import torch

from ckptd.deepspeed._resharding.layout import Copy, copies, pieces_of_cut_groups
from ckptd.deepspeed._resharding.saved_shards import STATE, Cut, Shards
from ckptd.deepspeed._saved_parts import refused

_FP32 = "single_partition_of_fp32_groups"
_BASE = "base_optimizer_state"
_GAPS = "param_alignment_paddings"
_Elements = Sequence[Mapping[str, int]]  # For each group, the numbers of elements of its parameters by name, in their order.


def is_known(optimizer: Any) -> bool:
    """Returns whether an optimizer of DeepSpeed has such state."""
    return _fp32_flats(optimizer) is not None


def _fp32_flats(optimizer: Any) -> Any:
    """Returns this rank's weights in fp32, with padding."""
    flats = getattr(optimizer, _FP32, None)
    return flats if flats is not None else getattr(optimizer, "fp32_groups_flat_partition", None)  # BF16_Optimizer's.


class GroupedState:
    """The content that this rank's file of ZeRO's state would have, at stages 1 and 2."""

    def __init__(self, optimizer: Any, shards: Shards, before: _Elements, now: _Elements) -> None:
        """before, now: the parameters as they were saved, and as they are."""
        if len(before) != len(now):
            raise refused(f"it has {len(before)} groups of parameters, and there are {len(now)} here")
        self._optimizer, self._shards = optimizer, shards
        self._before, self._now = before, now
        self._gaps = getattr(optimizer, "round_robin_bit16_padding", None) or _no_gaps(now)
        self._sizes = [flat.numel() for flat in _fp32_flats(optimizer)]
        self._sizes_before = _sizes_before(shards[0][STATE])

    def plan(self, rank: int) -> List[Copy]:
        """Returns the copies that make this rank's elements."""
        gaps_before = self._shards[0][STATE].get(_GAPS) or _no_gaps(self._before)
        there = pieces_of_cut_groups(self._before, gaps_before, self._sizes_before)
        mine = pieces_of_cut_groups(self._now, self._gaps, self._sizes)
        return copies([piece for piece in mine if piece.rank == rank], there)

    def make(self, cut: Cut) -> Dict[str, Any]:
        """Returns what is not as in the file of the first rank that saved."""
        optimizer = self._optimizer
        flats = [torch.zeros(size, dtype=self._shards[0][STATE][_FP32][0].dtype) for size in self._sizes]
        return {
            _FP32: cut.fill(flats, lambda rank: self._shards[rank][STATE][_FP32]),
            _BASE: self._base_state(cut),
            "group_paddings": getattr(optimizer, "groups_padding", None) or optimizer.group_paddings,
            _GAPS: self._gaps,
            "partition_count": optimizer.partition_count,
            "param_slice_mappings": optimizer._param_slice_mappings,
        }

    def _base_state(self, cut: Cut) -> Dict[str, Any]:
        groups = cut.whole(self._shards.file(0), self._shards[0][STATE][_BASE]["param_groups"])
        states = cut.states(self._sizes, self._states, self._sizes_before, range(len(groups)))
        by_number = {group["params"][0]: state for group, state in zip(groups, states) if state}
        return {"state": by_number, "param_groups": groups}

    def _states(self, rank: int) -> List[Any]:
        base = self._shards[rank][STATE][_BASE]
        return [base["state"].get(group["params"][0], {}) for group in base["param_groups"]]


def _sizes_before(saved: Mapping[str, Any]) -> List[int]:
    """Returns the elements, with padding, that each rank had of each group."""
    # BF16_Optimizer, which names no stage, saves the padding at the end of the last partitions, too.
    paddings = saved["group_paddings"] if "zero_stage" in saved else [0] * len(saved[_FP32])
    return [flat.numel() + padding for flat, padding in zip(saved[_FP32], paddings)]


def _no_gaps(groups: _Elements) -> List[List[int]]:
    return [[0] * len(group) for group in groups]
