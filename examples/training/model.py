"""A small GPT that predicts bytes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY_SIZE = 256  # A token is a byte.


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        grown: torch.Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + grown


class Gpt(nn.Module):
    """About 12 * layers * width^2 parameters; the defaults make 31.8 million."""

    def __init__(self, width: int = 512, layers: int = 10, heads: int = 8, context: int = 64) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(VOCABULARY_SIZE, width)
        self.positions = nn.Embedding(context, width)
        # Dropout draws random numbers, so an exact resume also needs the generator's state.
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY_SIZE, bias=False)
        self.head.weight = self.tokens.weight  # Tied, as in GPT-2.
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss, in nats per byte."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())
