"""Stage 3: the weights without the optimizer's state, which DeepSpeed puts together from the files of all ranks."""

import os

import pytest

WAYS = ["load_optimizer_states=False", "load_module_only=True"]


@pytest.fixture
def saved(pair, root):
    """Tags a and b, of which `latest` names b, and the weights of each as `weights`."""
    pair.do("weights = {}; made = states.engine(3, checkpoint_engine=CheckpointEngine(wait='committed'), frozen=True, tied=True)")
    for tag in ("a", "b"):
        pair.do(f"states.train(made, 2); made.save_checkpoint({root!r}, {tag!r}); weights[{tag!r}] = states.digests_of_weights(made)")
    return root


def load(root, tag, way):
    return (
        "made = states.engine(3, checkpoint_engine=CheckpointEngine(), seed=9, frozen=True, tied=True)\n"
        f"path = made.load_checkpoint({root!r}, {tag!r}, {way})[0]\n"
        "[os.path.basename(os.path.dirname(path)), [name for name, each in weights.items() if each == states.digests_of_weights(made)]]"
    )


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_those_of_the_tag(pair, saved, way):
    for tag in ("a", "b"):
        assert pair.do(load(saved, tag, way)) == [[tag, [tag]]] * 2
    assert pair.do(load(saved, None, way)) == [["b", ["b"]]] * 2
    os.unlink(f"{saved}/latest")
    assert pair.do(load(saved, "a", way)) == [["a", ["a"]]] * 2


@pytest.mark.parametrize("way", WAYS)
def test_weights_of_deepspeed_alone_are_those_of_the_tag(pair, root, way):
    pair.do("weights = {}; made = states.engine(3, frozen=True, tied=True)")
    for tag in ("a", "b"):
        pair.do(f"states.train(made, 2); made.save_checkpoint({root!r}, {tag!r}); weights[{tag!r}] = states.digests_of_weights(made)")
    assert pair.do(load(root, "a", way)) == [["a", ["a"]]] * 2


@pytest.mark.parametrize("way", WAYS)
def test_damaged_weights_of_any_rank_are_found_and_passed_over(pair, daemon, saved, way):
    daemon.kill()  # It has the bytes in memory, too.
    daemon.restart()
    path = f"{saved}/b/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    with open(path, "r+b") as file:
        data = file.read()
        at = data.rindex(b"fp32_flat_groups")  # The pickle names it before the tensor, whose bytes come after the pickle.
        file.seek(at)
        file.write(b"FP32")
    for error in pair.fail(load(saved, "b", way)):
        assert error.kind == "Corrupt" and "optim_states.pt" in error.message
    assert pair.do(load(saved, None, way)) == [["a", ["a"]]] * 2


def test_damaged_element_of_a_weight_is_found(pair, daemon, saved):
    daemon.kill()
    daemon.restart()
    pair.processes[0].do(
        f"import torch; path = {saved!r} + '/b/zero_pp_rank_1_mp_rank_00_optim_states.pt'\n"
        "flat = torch.load(path, weights_only=False)['optimizer_state_dict']['fp32_flat_groups'][0]\n"
        "data = bytearray(open(path, 'rb').read()); data[data.find(flat.detach().numpy().tobytes()) + 2] ^= 0x40\n"
        "open(path, 'wb').write(data)"
    )
    for error in pair.fail(load(saved, "b", WAYS[0])):
        assert error.kind == "Corrupt"


def test_file_that_is_not_of_the_checkpoint_is_refused(pair, saved):
    with open(f"{saved}/b/zero_pp_rank_2_mp_rank_00_optim_states.pt", "wb") as file:
        file.write(b"of an earlier job with more ranks")
    for error in pair.fail(load(saved, "b", WAYS[0])):
        assert error.kind == "Corrupt" and "zero_pp_rank_2_mp_rank_00_optim_states.pt is not of the checkpoint" in error.message


def test_weights_are_loaded_by_another_number_of_ranks(jobs, pair, saved):
    weights = pair.do("weights['a']")[0]
    jobs[3].do(f"weights = {{'a': {weights!r}}}")
    for way in WAYS:
        assert jobs[3].do(load(saved, "a", way), 120) == [["a", ["a"]]] * 3
