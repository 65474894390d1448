"""The safetensors layout: what ckptd, DCP and the safetensors package write and read of it."""

import json
import os

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

WRITERS = {
    "ours": "ckptd.dcp.HuggingFaceWriter({path!r}, {options})",
    "stock": "dcp.HuggingFaceStorageWriter({path!r}, {options})",
}
READERS = {
    "ours": "Reader({path!r})",
    "ours, threads": "Reader({path!r}, thread_count=2)",
    "stock": "dcp.HuggingFaceStorageReader({path!r})",
}
STATE = "states.sharded_state({})['model']"
FIRST = STATE.format(1)
LEFT = "[os.stat(f).st_size for f in glob.glob('/proc/self/fd/*') if 'ckptd-consolidation' in os.path.realpath(f)]"
TWO_FILES = "{'rows': 1, 'columns': 1, 'few': 1, 'whole': 2, 'half': 2, 'plain': 2}"


def save(ranks, path, writer, options, state=FIRST, arguments=""):
    ranks.do(f"state = {state}\ndcp.save(state, storage_writer={WRITERS[writer].format(path=path, options=options)}{arguments})")


def load(ranks, path, reader, state=FIRST):
    found = ranks.do(
        f"wanted = {state}; into = states.emptied(wanted)\n"
        f"dcp.load(into, storage_reader={READERS[reader].format(path=path)})\nstates.differences(wanted, into)"
    )
    assert found == [[]] * len(found)


def files(path):
    return sorted(name for name in os.listdir(path) if name != ".ckptd")


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("indexes", ["None", TWO_FILES], ids=["one file", "two files"])
@pytest.mark.parametrize("consolidated", [False, True])
def test_every_reader_loads_sharded_tensors_on_any_number_of_ranks(launch, root, consolidated, indexes):
    options = f"save_distributed=True, enable_consolidation={consolidated}, fqn_to_index_mapping={indexes}"
    ranks = launch(2)
    for writer in WRITERS:
        save(ranks, f"{root}/{writer}", writer, options)
    assert files(f"{root}/ours") == [name for name in files(f"{root}/stock") if name != "sharded"]
    if consolidated:
        stock, ours = [json.load(open(f"{root}/{name}/model.safetensors.index.json")) for name in ("stock", "ours")]
        assert ours == stock
    for world_size in (2, 3):
        ranks = launch(world_size)
        for writer in WRITERS:
            for reader in READERS:
                load(ranks, f"{root}/{writer}", reader)


@ON_ONE_AND_TWO_NODES
def test_package_of_safetensors_reads_consolidated_tensors_and_their_metadata(launch, root):
    ranks = launch(2)
    save(ranks, f"{root}/a", "ours", "save_distributed=True, enable_consolidation=True")
    assert ranks.do(
        "from safetensors import safe_open\nfrom safetensors.torch import load_file\n"
        f"path = {root!r} + '/a/model-00001-of-00001.safetensors'; loaded = load_file(path)\n"
        "whole = {k: v.full_tensor() if hasattr(v, 'full_tensor') else v for k, v in state.items()}\n"
        "[states.differences(whole, loaded), safe_open(path, 'pt').metadata()]"
    ) == [[[], {"format": "pt"}]] * 2


def test_one_rank_saves_tensors_of_every_kind_of_the_format(alone, root):
    kinds = "{k: v for k, v in states.plain_state(1)['m'].items() if k not in ('conjugate', 'parameter')}"
    save(alone, f"{root}/a", "ours", "", kinds)
    assert files(f"{root}/a") == ["model-00001-of-00001.safetensors", "model.safetensors.index.json"]
    for reader in READERS:
        alone.do(f"into = states.emptied(state)\ndcp.load(into, storage_reader={READERS[reader].format(path=root + '/a')})")
        assert alone.do("states.differences(state, into)") == []


@ON_ONE_AND_TWO_NODES
def test_consolidated_checkpoint_is_the_old_one_or_the_new_one_when_a_rank_fails(launch, root):
    options = "save_distributed=True, enable_consolidation=True, timeout=3"
    ranks = launch(2)
    save(ranks, f"{root}/a", "ours", options)
    for failing in (0, 1):
        errors = ranks.fail(
            "class Planner(dcp.DefaultSavePlanner):\n"
            "    def resolve_data(self, item):\n"
            f"        if dist.get_rank() == {failing}: raise KeyError('no such tensor')\n"
            "        return super().resolve_data(item)\n"
            f"dcp.save({STATE.format(2)}, storage_writer={WRITERS['ours'].format(path=root + '/a', options=options)}, planner=Planner())"
        )
        assert "no such tensor" in errors[failing].message
        load(ranks, f"{root}/a", "stock")
    assert ranks.do(f"import gc, glob; gc.collect(); {LEFT}") == [[], []]
    save(ranks, f"{root}/a", "ours", options, STATE.format(2))
    load(ranks, f"{root}/a", "stock", STATE.format(2))


@ON_ONE_AND_TWO_NODES
def test_async_save_of_a_consolidated_checkpoint_takes_the_state_as_it_is(launch, root):
    ranks = launch(2)
    writer = WRITERS["ours"].format(path=root + "/a", options="save_distributed=True, enable_consolidation=True")
    ranks.do(f"state = {STATE.format(1)}\nsaved = dcp.async_save(state, storage_writer={writer})")
    ranks.do("[states.local(tensor).zero_() for tensor in state.values()]; saved.result(60); None")
    load(ranks, f"{root}/a", "stock")


@ON_ONE_AND_TWO_NODES
def test_memory_of_a_consolidation_is_free_while_the_writer_is_kept(launch, root):
    ranks = launch(2)
    writer = WRITERS["ours"].format(path=root + "/a", options="save_distributed=True, enable_consolidation=True")
    ranks.do(f"state = {STATE.format(1)}\ndcp.save(state, storage_writer=(writer := {writer}))")
    assert ranks.do(f"import glob; {LEFT}") == [[], [0]]


@ON_ONE_AND_TWO_NODES
def test_what_the_layout_cannot_hold_is_refused_with_what_to_do(launch, root):
    ranks = launch(2)
    for options, state, words in [
        ("", "{'a': torch.ones(3), 'b': torch.ones(3)}", "save_distributed=True"),
        ("save_distributed=True", "{'a': torch.ones(3), 'step': 7}", "hold tensors only"),
        ("save_distributed=True, fqn_to_index_mapping={'a': 1}", "{'a': torch.ones(3), 'b': torch.ones(2)}", 'no file for "b"'),
        ("save_distributed=True", "{'a': torch.ones(3, dtype=torch.complex128)}", "complex128"),
    ]:
        writer = WRITERS["ours"].format(path=root + "/a", options=options + ", timeout=3")
        errors = ranks.fail(f"dcp.save({state}, storage_writer={writer.replace('(, ', '(').replace(', , ', ', ')})")
        assert any(words in error.message for error in errors), errors
    assert files(root) in ([], [".ckptd"])
