"""Loads DeepSpeed's files, which hold objects of DeepSpeed beside tensors, with the classes that may be in them."""

import importlib
from typing import Any, List

from ckptd import errors
from ckptd._paths import open_regular
from ckptd._torch.reading import allowed_classes
from ckptd.deepspeed._process import process
from ckptd.restore import Checkpoint

# The classes that DeepSpeed's own states hold. They run no code when they are loaded.
_OF_DEEPSPEED = (
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
    ("deepspeed.utils.tensor_fragment", "tensor_fragment"),
)


def load(checkpoint: Checkpoint, name: str, map_location: Any = "cpu") -> Any:
    """Loads a file of a checkpoint of ckptd, verified.

    Raises:
        errors.Refused: it holds a class that is not allowed; see :func:`ckptd.deepspeed.configure`.
    """
    trust = process.settings.trust
    if not trust.weights_only:
        return checkpoint.load(name, map_location=map_location, weights_only=False)
    try:
        return checkpoint.load(name, map_location=map_location, safe_globals=trust.allowing(_of_deepspeed()))
    except errors.Refused as error:
        if error.reason != "UNSAFE_GLOBALS":
            raise
        raise _refuse(f"{name} of {checkpoint.tag}", str(error.details.get("classes", "a class"))) from error


def load_file(path: str, map_location: Any = "cpu") -> Any:
    """Loads a file that ckptd has not committed, unverified. Refused as load()."""
    with open(path, "rb", opener=open_regular) as file:
        return allowed_classes.load(
            file, process.settings.trust, _of_deepspeed(), map_location, lambda why: _refuse(path, why)
        )


def _refuse(what: str, why: str) -> errors.Refused:
    return allowed_classes.refusal(what, why, "ckptd.deepspeed.configure")


def _of_deepspeed() -> List[Any]:
    found = []
    for module, name in _OF_DEEPSPEED:
        try:
            found.append(getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError):  # Another release of DeepSpeed.
            continue
    return found
