"""DeepSpeed's checkpoints through ckptd: the same calls, the same files.

    import ckptd.deepspeed

    ckptd.deepspeed.install(num_kept_ckpts=3)  # Before deepspeed.initialize().

    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    engine.save_checkpoint("/data/ckpts", client_state={"step": 10})
    path, client_state = engine.load_checkpoint("/data/ckpts")

docs/deepspeed.md lists what is different.
"""

from ckptd.deepspeed._clones import clone_tensors_for_torch_save
from ckptd.deepspeed._convert_program import CannotConvert, NoCheckpoint
from ckptd.deepspeed._engine import CheckpointEngine
from ckptd.deepspeed._install import configure, install, run, uninstall
from ckptd.deepspeed._pretrained import save_pretrained
from ckptd.deepspeed._recovery import (
    LazyTensor,
    convert_zero_checkpoint_to_fp32_state_dict,
    convert_zero_checkpoint_to_state_dict,
    get_fp32_state_dict_from_zero_checkpoint,
    load_state_dict_from_zero_checkpoint,
)

__all__ = [
    "CannotConvert",
    "CheckpointEngine",
    "LazyTensor",
    "NoCheckpoint",
    "clone_tensors_for_torch_save",
    "configure",
    "convert_zero_checkpoint_to_fp32_state_dict",
    "convert_zero_checkpoint_to_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint",
    "install",
    "load_state_dict_from_zero_checkpoint",
    "run",
    "save_pretrained",
    "uninstall",
]
