"""`ckptctl convert nxd-zero` compared with the reference in zero1_states.py: between all numbers of ranks, and the
input that it must refuse.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import zero1_states
from zero1_states import check_tag, contents, full_state, write_tag

TO_FULL, TO_SHARDED = "--convert_to_full", "--convert_to_sharded"


def grid(tp: int, pp: int, **options):
    return {(t, p): full_state(10 * p + t, **options) for t in range(tp) for p in range(pp)}


@pytest.mark.parametrize("dp", range(1, 9))
def test_converts_between_any_of_one_to_eight_ranks(dp, tmp_path, convert):
    states = grid(1, 1)
    tag = write_tag(tmp_path / "tag", states, dp)
    before = contents(tag)
    for count in range(1, 9):
        out = tmp_path / f"dp{count}"
        convert(tag, out, TO_SHARDED, f"--dp_size={count}")
        check_tag(out, states, count)
        for path, content in before.items():
            if not path.startswith("optim/"):
                assert (out / path).read_bytes() == content
    convert(tag, tmp_path / "full", TO_FULL)
    check_tag(tmp_path / "full", states, 1, full=True)
    assert contents(tag) == before


@pytest.mark.parametrize(("dp", "count"), [(1, 3), (2, 1), (2, 5), (3, 8), (4, 2), (8, 3)])
@pytest.mark.parametrize("info", [True, False])
def test_converts_xser_files(dp, count, info, tmp_path, convert):
    states = grid(1, 1, master_weights=True, tensor_lr=True, more=True, frozen=(3,))
    tag = write_tag(tmp_path / "tag", states, dp, xser=True, info=info)
    answer = convert(tag, tmp_path / "out", TO_SHARDED, f"--dp_size={count}")
    assert answer["from"]["xser"] and answer["to"] == {"kind": "sharded", "dp": count, "tp": 1, "pp": 1, "xser": True}
    check_tag(tmp_path / "out", states, count)


@pytest.mark.parametrize("xser", [False, True])
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 3), (3, 2)])
def test_converts_every_tensor_and_pipeline_parallel_rank(tp, pp, xser, tmp_path, convert):
    states = grid(tp, pp, shapes={0: [5, 3], 1: [4]}, master_weights=True)
    tag = write_tag(tmp_path / "tag", states, 2, xser)
    convert(tag, tmp_path / "out", TO_SHARDED, "--dp_size=3")
    check_tag(tmp_path / "out", states, 3)


KINDS = {
    "several parameter groups": {},
    "master weights": {"master_weights": True},
    "frozen parameters": {"frozen": (0, 5)},
    "all frozen": {"frozen": tuple(zero1_states.SHAPES)},
    "a tensor as learning rate": {"tensor_lr": True},
    "more states than Adam's": {"more": True},
    "bfloat16": {"dtype": torch.bfloat16},
    "no rows": {"shapes": {0: [0, 4], 1: [3], 2: [4, 0]}},
    "without dimensions": {"shapes": {0: [], 1: [3]}, "master_weights": True},
    "many rows": {"shapes": {0: [100_003, 7], 1: [1, 65_537]}},
}


@pytest.mark.parametrize("xser", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_converting_there_and_back_restores_every_byte(kind, xser, tmp_path, convert):
    """Shards, merged, another number of shards, and the first number again: each as the rule says."""
    states = grid(1, 1, **KINDS[kind])
    tag = write_tag(tmp_path / "tag", states, 4, xser)
    convert(tag, tmp_path / "full", TO_FULL)
    check_tag(tmp_path / "full", states, 1, full=True)
    convert(tmp_path / "full", tmp_path / "three", TO_SHARDED, "--dp_size=3")
    check_tag(tmp_path / "three", states, 3)
    convert(tmp_path / "three", tmp_path / "back", TO_SHARDED, "--dp_size=4")
    check_tag(tmp_path / "back", states, 4)
    rest = {path: data for path, data in contents(tag).items() if not path.startswith("optim/")}
    assert {path: data for path, data in contents(tmp_path / "back").items() if not path.startswith("optim/")} == rest


def test_three_shards_convert_to_two(tmp_path, convert):
    """With numbers that can be checked by eye."""
    states = grid(1, 1)
    tag = write_tag(tmp_path / "tag", states, 2)
    convert(tag, tmp_path / "out", TO_SHARDED, "--dp_size=3")
    shapes = [list(s["exp_avg"].shape) for s in zero1_states.load_state(tmp_path / "out/optim" / zero1_states.name_of(False, 2, 0, 0))["base_state"].values()]
    assert shapes == [[5, 6], [3, 5], [1, 9], [2, 3, 2], [1], [4], [3, 4], [1]]
    last = zero1_states.load_state(tmp_path / "out/optim" / zero1_states.name_of(False, 2, 0, 0))["base_state"][0]["exp_avg"]
    assert torch.equal(last[:3], states[0, 0]["base_state"][0]["exp_avg"][10:]) and not last[3:].any()


def test_reads_views_of_larger_storages_and_inline_tensors_beside_references(tmp_path, convert):
    """The format of NxD's own converter: storages that still contain the padding, and empty xser folders."""
    full = full_state()
    for states in full["base_state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            padded = torch.cat([states[name], torch.full([2, *states[name].shape[1:]], 9.0)])
            states[name] = padded[: len(states[name])]
    tag = write_tag(tmp_path / "tag", {(0, 0): full}, 1, full=True, rest=False)
    (tag / "optim" / (zero1_states.name_of(True, 0, 0, 0) + ".tensors")).mkdir()
    answer = convert(tag, tmp_path / "out", TO_SHARDED, "--dp_size=4")
    assert answer["to"]["xser"]
    check_tag(tmp_path / "out", {(0, 0): full_state()}, 4)


# ---- Output ----


def test_dry_run_prints_plan_and_writes_nothing(tmp_path, run, convert):
    tag = write_tag(tmp_path / "tag", grid(2, 1), 4)
    (tag / "notes.txt").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    answer = convert(tag, tmp_path / "out", TO_SHARDED, "--dp_size=6", "--dry-run")
    assert sorted(tmp_path.rglob("*")) == before
    assert (answer["optim_files"], answer["carried_files"], answer["passed_over"]) == (12, 3, ["notes.txt"])
    text = run(tag, tmp_path / "out", TO_SHARDED, "--dp-size=6", "--dry-run").stdout
    assert "(dp 4, tp 2, pp 1)" in text and "(dp 6, tp 2, pp 1)" in text and "nothing was written" in text
    assert "skipped, not a file that NxD writes: notes.txt" in text
    done = convert(tag, tmp_path / "out", TO_SHARDED, "--dp_size=6")
    assert done["optim_bytes"] == answer["optim_bytes"] == sum(p.stat().st_size for p in (tmp_path / "out/optim").iterdir())


def test_package_command_behaves_like_ckptctl(tmp_path):
    states = grid(1, 1)
    tag = write_tag(tmp_path / "tag", states, 2)
    command = [sys.executable, "-c", "from ckptd._nxd_convert import main; main()", f"--input_dir={tag}"]
    command += [f"--output_dir={tmp_path / 'out'}", TO_SHARDED, "--dp_size=3", "--num_workers=4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "converted in" in done.stdout
    check_tag(tmp_path / "out", states, 3)


# ---- Refusals ----


def test_contradictory_command_lines_are_refused(tmp_path, refused):
    tag, out = write_tag(tmp_path / "tag", grid(1, 1), 2), tmp_path / "out"
    assert "needs --dp_size N, the number of data-parallel ranks" in refused(2, tag, out, TO_SHARDED)
    assert "--dp_size is 0; allowed are 1 to" in refused(2, tag, out, TO_SHARDED, "--dp_size=0")
    assert "--dp_size is -2" in refused(2, tag, out, TO_SHARDED, "--dp_size=-2")
    assert "neither" in refused(2, tag, out)
    assert "both" in refused(2, tag, out, TO_FULL, TO_SHARDED, "--dp_size=2")
    assert "--dp_size is only for" in refused(2, tag, out, TO_FULL, "--dp_size=2")
    assert "num_workers" in refused(2, tag, out, TO_FULL, "--num_workers=0")


def test_merging_a_merged_state_is_refused(tmp_path, refused):
    tag = write_tag(tmp_path / "tag", grid(1, 1), 1, full=True, rest=False)
    assert "already merged" in refused(4, tag, tmp_path / "out", TO_FULL)


def test_output_equal_to_input_is_refused(tmp_path, refused):
    tag = write_tag(tmp_path / "tag", grid(1, 1), 2)
    (tmp_path / "link").symlink_to(tag)
    for out in (tag, tmp_path / "link", tag / "out", tag / "optim", tmp_path / "link/out"):
        assert "OUTPUT_IS_INPUT" in refused(4, tag, out, TO_FULL)


def test_existing_output_is_refused(tmp_path, refused, convert):
    states = grid(1, 1)
    tag, out = write_tag(tmp_path / "tag", states, 2), tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    assert "OUTPUT_NOT_EMPTY" in refused(4, tag, out, TO_FULL)
    (out / "precious").unlink()
    convert(tag, out, TO_FULL)
    check_tag(out, states, 1, full=True)
    assert "make it first" in refused(1, tag, tmp_path / "no/out", TO_FULL)


def test_missing_files_are_all_named_in_one_error(tmp_path, refused):
    tag = write_tag(tmp_path / "tag", grid(2, 1), 3)
    gone = [zero1_states.name_of(False, 1, 0, 0), zero1_states.name_of(False, 2, 1, 0)]
    for name in gone:
        (tag / "optim" / name).unlink()
    assert ", ".join(gone) in refused(4, tag, tmp_path / "out", TO_FULL)


def test_unfinished_save_is_refused(tmp_path, refused, convert):
    states = grid(1, 1)
    tag = write_tag(tmp_path / "tag", states, 2)
    (tag / "done").unlink()
    assert "--force" in refused(4, tag, tmp_path / "out", TO_SHARDED, "--dp_size=3")
    convert(tag, tmp_path / "out", TO_SHARDED, "--dp_size=3", "--force")
    check_tag(tmp_path / "out", states, 3)


def test_pickle_that_would_run_code_is_refused(tmp_path, refused):
    class Harm:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/harmed",)

    tag = write_tag(tmp_path / "tag", grid(1, 1), 2)
    state = zero1_states.shard(full_state(), 1, 2)
    state["param_groups"][0]["lr"] = Harm()
    torch.save(state, tag / "optim" / zero1_states.name_of(False, 1, 0, 0))
    assert "UNSAFE_PICKLE" in refused(4, tag, tmp_path / "out", TO_FULL)
    assert not (tmp_path / "harmed").exists()


def test_states_that_differ_between_ranks_are_refused(tmp_path, refused):
    tag = write_tag(tmp_path / "tag", grid(1, 1), 2)
    state = zero1_states.shard(full_state(), 1, 2)
    state["param_groups"][1]["lr"] = 0.5
    torch.save(state, tag / "optim" / zero1_states.name_of(False, 1, 0, 0))
    words = refused(4, tag, tmp_path / "out", TO_FULL)
    assert "param_groups[1]['lr'] is 0.02 and 0.5 on dp rank 0 and dp rank 1" in words


def test_experts_of_several_ranks_are_refused(tmp_path, refused):
    """Two expert-parallel ranks over two data-parallel ones: each file has its own experts."""
    shapes = {0: [13, 6], 1: [8, 4]}
    tag = write_tag(tmp_path / "tag", {(0, 0): full_state(shapes=shapes)}, 2)
    for rank in range(2):
        state = zero1_states.shard(full_state(shapes=shapes), rank, 2)
        state["base_state"][1] = full_state(rank, shapes=shapes)["base_state"][1]
        path = tag / "optim" / zero1_states.name_of(False, rank, 0, 0)
        torch.save(state, path)
    assert "experts?" in refused(4, tag, tmp_path / "out", TO_FULL)
    for rank in range(2):
        path = tag / "optim" / zero1_states.name_of(False, rank, 0, 0)
        torch.save({**torch.load(path), "ep_base_state_offset": 1}, path)
    assert "the state has experts" in refused(4, tag, tmp_path / "out", TO_SHARDED, "--dp_size=4")


def test_json_error_is_one_line_on_stderr(tmp_path, run):
    (tmp_path / "empty").mkdir()
    done = run(tmp_path / "empty", tmp_path / "out", TO_FULL, "--output=json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"ckptctl: {tmp_path}/empty: ") and done.stderr.count("\n") == 1
    assert done.stderr.endswith("[NO_OPTIMIZER_STATE]\n")
