"""A job goes on with another number of ranks than saved, without a conversion."""

import pytest
from job_nodes import ON_TWO_NODES

OTHER_RANKS = [(2, 4), (4, 2), (4, 3)]
UNIVERSAL = (
    "from deepspeed.checkpoint import ds_to_universal as tool\n"
    "sys.argv = ['tool', '--input_folder', '{0}/global_step2', '--output_folder', '{0}/universal',\n"
    "    '--num_extract_workers', '1', '--num_merge_workers', '1', '--inject_missing_state']\n"
    "tool.main(tool.parse_arguments())"
)


def save(ranks, root, make, engine="CheckpointEngine(wait='committed')"):
    """Saves an engine after two steps. Returns what its parameters are, as a whole."""
    ranks.do(f"made = {make}; states.train(made, 2); stock = made.checkpoint_engine\nmade.checkpoint_engine = {engine}")
    ranks.do(f"made.save_checkpoint({root!r}, client_state=states.CLIENT_STATE)")
    return ranks.do("states.digests(made), states.plain(made.lr_scheduler.state_dict()), made.global_steps")[0]


def load(ranks, root, make):
    """Loads into a new engine. Returns the same of it."""
    ranks.do(f"loaded = {make}; loaded.checkpoint_engine = CheckpointEngine()")
    found = ranks.do(f"path, client_state = loaded.load_checkpoint({root!r}); states.client_differences(client_state)")
    assert found == [[]] * len(found)
    return ranks.do("states.digests(loaded), states.plain(loaded.lr_scheduler.state_dict()), loaded.global_steps")[0]


@pytest.mark.parametrize("saving,loading", OTHER_RANKS)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_state_is_the_one_of_the_universal_route(jobs, root, stage, saving, loading):
    make = f"states.engine({stage}, seed={{}}{{}})"
    saved = save(jobs[saving], root, make.format(0, ""))
    assert load(jobs[loading], root, make.format(5, "")) == saved
    jobs[saving].processes[0].do(UNIVERSAL.format(root))
    other = make.format(6, ", checkpoint={'load_universal': True}")
    jobs[loading].do(f"other = {other}; other.load_checkpoint({root!r})")
    # Each rank's own shards, and what becomes of them. DeepSpeed does not bring buffers back from a universal checkpoint.
    same = "states.differences(*[states.plain(e.optimizer.state_dict()) for e in (loaded, other)])"
    assert jobs[loading].do(same) == [[]] * loading
    jobs[loading].do("[states.train(e) for e in (loaded, other)]")
    assert jobs[loading].do("states.differences(states.digests(loaded, False), states.digests(other, False))") == [[]] * loading


@pytest.mark.parametrize("saving,loading", OTHER_RANKS)
@pytest.mark.parametrize(
    "stage,more",
    [
        (1, "'bf16', groups=2, frozen=True, tied=True"),
        (1, "'bf16', groups=2, data_types={'grad_accum_dtype': 'fp32'}"),  # By BF16_Optimizer.
        (2, "'fp16', groups=3, zero_optimization={'round_robin_gradients': True}"),
        (3, "'bf16', groups=2, frozen=True, tied=True, zero_optimization={'sub_group_size': 150}"),
    ],
)
def test_groups_and_frozen_and_tied_weights_come_back(jobs, root, stage, more, saving, loading):
    saved = save(jobs[saving], root, f"states.engine({stage}, {more}, seed=0)")
    assert load(jobs[loading], root, f"states.engine({stage}, {more}, seed=5)") == saved
    jobs[loading].do("states.train(loaded)")


@pytest.mark.parametrize("stage", [2, 3])
def test_what_deepspeed_alone_has_saved_is_loaded(jobs, root, stage):
    saved = save(jobs[2], root, f"states.engine({stage})", engine="stock")
    assert load(jobs[4], root, f"states.engine({stage}, seed=5)") == saved


def test_weights_alone_are_loaded_at_stage_3(jobs, root):
    saved = save(jobs[2], root, "states.engine(3)")
    jobs[4].do("loaded = states.engine(3, seed=5, checkpoint_engine=CheckpointEngine())")
    jobs[4].do(f"loaded.load_checkpoint({root!r}, load_optimizer_states=False)")
    weights = jobs[4].do("states.digests_of_weights(loaded)")[0]
    assert weights and weights == {name: saved[0][name] for name in weights}


def test_checkpoint_of_another_model_is_refused_before_anything_changes(jobs, root):
    save(jobs[2], root, "states.engine(1)")
    jobs[4].do(
        "loaded = states.engine(1, seed=5, checkpoint_engine=CheckpointEngine())\n"
        "loaded._get_zero_param_shapes = lambda: [{'inner.weight': torch.Size([7])}]\n"
        "before = states.state(loaded)"
    )
    for outcome in jobs[4].outcomes(f"loaded.load_checkpoint({root!r})"):
        assert outcome.kind == "Refused" and outcome.reason == "STATE_MISMATCH"
        assert "inner.weight has the shape [29, 13] there, and [7] here" in outcome.message
    assert jobs[4].do("states.differences(before, states.state(loaded))") == [[]] * 4


