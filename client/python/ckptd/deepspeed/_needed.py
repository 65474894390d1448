"""The files of a checkpoint that a rank's engine will ask for.

A file that is missing here is loaded when DeepSpeed asks for it. It is verified then, too, but if it is damaged the other
ranks notice only that this rank has ended.
"""

import logging
import os
from typing import Any, Iterator, List, Mapping, Sequence

_log = logging.getLogger("ckptd")


def needed_files(engine: Any, arguments: Mapping[str, Any], files: Sequence[str]) -> List[str]:
    """Returns the names of the files, of those that there are.

    arguments: those of load_checkpoint().
    """
    names: List[str] = []
    try:
        for prefix in _prefixes(engine, arguments):
            names += [name for name in files if name.startswith(prefix) and name not in names]
    except (AttributeError, TypeError) as error:  # Another release of DeepSpeed.
        _log.debug("ckptd: the files that DeepSpeed will ask for are not known: %s", error)
    return names


def _prefixes(engine: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    at = (arguments["load_dir"], str(arguments["tag"]))
    with_optimizer = arguments["load_optimizer_states"] and not arguments["load_module_only"]
    yield os.path.basename(engine._get_ckpt_name(*at))
    experts_of_stage_3 = engine.has_moe_layers and engine.zero_optimization_partition_weights()
    if engine.zero_optimization() and (with_optimizer or experts_of_stage_3):
        yield os.path.basename(engine._get_zero_ckpt_name(*at))
    if engine.has_moe_layers:
        yield from _prefixes_of_experts(engine)
    elif hasattr(engine.module, "ckpt_layer_path"):
        for number, _ in enumerate(engine.module.forward_funcs):
            yield os.path.basename(engine.module.ckpt_layer_path("", number))


def _prefixes_of_experts(engine: Any) -> Iterator[str]:
    from deepspeed.utils import groups

    layers = [module for module in engine.module.modules() if hasattr(module, "expert_group_name")]
    for layer, module in enumerate(layers):
        first = groups._get_expert_parallel_rank(module.expert_group_name) * module.num_local_experts
        for expert in range(first, first + module.num_local_experts):
            yield f"layer_{layer}_expert_{expert}_mp_rank_"
    if not engine.zero_optimization():
        largest = groups._get_max_expert_size_name()
        yield f"expp_rank_{groups._get_expert_parallel_rank(largest)}_mp_rank_"
