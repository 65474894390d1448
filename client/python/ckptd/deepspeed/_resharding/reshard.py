"""Loads ZeRO's state with another number of data-parallel ranks than saved it, which DeepSpeed alone refuses.

Each rank reads, from the files of the ranks that saved, the ranges of bytes that are its own now. Nothing is converted on
disk, and no rank holds the whole state. The result is what DeepSpeed would find in this rank's files if as many ranks as
there are had saved, and DeepSpeed's own code loads it.
"""

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ckptd.deepspeed._resharding import reshard_groups
from ckptd.deepspeed._resharding.layout import MissingElements
from ckptd.deepspeed._resharding.reshard_groups import GroupedState
from ckptd.deepspeed._resharding.reshard_parameters import PartitionedState, frozen_parts
from ckptd.deepspeed._resharding.saved_shards import STATE, Cut, Shards, count_ranks, file_of_rank, numbers_of_elements
from ckptd.deepspeed._saved_parts import Files, refused

_FROZEN = "frozen_param_fragments"


class Resharded(NamedTuple):
    """The content that this rank's files would have if as many ranks as now had saved."""

    values: Dict[str, Any]  # By the name of the file.
    # The model's files by tensor-parallel rank that stand for those of this rank, which may have none (stage 3); else empty.
    model_files: List[str]


def reshard(engine: Any, arguments: Mapping[str, Any], files: Files) -> Optional[Resharded]:
    """Reads this rank's state out of the files of another number of ranks.

    Args:
        arguments: those of load_checkpoint().

    Returns:
        None if as many ranks as there are have saved, or if DeepSpeed itself loads, or refuses, what is asked for.

    Raises:
        errors.Refused: the checkpoint is not of this model.
    """
    if not engine.zero_optimization() or engine.zero_elastic_checkpoint():
        return None
    loading = _Loading(engine, arguments, files)
    if not loading.is_needed():
        return None
    if _spreads_experts(engine):
        raise refused(
            "the model's experts are cut over other ranks than the rest",
            "recover the weights alone (ckptctl convert zero-to-fp32); only experts of AutoEP can be converted with the "
            "optimizer's state (ckptctl convert ds-to-universal)",
        )
    try:
        return loading.run()
    except MissingElements as error:
        raise refused(f"it does not have all elements of {error}") from error
    except KeyError as error:
        raise refused(f"its files do not have {error}") from error


class _Loading:
    def __init__(self, engine: Any, arguments: Mapping[str, Any], files: Files) -> None:
        import torch.distributed as dist

        group = engine.optimizer.dp_process_group
        at = (arguments["load_dir"], str(arguments["tag"]))
        self._engine, self._files = engine, files
        self._rank, self._ranks = dist.get_rank(group=group), dist.get_world_size(group=group)
        self._model_file = os.path.basename(engine._get_ckpt_name(*at))
        self._zero_file = os.path.basename(engine._get_zero_ckpt_name(*at))
        self._saved_ranks = count_ranks(self._zero_file, files.names)
        self._is_stage_3 = engine.zero_optimization_partition_weights()
        self._with_optimizer = arguments["load_optimizer_states"] and not arguments["load_module_only"]

    def is_needed(self) -> bool:
        if self._saved_ranks in (0, self._ranks):
            return False
        return self._is_stage_3 or (self._with_optimizer and reshard_groups.is_known(self._engine.optimizer))

    def run(self) -> Resharded:
        stands_for = self._rank % self._saved_ranks  # This rank may have no file of its own.
        name = file_of_rank(self._model_file, stands_for)
        model = self._files.load(name)
        values = {name: model}
        if self._is_stage_3 and model.get(_FROZEN):
            models = Shards(self._files, self._model_file)
            shapes = model["frozen_param_shapes"]
            model[_FROZEN] = frozen_parts(self._files, models, shapes, self._saved_ranks, self._ranks, self._rank)
        if self._with_optimizer:
            model["dp_world_size"] = self._ranks
            values[self._zero_file] = self._zero_state(model["param_shapes"])
        return Resharded(values, self._model_files(stands_for) if self._is_stage_3 else [])

    def _model_files(self, rank: int) -> List[str]:
        pattern = re.escape(f"zero_pp_rank_{rank}_mp_rank_") + r"\d+_model_states\.pt"
        return sorted(name for name in self._files.names if re.fullmatch(pattern, name))

    def _zero_state(self, saved_shapes: Sequence[Mapping[str, Any]]) -> Any:
        """Reads, and returns what this rank's file of ZeRO's state would hold."""
        shapes = self._engine._get_zero_param_shapes()
        _check_shapes(saved_shapes, shapes)
        shards = Shards(self._files, self._zero_file)
        state = self._layout_of(shards, numbers_of_elements(saved_shapes), numbers_of_elements(shapes))
        cut = Cut(self._files, shards, state.plan(self._rank))
        made = state.make(cut)
        rest = {key: value for key, value in shards[0][STATE].items() if key not in made}
        others = {key: value for key, value in shards[0].items() if key != STATE}
        whole = cut.whole(shards.file(0), {**others, STATE: rest})
        cut.run()
        whole[STATE].update(made)
        return whole

    def _layout_of(self, shards: Shards, before: List[Dict[str, int]], now: List[Dict[str, int]]) -> Any:
        optimizer = self._engine.optimizer
        if self._is_stage_3:
            return PartitionedState(optimizer, shards, before, now, self._saved_ranks, self._ranks)
        return GroupedState(optimizer, shards, before, now)


def _spreads_experts(engine: Any) -> bool:
    import torch.distributed as dist
    from deepspeed.moe.utils import is_moe_param

    if not engine.has_moe_layers:
        return False
    is_stage_3: bool = engine.zero_optimization_partition_weights()
    # DeepSpeed keeps the groups of all engines of this process.
    names = {parameter.group_name for parameter in engine.module.parameters() if is_moe_param(parameter)}
    return is_stage_3 or any(dist.get_world_size(group=engine.expert_parallel_group[name]) > 1 for name in names)


def _check_shapes(saved: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> None:
    """Raises Refused if a parameter has another shape than it was saved with."""
    before = {name: shape for group in saved for name, shape in group.items()}
    for group in wanted:
        for name, shape in group.items():
            if before.get(name) != shape:
                there = f"has the shape {list(before[name])} there" if name in before else "is not there"
                raise refused(f"the parameter {name} {there}, and {list(shape)} here")
