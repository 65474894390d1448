"""The whole weights of a ZeRO checkpoint, with the functions of DeepSpeed's ``zero_to_fp32``.

`ckptctl convert zero-to-fp32` does the work: it runs nothing in a pickle, and verifies a checkpoint of ckptd first. Bytes
that are read here are verified when they are read. A checkpoint of another program is read with a warning in the log.
"""

import os
from typing import Any, Dict, List, Optional, TypeVar, Union

import torch

from ckptd._checkpoint_paths import is_committed, warn_unverified
from ckptd.deepspeed._convert_program import convert
from ckptd.deepspeed._saved_parts import Files, bytes_of
from ckptd.deepspeed._waiting import await_saves
from ckptd.restore import open_root

Path = Union[str, "os.PathLike[str]"]
Model = TypeVar("Model", bound=torch.nn.Module)


class LazyTensor:
    """A weight that is read from the checkpoint when it is asked for.

    Attributes:
        shape (torch.Size), dtype (torch.dtype): of the tensor that ``contiguous`` returns.
    """

    def __init__(self, files: Files, names: List[str], weight: Dict[str, Any]) -> None:
        self.shape = torch.Size(weight["shape"])
        self._stored: torch.dtype = getattr(torch, weight["dtype"])
        self.dtype = torch.float32 if weight["kind"] == "buffer" and self._stored.is_floating_point else self._stored
        self._files = files
        self._ranges = [(names[file], offset, size) for file, offset, size in weight["ranges"]]

    def contiguous(self) -> torch.Tensor:
        """Reads the weight. It is on the CPU.

        Raises:
            errors.Corrupt: a byte is not what was saved.
        """
        tensor = torch.empty(self.shape, dtype=self._stored)
        into, pieces = bytes_of(tensor), []
        for _, _, size in self._ranges:
            pieces.append(into[:size])
            into = into[size:]
        self._files.read(self._ranges, pieces)
        return tensor.to(self.dtype)


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: Path,
    tag: Optional[str] = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> Dict[str, Any]:
    """Returns the state dict of the whole model, on the CPU: trained weights and buffers in fp32, frozen weights
    as they were saved.

    It needs the memory of the result, and nothing beside. Tied weights are one tensor.

    Args:
        checkpoint_dir: the directory with the tags, or a tag itself.
        tag: default: what the file ``latest`` names.
        exclude_frozen_parameters: leave out parameters that are not trained.
        lazy_mode: return ``LazyTensor`` in place of tensors; ``contiguous()`` reads one.

    Raises:
        NoCheckpoint: there is no such checkpoint. It is a FileNotFoundError.
        CannotConvert: it is not of ZeRO, incomplete, tensor- or pipeline-parallel, has files of several saves, or
            names a class that ckptd does not know. It is a ValueError.
        errors.Corrupt: a byte is not what was saved, or the manifest is damaged or missing.
    """
    await_saves(checkpoint_dir)
    arguments = [os.fspath(checkpoint_dir), "--plan", *_common(tag, exclude_frozen_parameters)]
    plan = convert("zero-to-fp32", arguments)
    files = _files_of(plan["input"])
    values: List[Any] = []
    for weight in plan["weights"]:
        lazy = LazyTensor(files, plan["files"], weight) if weight["tied_to"] < 0 else None
        values.append(lazy.contiguous() if lazy is not None and not lazy_mode else lazy)
    return {
        weight["name"]: value if value is not None else values[weight["tied_to"]]
        for weight, value in zip(plan["weights"], values)
    }


def convert_zero_checkpoint_to_state_dict(
    checkpoint_dir: Path,
    output_dir: Path,
    dtype: Union[torch.dtype, str] = torch.float32,
    max_shard_size: Union[int, str, None] = "5GB",
    safe_serialization: bool = False,
    tag: Optional[str] = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes the weights of the whole model to files that load without DeepSpeed. No weight is in memory as a
    whole, and ``output_dir`` appears complete or not at all: it must not exist, or be empty.

    Args:
        dtype: of floating-point weights: float32, float16 or bfloat16.
        max_shard_size: bytes of weights in one file, as a number or as "5GB"; None for one file.
        safe_serialization: write safetensors, not pickles (``.bin``).
        checkpoint_dir, tag, exclude_frozen_parameters: as for ``get_fp32_state_dict_from_zero_checkpoint``.

    Raises:
        NoCheckpoint, CannotConvert: as ``get_fp32_state_dict_from_zero_checkpoint``.
        errors.Refused: the output exists; the disk is too small.
    """
    await_saves(checkpoint_dir)
    output = os.path.abspath(os.fspath(output_dir))
    os.makedirs(os.path.dirname(output), exist_ok=True)
    arguments = [os.fspath(checkpoint_dir), output, *_common(tag, exclude_frozen_parameters)]
    arguments += [f"--dtype={dtype}", f"--max_shard_size={'none' if max_shard_size is None else max_shard_size}"]
    convert("zero-to-fp32", arguments + (["--safe_serialization"] if safe_serialization else []))


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: Path,
    output_dir: Path,
    max_shard_size: Union[int, str, None] = "5GB",
    safe_serialization: bool = False,
    tag: Optional[str] = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Does the same as ``convert_zero_checkpoint_to_state_dict`` with float32."""
    convert_zero_checkpoint_to_state_dict(
        checkpoint_dir,
        output_dir,
        torch.float32,
        max_shard_size,
        safe_serialization,
        tag,
        exclude_frozen_parameters,
    )


def load_state_dict_from_zero_checkpoint(model: Model, checkpoint_dir: Path, tag: Optional[str] = None) -> Model:
    """Moves ``model`` to the CPU, loads the whole weights into it (``strict=False``), and returns it.

    Raises:
        NoCheckpoint, CannotConvert: as ``get_fp32_state_dict_from_zero_checkpoint``.
    """
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    model = model.cpu()
    model.load_state_dict(state, strict=False)
    return model


def _common(tag: Optional[str], exclude_frozen_parameters: bool) -> List[str]:
    arguments = [] if tag is None else [f"--tag={tag}"]
    return arguments + (["--exclude_frozen_parameters"] if exclude_frozen_parameters else [])


def _files_of(path: str) -> Files:
    """Returns the files of a checkpoint, on the disk, where the converter has read them."""
    if is_committed(path):
        root, tag = os.path.split(os.path.realpath(path))
        return Files(path, open_root(root).open(tag))
    warn_unverified(path)
    return Files(path, None)
