"""States to save: those of a transformer with AdamW, of any size, in bytes that no disk can compress or deduplicate."""

from __future__ import annotations

from typing import Any, Dict, List

import torch

LAYERS = 14
_BLOCK = 1 << 22  # Random numbers that are drawn; the rest of a state repeats them with an offset.


def training_state(size: int) -> Dict[str, Dict[str, Any]]:
    """Two files, with the parameters and with two moments of each; together `size` bytes of float32."""
    count = size // 4
    copies = []
    for share in (count - 2 * (count // 3), count // 3, count // 3):
        copies.append(parameters(share))
    model, first, second = copies
    moments = {name: {"exp_avg": first[name], "exp_avg_sq": second[name]} for name in model}
    return {"model.pt": model, "optimizer.pt": {"state": moments, "param_groups": [{"lr": 3e-4}]}}


def parameters(count: int) -> Dict[str, torch.Tensor]:
    """LAYERS blocks of a transformer, as wide as `count` allows, and an embedding with the rest."""
    width = int((count / LAYERS / 12.1) ** 0.5) // 64 * 64
    shapes = {"norm1": [width], "attention": [3 * width, width], "projection": [width, width]}
    shapes.update({"norm2": [width], "up": [4 * width, width], "down": [width, 4 * width]})
    tensors = {
        f"layer{i}.{name}": random_tensor(shape) for i in range(LAYERS) for name, shape in shapes.items()
    }
    left = count - sum(t.numel() for t in tensors.values())
    tensors["embedding"] = random_tensor([left])
    return tensors


def random_tensor(shape: List[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The bytes must be a multiple of 4."""
    tensor = torch.empty(shape, dtype=dtype)
    numbers = tensor.view(-1).view(torch.int32)
    for start in range(0, len(numbers), _BLOCK):
        piece = numbers[start : start + _BLOCK]
        piece.copy_(_random_block()[: len(piece)])
        piece.add_(int(torch.randint(1 << 30, ())))
    return tensor


def _random_block() -> torch.Tensor:
    global _block
    if _block is None:
        _block = torch.randint(-(1 << 31), (1 << 31) - 1, (_BLOCK,), dtype=torch.int32)
    return _block


_block: "torch.Tensor | None" = None


def change(tensors: List[torch.Tensor]) -> None:
    """Changes four bytes of every 4 KiB, so that no two saves have the same bytes."""
    for tensor in tensors:
        tensor.view(-1).view(torch.int32)[::1024].add_(1)
