"""Mixtures of experts, of deepspeed.moe and AutoEP: what becomes of their checkpoints with other ranks."""

import pytest

from harness import TrainerError


def saved(pair, root, spread):
    pair.do(f"made = states.mixture_engine(2, spread={spread}); states.train(made, 2)")
    pair.do(f"made.save_checkpoint({root!r})")


def test_experts_that_every_rank_has_are_converted_and_loaded(pair, root):
    saved(pair, root, spread=1)
    assert pair.processes[0].do(f"states.converted_differently({root!r}, 'global_step2')") == []
    pair.do(
        "other = states.mixture_engine(2, seed=4, spread=1, checkpoint={'load_universal': True})\n"
        f"other.load_checkpoint({root!r}, 'ours')"
    )
    weights = "lambda e: dict(e.module.named_parameters())"
    assert pair.do(f"w = {weights}; states.differences(w(made), w(other))") == [[], []]


def test_experts_that_are_spread_over_ranks_are_refused_with_their_number(pair, root):
    saved(pair, root, spread=2)
    with pytest.raises(TrainerError, match="files of 8 experts"):
        pair.processes[0].do(f"states.converted_differently({root!r}, 'global_step2')")


@pytest.mark.parametrize("stage,ranks", [(1, 2), (2, 4)])
def test_weights_of_spread_experts_are_recovered_by_their_numbers_among_all(jobs, root, stage, ranks):
    job = jobs[ranks]
    job.do(f"made = states.mixture_engine({stage}, spread=2); states.train(made, 2); made.save_checkpoint({root!r})")
    job.do(f"found = ckptd.deepspeed.get_fp32_state_dict_from_zero_checkpoint({root!r})")
    numbered = "re.sub(r'(deepspeed_experts[.])([0-9]+)', lambda m: m[1] + str(int(m[2]) + 2 * (dist.get_rank() % 2)), name)"
    own = f"{{{numbered}: weight for name, weight in made.module.state_dict().items()}}"
    job.do(f"import re; own = {own}")
    assert job.do("states.differences(own, {name: found[name] for name in own})") == [[]] * ranks
    names = {name for of_rank in job.do("sorted(own)") for name in of_rank}
    assert job.do("sorted(found)")[0] == sorted(names)
    assert len([name for name in names if "deepspeed_experts" in name]) == 2 * 4 * 2  # Layers, experts, weight and bias.


def test_experts_that_are_not_trained_are_recovered_from_their_files(pair, root):
    frozen = "[p.requires_grad_(False) for n, p in model.layers[1].named_parameters() if 'experts' in n]"
    pair.do(f"made = states.mixture_engine(2, prepare=lambda model: {frozen}); states.train(made, 2)")
    pair.do(f"made.save_checkpoint({root!r})")
    get = f"ckptd.deepspeed.get_fp32_state_dict_from_zero_checkpoint({root!r}"
    pair.do(f"found = {get}); trained = {get}, exclude_frozen_parameters=True)")
    name = "layers.{}.deepspeed_moe.experts.deepspeed_experts.{}.weight"
    for layer in (0, 1):
        same = f"states.differences(made.module.state_dict()[{name.format(layer, 1)!r}], found[{name.format(layer, 3)!r}])"
        assert pair.processes[1].do(same) == []
    assert pair.processes[1].do(f"[{name.format(0, 3)!r} in trained, {name.format(1, 3)!r} in trained]") == [True, False]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_experts_of_autoep_are_converted_and_loaded(pair, root, stage):
    pair.do(f"made = states.autoep_engine({stage}); states.train_tokens(made, 2); made.save_checkpoint({root!r})")
    assert pair.processes[0].do(f"states.converted_differently({root!r}, 'global_step2')") == []
    pair.do(
        f"other = states.autoep_engine({stage}, seed=4, checkpoint={{'load_universal': True}})\n"
        f"other.load_checkpoint({root!r}, 'ours')\n"
        "from deepspeed.utils import safe_get_local_fp32_param as local, safe_get_full_fp32_param as full\n"
        f"weights = lambda e: {{n: ({'local' if stage == 3 else 'full'})(p) for n, p in e.module.named_parameters()}}"
    )
    assert pair.do("states.differences(weights(made), weights(other))") == [[], []]
    assert len([name for name in pair.do("list(weights(made))")[0] if ".experts.w" in name]) == 2 * 3