def test_damage_in_a_file_of_another_rank_makes_all_ranks_load_the_next_older_checkpoint(jobs, daemon, root):
    save(jobs[4], root, "states.engine(2)")
    older = jobs[4].do("states.digests(made)")[0]
    jobs[4].do(f"states.train(made); made.save_checkpoint({root!r})")
    daemon.kill()  # It has the bytes in memory, too.
    daemon.restart()
    name = f"{root}/global_step3/zero_pp_rank_3_mp_rank_00_optim_states.pt"
    jobs[4].processes[0].do(f"states.damage({name!r})")
    jobs[3].do("loaded = states.engine(2, seed=5, checkpoint_engine=CheckpointEngine())")
    paths = jobs[3].do(f"loaded.load_checkpoint({root!r})[0]")
    assert all(path.startswith(f"{root}/global_step2/") for path in paths), paths
    assert jobs[3].do("states.digests(loaded)")[0] == older


@pytest.mark.parametrize("saving,loading", [(4, 2), (2, 4)])
def test_pipeline_goes_on_with_other_data_parallel_ranks(jobs, root, saving, loading):
    def stages(ranks, name):
        """What the two stages have, each as a whole, and each on every rank of it the same."""
        found = ranks.do(f"states.digests({name})")
        half = len(found) // 2
        assert found == [found[0]] * half + [found[half]] * half
        return found[0], found[half]

    jobs[saving].do("made = states.pipeline_engine(1); states.train_pipeline(made, 2)")
    jobs[saving].do(f"made.checkpoint_engine = CheckpointEngine(wait='committed'); made.save_checkpoint({root!r})")
    jobs[loading].do("loaded = states.pipeline_engine(1, seed=5, checkpoint_engine=CheckpointEngine())")
    jobs[loading].do(f"loaded.load_checkpoint({root!r})")
    assert stages(jobs[loading], "loaded") == stages(jobs[saving], "made")
    jobs[loading].do("states.train_pipeline(loaded, 1)")


@pytest.mark.parametrize("saving,loading", [(4, 2), (2, 3)])
def test_experts_that_every_rank_has_go_on_with_other_ranks(jobs, root, saving, loading):
    saved = save(jobs[saving], root, "states.mixture_engine(2, spread=1)")
    jobs[2].do("states.mixture_engine(2, spread=2)")  # DeepSpeed keeps the groups of this engine, too.
    assert load(jobs[loading], root, "states.mixture_engine(2, spread=1, seed=5)") == saved
    jobs[loading].do("states.train(loaded)")


def test_experts_that_are_spread_are_refused_with_other_ranks_before_anything_changes(jobs, root):
    jobs[4].do(f"made = states.mixture_engine(2); states.train(made, 2); made.save_checkpoint({root!r})")
    jobs[2].do(
        "loaded = states.mixture_engine(2, seed=5, checkpoint_engine=CheckpointEngine()); before = states.state(loaded)"
    )
    for outcome in jobs[2].fail(f"loaded.load_checkpoint({root!r})"):
        assert outcome.kind == "Refused" and outcome.reason == "STATE_MISMATCH"
        assert "experts are cut over other ranks" in outcome.message
        assert "recover the weights alone (ckptctl convert zero-to-fp32); only experts of AutoEP" in outcome.message
    assert jobs[2].do("states.differences(before, states.state(loaded))") == [[]] * 2
    # Only the weights: DeepSpeed itself loads them.
    jobs[2].do(f"loaded.load_checkpoint({root!r}, load_module_only=True)")


def test_experts_that_were_spread_are_refused_where_every_rank_has_them(jobs, root):
    save(jobs[2], root, "states.mixture_engine(2, spread=2)")
    jobs[3].do("loaded = states.mixture_engine(2, seed=5, spread=1, checkpoint_engine=CheckpointEngine())")
    for outcome in jobs[3].fail(f"loaded.load_checkpoint({root!r})"):
        assert outcome.kind == "Refused" and "deepspeed_experts.2.weight is not there" in outcome.message


@ON_TWO_NODES
@pytest.mark.parametrize("stage", [2, 3])
def test_state_of_four_ranks_on_two_nodes_goes_on_with_two(pair, four_ranks, root, stage):
    saved = save(four_ranks, root, f"states.engine({stage})")
    assert load(pair, root, f"states.engine({stage}, seed=5)") == saved
    pair.do("states.train(loaded)")
