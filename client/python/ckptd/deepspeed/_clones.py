"""Copies of states whose tensors are views of larger buffers, for other programs that save them."""

from typing import Any, Dict


def clone_tensors_for_torch_save(item: Any, device: Any = "cpu") -> Any:
    """Returns a copy of a state in which each tensor has memory of its own size, as DeepSpeed's function of this name.

    Saving through ckptd does not need it: what no tensor uses of a buffer is not saved. It is for what is passed on to
    ``torch.save`` or to a model's ``save_pretrained``. Unlike DeepSpeed's, it keeps tied tensors tied: names of one
    tensor are names of one copy.

    Args:
        item: lists, tuples and dicts of tensors and other objects, which stay as they are.
        device (torch.device or str): where the copies are to be. Default: the CPU
    """
    return _clone(item, device, {})


def _clone(item: Any, device: Any, clones: Dict[Any, Any]) -> Any:
    import torch

    if isinstance(item, torch.Tensor):
        return _clone_of_tensor(item, torch.device(device), clones)
    if isinstance(item, (list, tuple)):
        cloned = [_clone(each, device, clones) for each in item]
        return cloned if isinstance(item, list) else tuple(cloned)
    if isinstance(item, dict):
        return type(item)({key: _clone(value, device, clones) for key, value in item.items()})
    return item


def _clone_of_tensor(tensor: Any, device: Any, clones: Dict[Any, Any]) -> Any:
    whole = tensor.detach()
    key = (whole.data_ptr(), whole.dtype, whole.device, whole.shape, whole.stride())
    if whole.numel() == 0 or key not in clones:
        # The original is kept, too: the memory of one that is freed may become that of another.
        clones[key] = (whole.clone() if whole.device == device else whole.to(device), whole)
    return clones[key][0]
