"""The whole weights of a checkpoint of stage 3, for an engine that loads it without the optimizer's state.

DeepSpeed's engine then puts the weights together from the files of all ranks. It takes those of the tag that ``latest``
names, whatever tag it loads, and reads the files itself. Here they are those of the tag, and verified.
"""

import importlib.util
import os
from types import ModuleType
from typing import Any, Dict, Mapping

import torch

from ckptd import errors
from ckptd.deepspeed._saved_parts import Files, Reading

_TOOL = "deepspeed.utils.zero_to_fp32"


def are_needed(engine: Any, arguments: Mapping[str, Any]) -> bool:
    """Returns whether an engine asks for the whole weights. arguments: those of load_checkpoint()."""
    is_stage_3: bool = engine.zero_optimization_partition_weights()
    return is_stage_3 and not engine.has_moe_layers and not arguments["load_optimizer_states"]


def whole_weights(path: str, files: Files) -> Dict[str, Any]:
    """Returns the weights by name, in fp32 on the CPU. Only their bytes are read, not the optimizer's state.

    Args:
        path: of the checkpoint.
        files: the files of the checkpoint.

    Raises:
        errors.Corrupt: a byte is not what was saved, or a file is there that is not of the checkpoint.
        ValueError: the files of a rank are missing.
    """

    def load(file: str, **_: Any) -> Any:
        name = os.path.basename(file)
        if name not in files.names:
            raise errors.Corrupt(
                f"{file} is not of the checkpoint that was saved as {os.path.basename(path)}: move it away", reason="CORRUPT_FILE", path=name
            )
        return _without_optimizer(name, files)

    tool = _own_copy_of_tool()
    tool.torch = _Torch(load)  # type: ignore[attr-defined]
    root, tag = os.path.split(path)
    weights: Dict[str, Any] = tool.get_fp32_state_dict_from_zero_checkpoint(root, tag)
    return weights


def _without_optimizer(name: str, files: Files) -> Any:
    """Loads a file without the state of each weight in the optimizer, which may be twice as large as the weights."""
    value = files.load(name, "meta")
    if isinstance(value.get("optimizer_state_dict"), dict):
        value["optimizer_state_dict"].pop("optimizer_state_dict", None)
    reading = Reading(files)
    try:
        whole = reading.whole(name, value)
    except errors.Refused:  # A tensor of it is not a plain range of the file.
        return files.load(name)
    reading.run()
    return whole


def _own_copy_of_tool() -> ModuleType:
    """Returns a second copy of DeepSpeed's module: what is changed in it does not affect other users of the module."""
    spec = importlib.util.find_spec(_TOOL)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class _Torch:
    """Stands for the module torch, with another load()."""

    def __init__(self, load: Any) -> None:
        self.load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
