"""Parameters that the training program has described by affine maps, compared with what DeepSpeed's own
ds_to_universal.py makes of them.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
from universal_conversion import convert, convert_upstream, parameter, refused, same, same_trees
from zero_checkpoints import STATES, ZeroModel, hash_of, write_tag

affine = pytest.importorskip("deepspeed.checkpoint.affine")

# {name: its map over two tensor-parallel ranks}
MAPS = {
    "rows": affine.contiguous_split_map((7, 4), [4, 3], 0),
    "columns": affine.contiguous_split_map((5, 6), [4, 2], 1),
    "all.on.one": affine.contiguous_split_map((2, 3), [2, 0], 0),
    "copy": affine.replicated_map((3,), 2),
    "qkv": affine.sub_param_map((16, 3), (8, 4, 4), [[5, 3], [3, 1], [3, 1]], 0),
    "kv.shared": affine.segmented_map((10, 3), [(6, False), (4, True)], 0, 2, [[4, 2]]),
    "kv.columns": affine.segmented_map((3, 10), [(6, False), (4, True)], 1, 2, [[4, 2]]),
    "heads": affine.block_gather_map((2, 16), {0: [0, 1, 5], 1: [2, 3, 4, 6, 7]}, 2, 1),
}
PLAIN = "plain"  # A parameter without a map.


def whole(name: str, state: str) -> torch.Tensor:
    random = torch.Generator().manual_seed(hash_of(f"{name} {state}"))
    return torch.randn([6, 2] if name == PLAIN else MAPS[name].logical_shape, generator=random)


def info(maps: dict[str, Any]) -> dict[str, Any]:
    """With patterns, too, for converters that do not know maps: these count as used."""
    return {
        "universal_checkpoint_version": 0.4,
        "affine_map": {"version": 1, "params": maps},
        "tp_replicated_parameter_patterns": ["copy"],
        "parameter_with_row_parallelism_patterns": ["columns"],
        "vocabulary_parameter_patterns": ["rows"],
        "original_vocab_size": 6,
    }


def dicts() -> dict[str, Any]:
    return {name.replace(".", r"\."): made.to_dict() for name, made in MAPS.items()}


def write(folder: pathlib.Path, stage: int, dp: int, maps: dict[str, Any]) -> pathlib.Path:
    tag = folder
    for rank in range(2):
        given = {name: {s: made.extract(whole(name, s), rank) for s in STATES} for name, made in MAPS.items()}
        given[PLAIN] = {s: whole(PLAIN, s).chunk(2)[rank] for s in STATES}
        shapes = {name: list(states["fp32"].shape) for name, states in given.items()}
        model = ZeroModel(groups=[shapes], given=given)
        more = {"universal_checkpoint_info": info(maps), "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 2}}
        tag = write_tag(folder, model, stage, dp, mp=rank, more=more)
    return tag


@pytest.mark.parametrize(("stage", "dp"), [(1, 1), (2, 3), (3, 2)])
def test_parameters_are_put_together_by_their_maps(stage, dp, tmp_path):
    tag = write(tmp_path / "in", stage, dp, dicts())
    assert convert(tag, tmp_path / "ours")["unused_patterns"] == []
    for name in [*MAPS, PLAIN]:
        for state in STATES:
            rows = 6 if name == "rows" else None
            same(parameter(tmp_path / "ours", name, state)["param"], whole(name, state)[:rows], f"{name} {state}")
    convert_upstream(tag, tmp_path / "theirs")
    same_trees(tmp_path / "ours", tmp_path / "theirs")


def piece(**change: Any) -> dict[str, Any]:
    """The map of `rows` with a change to the second rank's piece."""
    changed = MAPS["rows"].to_dict()
    changed["ranks"][1]["pieces"][0].update(change)
    return changed


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        ({"rows": piece(scale=0.5)}, "scaled"),
        ({"rows": piece(source=[12, [4, 1]])}, "overlap at element 12"),
        ({"rows": piece(source=[17, [4, 1]])}, "exceeds"),
        ({"rows": piece(dest=[-1, [4, 1]])}, "exceeds"),
        ({"rows": piece(shape=[2, 4])}, "do not make up its slice: element 8 of 12"),
        ({"rows": {**MAPS["rows"].to_dict(), "logical_shape": [8, 4]}}, "element 28 of 32 to no rank"),
        ({"rows": affine.contiguous_split_map((7, 4), [3, 4], 0).to_dict()}, "its affine_map says"),
        ({"rows": affine.contiguous_split_map((7, 4), [7], 0).to_dict()}, "of 1 ranks"),
        ({"rows": {}}, "logical_shape"),
        ({"r.*": MAPS["rows"].to_dict(), "rows": MAPS["rows"].to_dict()}, "matches"),
        ({"(?=r)": MAPS["rows"].to_dict()}, "look-around"),
    ],
)
def test_maps_that_do_not_fit_are_refused(maps, words, tmp_path):
    tag = write(tmp_path / "in", 1, 1, maps)
    assert words in refused("CANNOT_CONVERT", tag, tmp_path / "out", "--no_strict")


def test_copies_that_differ_are_refused(tmp_path):
    for rank in range(2):
        model = ZeroModel(groups=[{"copy": [3]}], seed=rank)
        more = {"universal_checkpoint_info": {"affine_map": {"params": {"copy": MAPS["copy"].to_dict()}}}}
        tag = write_tag(tmp_path / "in", model, 1, 2, mp=rank, more=more)
    assert "the ranks 0 and 1 have copies" in refused("CANNOT_CONVERT", tag, tmp_path / "out")


def test_maps_of_a_later_version_are_refused(tmp_path):
    more = {"universal_checkpoint_info": {"affine_map": {"version": 2, "params": {}}}}
    tag = write_tag(tmp_path / "in", ZeroModel(groups=[{"copy": [3]}]), 1, 1, more=more)
    assert "version 2" in refused("CANNOT_CONVERT", tag, tmp_path / "out")
