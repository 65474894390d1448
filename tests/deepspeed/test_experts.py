"""Mixtures of experts of deepspeed.moe: what becomes of their checkpoints with other ranks."""

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
