"""Saves by some ranks of a job: ``process_group=``."""

import os

import ckptd
import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

from harness.ranks import Ranks

pytestmark = ON_ONE_AND_TWO_NODES
STATE = "states.sharded_state({seed}, states.DeviceMesh.from_group(group, 'cpu'))"
SAVES = {
    "dcp.save": "dcp.save({state}, storage_writer=Writer({path!r}), process_group=group)",
    "dcp.save, installed": "ckptd.dcp.install(); dcp.save({state}, checkpoint_id={path!r}, process_group=group); ckptd.dcp.uninstall()",
    "async_save": "ckptd.dcp.async_save({state}, checkpoint_id={path!r}, process_group=group).result(60); None",
    "dcp.async_save": "dcp.async_save({state}, storage_writer=Writer({path!r}), process_group=group).result(60); None",
    "no collectives": "dcp.save({state}, storage_writer=Writer({path!r}), process_group=group, use_collectives=False)",
}


def groups(ranks, *members):
    """Makes a group of each of these tuples of ranks; returns the ranks of each."""
    ranks.do(f"group = [made for made in [dist.new_group(each) for each in {members!r}] if dist.get_rank(made) >= 0][:1]\n"
             "group = group[0] if group else None")  # fmt: skip
    return [Ranks([ranks.processes[rank] for rank in each]) for each in members]


def check(some, path, seed):
    state = STATE.format(seed=seed)
    some.do(f"into = states.emptied({state}); dcp.load(into, storage_reader=Reader({path!r}), process_group=group)")
    assert set(map(tuple, some.do(f"states.differences({state}, into)"))) == {()}


def tags(root):
    return sorted(info.tag for info in ckptd.open_root(root).list())


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("members", [(0, 1), (1, 2), (0, 2), (2,)])
def test_ranks_of_a_group_save_without_the_others(launch, root, save, members):
    ranks = launch(3)
    (some,) = groups(ranks, members)
    whole = "dcp.save({{'w': torch.ones(3)}}, storage_writer=Writer({path!r}))"
    ranks.do(whole.format(path=root + "/whole-1"))  # All ranks are in the run.
    for number in (2, 3):  # The second one may go by the plan of the first.
        some.do(SAVES[save].format(state=STATE.format(seed=number), path=f"{root}/some-{number}"))
        check(some, f"{root}/some-{number}", number)
    some.do(SAVES[save].format(state=STATE.format(seed=4), path=f"{root}/some-3"))  # In the place of the one before.
    check(some, root + "/some-3", 4)
    ranks.do(whole.format(path=root + "/whole-5"))
    assert tags(root) == ["some-2", "some-3", "whole-1", "whole-5"]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("members", [(1, 2), (2,)])
def test_group_saves_before_the_job_does(launch, root, save, members):
    ranks = launch(3)
    (some,) = groups(ranks, members)
    ranks.do("ckptd.dcp.configure()")  # On several nodes all ranks tell where they are; torchrun and srun do so, too.
    some.do(SAVES[save].format(state=STATE.format(seed=1), path=root + "/some-1"))
    ranks.do(f"dcp.save({{'w': torch.ones(3)}}, storage_writer=Writer({root + '/whole-2'!r}))")
    assert tags(root) == ["some-1", "whole-2"]


def test_two_groups_save_to_one_root_at_once(launch, root):
    ranks = launch(4)
    pairs = groups(ranks, (0, 2), (1, 3))
    for seed in (1, 2):
        ranks.do(f"path = f'{root}/{seed}-by-{{dist.get_process_group_ranks(group)[0]}}'")
        ranks.do(f"ckptd.dcp.async_save({STATE.format(seed=seed)}, checkpoint_id=path, process_group=group).result(60); None")
    assert tags(root) == ["1-by-0", "1-by-1", "2-by-0", "2-by-1"]
    for number, pair in enumerate(pairs):
        check(pair, f"{root}/2-by-{number}", 2)


def test_failure_of_one_rank_is_an_error_on_those_of_its_group(launch, root):
    ranks = launch(3)
    (some,) = groups(ranks, (1, 2))
    errors = some.fail(
        "class Planner(dcp.DefaultSavePlanner):\n"
        "    def resolve_data(self, item):\n"
        "        if dist.get_rank() == 2: raise KeyError('no such tensor')\n"
        "        return super().resolve_data(item)\n"
        f"dcp.save({STATE.format(seed=1)}, storage_writer=Writer({root + '/s-1'!r}, timeout=600), planner=Planner(), process_group=group)"
    )
    assert [error.kind for error in errors] == ["CheckpointException"] * 2
    assert not os.path.exists(root + "/s-1")
