"""A model over tensor- and pipeline-parallel ranks, with a parameter for each rule of a universal checkpoint.

`parts` cuts whole tensors as a training program with tensor parallelism does; a universal checkpoint must give them
back.
"""

from __future__ import annotations

import pathlib
from typing import Any, Callable

import torch
from zero_checkpoints import STATES, ZeroModel, hash_of, write_tag

COLUMNS = 4
VOCABULARY, PADDED = 11, 12
QKV = (8, 4, 4)
QKV_WIDTHS = {1: [[8], [4], [4]], 2: [[5, 3], [3, 1], [3, 1]]}

Cut = Callable[[torch.Tensor, int], list[torch.Tensor]]


def cut_rows(whole: torch.Tensor, tp: int) -> list[torch.Tensor]:
    return list(torch.tensor_split(whole, tp, 0))


def cut_columns(whole: torch.Tensor, tp: int) -> list[torch.Tensor]:
    return list(torch.tensor_split(whole, tp, 1))


def copy(whole: torch.Tensor, tp: int) -> list[torch.Tensor]:
    return [whole] * tp


def around(whole: torch.Tensor, tp: int) -> list[torch.Tensor]:
    """Different on each rank; the average is computed in the ranks' order."""
    return [whole + rank / 3 for rank in range(tp)]


def cut_vocabulary(whole: torch.Tensor, tp: int) -> list[torch.Tensor]:
    padded = torch.full((PADDED, *whole.shape[1:]), 9.0)
    padded[: len(whole)] = whole
    return cut_rows(padded, tp)


def cut_halves(whole: torch.Tensor, tp: int) -> list[torch.Tensor]:
    halves = [half.chunk(tp) for half in whole.chunk(2)]
    return [torch.cat([half[rank] for half in halves]) for rank in range(tp)]


def cut_qkv(whole: torch.Tensor, tp: int) -> list[torch.Tensor]:
    parts: list[list[torch.Tensor]] = [[] for _ in range(tp)]
    for sub, widths in zip(whole.split(QKV), QKV_WIDTHS[tp]):
        for rank, piece in enumerate(sub.split(widths)):
            parts[rank].append(piece)
    return [torch.cat(part) for part in parts]


# {name: (whole shape, how it is cut)}; each pipeline stage has one of each, and both have the embedding.
PARAMETERS: dict[str, tuple[list[int], Cut]] = {
    "fc.weight": ([7, COLUMNS], cut_rows),
    "fc.bias": ([7], cut_rows),
    "dense.weight": ([5, 6], cut_columns),
    "dense.bias": ([5], around),
    "norm.weight": ([3], copy),
    "h4.weight": ([8, COLUMNS], cut_halves),
    "qkv.weight": ([sum(QKV), COLUMNS], cut_qkv),
}
EMBEDDING = "emb.weight"


def info(tp: int) -> dict[str, Any]:
    return {
        "universal_checkpoint_version": 0.4,
        "original_vocab_size": VOCABULARY,
        "padded_vocab_size": PADDED,
        "vocabulary_parameter_patterns": [r"emb\.weight"],
        "pipeline_replicated_parameter_patterns": [r"emb\.weight"],
        "tp_replicated_parameter_patterns": [r"l\d+\.norm\.weight"],
        "parameter_to_average_patterns": [r"l\d+\.dense\.bias"],
        "parameter_with_row_parallelism_patterns": [r"l\d+\.dense\.weight"],
        "parameter_with_2_sub_params_cat_dim_0": [r".*h4\.weight$"],
        "parameter_with_sub_params": [{"patterns": [r"l\d+\.qkv\.weight"], "shape": (QKV, COLUMNS), "partition_dim": 0}],
        "sub_param_shard_widths": {r"l\d+\.qkv\.weight": QKV_WIDTHS[tp]},
    }


def whole(name: str, state: str) -> torch.Tensor:
    """What a universal checkpoint must have of a parameter."""
    shape = [VOCABULARY, COLUMNS] if name == EMBEDDING else PARAMETERS[name.partition(".")[2]][0]
    random = torch.Generator().manual_seed(hash_of(f"{name} {state}"))
    return torch.randn(shape, generator=random)


def names_of(stage: int) -> list[str]:
    return [EMBEDDING, *(f"l{stage}.{name}" for name in PARAMETERS)]


def cut_of(name: str) -> Cut:
    return cut_vocabulary if name == EMBEDDING else PARAMETERS[name.partition(".")[2]][1]


def write(
    save_dir: pathlib.Path, zero_stage: int, dp: int, tp: int, pp: int, uc_info: dict[str, Any] | None = None
) -> pathlib.Path:
    """Writes the tag and returns its directory."""
    tag = save_dir
    more = {
        "universal_checkpoint_info": info(tp) if uc_info is None else uc_info,
        "checkpoint_parallel_dimensions": {"pp_degree": pp, "tp_degree": tp},
    }
    for stage in range(pp):
        parts = {n: {s: cut_of(n)(whole(n, s), tp) for s in STATES} for n in names_of(stage)}
        for rank in range(tp):
            given = {n: {s: parts[n][s][rank] for s in STATES} for n in parts}
            shapes = [{n: list(given[n]["fp32"].shape) for n in group} for group in (list(parts)[:4], list(parts)[4:])]
            model = ZeroModel(groups=shapes, given=given)
            tag = write_tag(save_dir, model, zero_stage, dp, mp=stage * tp + rank, more=more)
    return tag
