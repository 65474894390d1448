"""A GPT over bytes, and real text to train it on: what any Debian machine has on its disk anyway."""

from __future__ import annotations

import hashlib
import os
import pathlib
import sysconfig
from typing import Any, List, Tuple

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 256  # One token a byte.


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
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        # Dropout draws random numbers, so a resume is only exact when the generator's state came back, too.
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight  # Tied, as in GPT-2.
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss, in nats a byte."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def corpus_files() -> List[pathlib.Path]:
    """Licences, Perl's library, Python's own sources: text that people wrote, in a fixed order."""
    places = [
        ("/usr/share/common-licenses", "*"),
        ("/usr/share/perl", "**/*.p[lm]"),
        (sysconfig.get_paths()["stdlib"], "*.py"),
    ]
    files = [
        path for place, pattern in places for path in pathlib.Path(place).glob(pattern) if path.is_file()
    ]
    return sorted(path for path in files if not path.is_symlink())


def load_corpus(limit: int = 16 << 20) -> torch.Tensor:
    """The first `limit` bytes of the files, as a tensor of bytes."""
    text = bytearray()
    for path in corpus_files():
        text += path.read_bytes()
        if len(text) >= limit:
            break
    if len(text) < 1 << 20:
        raise SystemExit(
            f"demo: found only {len(text)} bytes of text on this machine; at least 1 MiB is needed"
        )
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


def batch_at(
    corpus: torch.Tensor, step: int, rank: int, batch: int, context: int
) -> Tuple[torch.Tensor, torch.Tensor]:
    """The same (tokens, targets) for the same step and rank, whatever happened before."""
    generator = torch.Generator().manual_seed(step * 1009 + rank)
    starts = torch.randint(len(corpus) - context - 1, (batch,), generator=generator)
    rows = torch.stack([corpus[s : s + context + 1] for s in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def digest(state: Any) -> str:
    """SHA-256 over everything in a state: structure, scalars, and each tensor's type, shape and bytes."""
    hasher = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            hasher.update(f"{value.dtype}{tuple(value.shape)}".encode())
            hasher.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                hasher.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            hasher.update(f"{len(value)}[".encode())
            for item in value:
                add(item)
        else:
            hasher.update(repr(value).encode())

    add(state)
    return hasher.hexdigest()


def set_deterministic(seed: int) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
