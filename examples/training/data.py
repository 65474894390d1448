"""Text to train on, which every Debian machine has on its disk."""

from __future__ import annotations

import pathlib
import sysconfig
from typing import List, Tuple

import torch


def corpus_files() -> List[pathlib.Path]:
    """Licences and the sources of Perl's and Python's libraries, in a fixed order."""
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
        raise SystemExit(f"found only {len(text)} bytes of text on this machine; at least 1 MiB is needed")
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


def batch_at(
    corpus: torch.Tensor, step: int, rank: int, batch: int, context: int
) -> Tuple[torch.Tensor, torch.Tensor]:
    """The (tokens, targets) of a step, which depend on nothing but step and rank."""
    generator = torch.Generator().manual_seed(step * 1009 + rank)
    starts = torch.randint(len(corpus) - context - 1, (batch,), generator=generator)
    rows = torch.stack([corpus[s : s + context + 1] for s in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]
