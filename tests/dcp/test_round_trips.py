"""What ckptd or DCP saves, ckptd and DCP load, bit for bit, on any number of ranks."""

import os

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

SIDES = ["ours", "stock"]
WRITERS = {"ours": "Writer", "stock": "FileSystemWriter"}
READERS = {"ours": "Reader", "stock": "FileSystemReader"}


def save(ranks, path, writer, state="states.sharded_state(1)"):
    ranks.do(f"state = {state}\ndcp.save(state, storage_writer={WRITERS[writer]}({path!r}))")


def load(ranks, path, reader, state="states.sharded_state(1)"):
    """Loads into a state of the same form, and compares on every rank."""
    found = ranks.do(
        f"wanted = {state}\ninto = states.emptied(wanted)\n"
        f"dcp.load(into, storage_reader={READERS[reader]}({path!r}))\nstates.differences(wanted, into)"
    )
    assert found == [[]] * len(found)


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_reader_loads_what_every_writer_saved(launch, root, world_size):
    ranks = launch(world_size)
    for writer in SIDES:
        path = os.path.join(root, f"{writer}-1")
        save(ranks, path, writer)
        for reader in SIDES:
            load(ranks, path, reader)


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (1, 4)])
def test_state_is_loaded_onto_another_number_of_ranks(launch, root, before, after):
    ranks = launch(before)
    for writer in SIDES:
        save(ranks, os.path.join(root, f"{writer}-1"), writer)
    ranks = launch(after)
    for writer in SIDES:
        for reader in SIDES:
            load(ranks, os.path.join(root, f"{writer}-1"), reader)


@ON_ONE_AND_TWO_NODES
def test_state_on_a_mesh_of_two_dimensions_is_loaded_onto_another_mesh(launch, root):
    mesh = "states.sharded_state(1, states.init_device_mesh('cpu', ({}, {})))"
    ranks = launch(4)
    for writer in SIDES:
        save(ranks, os.path.join(root, f"{writer}-1"), writer, mesh.format(2, 2))
    for writer in SIDES:
        for reader in SIDES:
            load(ranks, os.path.join(root, f"{writer}-1"), reader, mesh.format(2, 2))
            load(ranks, os.path.join(root, f"{writer}-1"), reader, mesh.format(1, 4))


def test_state_of_a_ddp_model_and_its_optimizer_comes_back_on_any_number_of_ranks(launch, root):
    ranks = launch(2)
    for writer in SIDES:
        save(ranks, os.path.join(root, f"{writer}-1"), writer, "states.ddp_state(1)")
        for reader in SIDES:
            load(ranks, os.path.join(root, f"{writer}-1"), reader, "states.ddp_state(1)")
    ranks.do("before = state")
    ranks = launch(3)
    for writer in SIDES:
        for reader in SIDES:
            path = os.path.join(root, f"{writer}-1")
            ranks.do(f"into = states.emptied(states.ddp_state(2))\ndcp.load(into, storage_reader={READERS[reader]}({path!r}))")
            assert ranks.processes[0].do("states.differences(before, into)") == []
            found = ranks.do("into['model']['0.weight'].tolist()")
            assert found == [found[0]] * 3


def test_replicated_tensors_of_every_kind_come_back_on_several_ranks(launch, root):
    ranks = launch(2)
    for writer in SIDES:
        save(ranks, os.path.join(root, f"{writer}-1"), writer, "states.plain_state(1)")
        for reader in SIDES:
            load(ranks, os.path.join(root, f"{writer}-1"), reader, "states.plain_state(1)")


def test_plain_tensors_of_every_kind_come_back_without_a_process_group(alone, root):
    for writer in SIDES:
        path = os.path.join(root, f"{writer}-1")
        alone.do(f"dcp.save(states.plain_state(1), storage_writer={WRITERS[writer]}({path!r}))", 60)
        for reader in SIDES:
            found = alone.do(
                "wanted = states.plain_state(1); into = states.emptied(wanted)\n"
                f"dcp.load(into, storage_reader={READERS[reader]}({path!r}))\nstates.differences(wanted, into)"
            )
            assert found == []


def test_replicated_tensors_are_saved_once_and_tied_ones_too(launch, root):
    ranks = launch(2)
    save(ranks, os.path.join(root, "step-1"), "ours", "{'a': (a := torch.ones(1 << 20)), 'b': a, 'c': torch.ones(1 << 20)}")
    files = [name for name in os.listdir(os.path.join(root, "step-1")) if name.endswith(".distcp")]
    assert sorted(files) == ["__0_0.distcp", "__1_0.distcp"]
    size = sum(os.path.getsize(os.path.join(root, "step-1", name)) for name in files)
    assert 2 * (4 << 20) <= size < 3 * (4 << 20) + 8192
    ranks.do("into = {'a': torch.zeros(1 << 20), 'b': torch.zeros(1 << 20), 'c': torch.zeros(1 << 20)}")
    ranks.do(f"dcp.load(into, storage_reader=FileSystemReader({os.path.join(root, 'step-1')!r}))")
    assert ranks.do("[bool((tensor == 1).all()) for tensor in into.values()]") == [[True] * 3] * 2


def test_checkpoint_becomes_one_pt_file_by_the_tool_of_torch(alone, root):
    path = os.path.join(root, "step-1")
    alone.do(f"dcp.save(states.plain_state(1), storage_writer=Writer({path!r}))")
    found = alone.do(
        "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save\n"
        f"dcp_to_torch_save({path!r}, {path + '.pt'!r})\n"
        f"loaded = torch.load({path + '.pt'!r}, weights_only=False)\n"
        "states.differences(states.plain_state(1), loaded)"
    )
    assert found == []
