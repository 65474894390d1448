"""What DCP's documentation promises holds with ckptd's writer and reader, for unusual inputs, too."""

import os

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

from harness import TrainerError

STATE = "states.sharded_state(1)"


def round_trip(ranks, path, state=STATE, writer="", save="", load="", reader="Reader"):
    ranks.do(f"dcp.save({state}, storage_writer=Writer({path!r}{writer}){save})")
    ranks.do(f"wanted = {state}; into = states.emptied(wanted)\ndcp.load(into, storage_reader={reader}({path!r}){load})")
    assert ranks.do("states.differences(wanted, into)") == [[]] * len(ranks.processes)


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize(
    "options",
    [
        {"save": ", planner=dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True)"},
        {"save": ", planner=dcp.DefaultSavePlanner(enable_plan_caching=True)"},
        {"save": ", planner=dcp.DefaultSavePlanner(flatten_sharded_tensors=False)"},
        {"writer": ", single_file_per_rank=False"},
        {"writer": ", thread_count=2"},
    ],
    ids=["dedup to the lowest rank", "cached plans", "sharded tensors whole", "a file for each value", "two files for each rank"],
)
def test_options_of_planner_and_writer_keep_their_meaning(launch, root, options):
    ranks = launch(2)
    for number in range(2):
        round_trip(ranks, f"{root}/ours-{number}", **options)
        round_trip(ranks, f"{root}/stock-{number}", **options, reader="FileSystemReader")


@ON_ONE_AND_TWO_NODES
def test_number_of_files_is_that_of_dcp(launch, root):
    ranks = launch(2)
    for name, options in (("one", ""), ("many", ", single_file_per_rank=False"), ("two", ", thread_count=2")):
        names = []
        for writer in ("Writer", "FileSystemWriter"):
            path = f"{root}/{name}-{writer}"
            ranks.do(f"dcp.save({STATE}, storage_writer={writer}({path!r}{options}))")
            names.append(sorted(file for file in os.listdir(path) if file.endswith(".distcp")))
        assert names[0] == names[1]


def test_state_that_is_not_flattened_comes_back_as_from_dcp_itself(alone, root):
    alone.do(
        "flat = {'a': torch.arange(5.0), 'o': {'x': [1, 2]}}\n"
        f"dcp.save(flat, storage_writer=Writer({root + '/a'!r}), planner=dcp.DefaultSavePlanner(flatten_state_dict=False))\n"
        "loaded = []\n"
        "for reader in (Reader, FileSystemReader):\n"
        "    loaded.append(states.emptied(flat))\n"
        f"    dcp.load(loaded[-1], storage_reader=reader({root + '/a'!r}), planner=dcp.DefaultLoadPlanner(flatten_state_dict=False))"
    )
    assert alone.do("states.differences(*loaded)") == []
    assert alone.do("states.differences(flat['a'], loaded[0]['a'])") == []


@ON_ONE_AND_TWO_NODES
def test_partial_load_fills_what_is_there_and_a_missing_name_is_an_error_by_default(launch, root):
    ranks = launch(2)
    ranks.do(f"dcp.save({STATE}, storage_writer=Writer({root + '/a'!r}))")
    ranks.do(f"into = {{'model': {{**states.emptied({STATE}['model']), 'new': torch.full((2,), 5.0)}}}}")
    errors = ranks.fail(f"dcp.load(into, storage_reader=Reader({root + '/a'!r}))")
    assert all("Missing key in checkpoint state_dict: model.new" in error.message for error in errors)
    ranks.do(
        f"dcp.load(into, storage_reader=Reader({root + '/a'!r}), planner=dcp.DefaultLoadPlanner(allow_partial_load=True))"
    )
    assert ranks.do("into['model'].pop('new').tolist()") == [[5.0, 5.0]] * 2
    assert ranks.do(f"states.differences({STATE}['model'], into['model'])") == [[], []]


def test_stateful_objects_are_asked_for_their_state_and_given_it_back(alone, root):
    alone.do(
        "class Counter:\n"
        "    def __init__(self, at): self.at, self.t = at, torch.full((3,), float(at))\n"
        "    def state_dict(self): return {'at': self.at, 't': self.t}\n"
        "    def load_state_dict(self, state): self.at, self.t = state['at'], state['t']\n"
        f"dcp.save({{'counter': Counter(7)}}, storage_writer=Writer({root + '/a'!r}))\n"
        f"counter = Counter(0); dcp.load({{'counter': counter}}, storage_reader=Reader({root + '/a'!r}))"
    )
    assert alone.do("[counter.at, counter.t.tolist()]") == [7, [7.0] * 3]


def test_custom_planners_that_rename_and_convert_are_obeyed(alone, root):
    alone.do(
        "class Save(dcp.DefaultSavePlanner):\n"
        "    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):\n"
        "        renamed = {'outer.' + k: v.to(torch.bfloat16) for k, v in state_dict.items()}\n"
        "        super().set_up_planner(renamed, storage_meta, is_coordinator)\n"
        "class Load(dcp.DefaultLoadPlanner):\n"
        "    def resolve_tensor(self, read_item):\n"
        "        self.place = super().resolve_tensor(read_item)\n"
        "        return self.place.t() if self.place.dim() == 2 else self.place\n"
        "    def commit_tensor(self, read_item, tensor): tensor.add_(1)\n"
        f"dcp.save({{'w': torch.ones(3, 3), 'b': torch.ones(2)}}, storage_writer=Writer({root + '/a'!r}), planner=Save())\n"
        "into = {'outer.w': torch.zeros(3, 3), 'outer.b': torch.zeros(2)}\n"
        f"dcp.load(into, storage_reader=Reader({root + '/a'!r}), planner=Load())"
    )
    assert alone.do("[tensor.unique().tolist() for tensor in into.values()]") == [[2.0], [2.0]]


@ON_ONE_AND_TWO_NODES
def test_tensors_that_all_ranks_have_are_saved_by_rank_0_alone_if_the_planner_says_so(launch, root):
    ranks = launch(2)
    sizes = []
    for writer in ("Writer", "FileSystemWriter"):
        ranks.do(
            f"dcp.save({{f't{{n}}': torch.ones(64) for n in range(4)}}, storage_writer={writer}({f'{root}/{writer}'!r}), "
            "planner=dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True))"
        )
        sizes.append(sorted(name for name in os.listdir(f"{root}/{writer}") if name.endswith(".distcp")))
    assert sizes[0] == ["__0_0.distcp"]
    ranks.do(f"into = {{'t3': torch.zeros(64)}}; dcp.load(into, storage_reader=Reader({root + '/Writer'!r}))")
    assert ranks.do("into['t3'].sum().item()") == [64.0, 64.0]


def test_target_of_another_size_is_refused_as_dcp_refuses_it(alone, root):
    alone.do(f"dcp.save({{'a': torch.ones(4)}}, storage_writer=Writer({root + '/a'!r}))")
    with pytest.raises(TrainerError) as ours:
        alone.do(f"dcp.load({{'a': torch.ones(5)}}, storage_reader=Reader({root + '/a'!r}))")
    with pytest.raises(TrainerError) as theirs:
        alone.do(f"dcp.load({{'a': torch.ones(5)}}, storage_reader=FileSystemReader({root + '/a'!r}))")
    assert ours.value.kind == theirs.value.kind


@ON_ONE_AND_TWO_NODES
def test_ten_thousand_tensors_on_two_ranks_come_back(launch, root):
    ranks = launch(2)
    state = "{f't{n}': states.DTensor.from_local(torch.full((3,), float(n + dist.get_rank())), mesh, [states.Shard(0)]) for n in range(10_000)}"
    ranks.do("mesh = states.mesh_of(2)")
    ranks.do(f"state = {state}\ndcp.save(state, storage_writer=Writer({root + '/a'!r}))", 240)
    ranks = launch(1)
    found = ranks.do(
        f"mesh = states.mesh_of(1); into = {{f't{{n}}': torch.zeros(6) for n in range(0, 10_000, 7)}}\n"
        f"dcp.load(into, storage_reader=Reader({root + '/a'!r}))\n"
        "[n for n in range(0, 10_000, 7) if into[f't{n}'].tolist() != [float(n + r) for r in range(2) for _ in range(3)]]",
        120,
    )
    assert found == [[]]


@pytest.mark.parametrize("daemon_", [True, False], ids=["with the daemon", "from the disk"])
def test_load_of_a_slice_reads_the_chunks_that_it_touches_and_no_others(alone, root, daemon_):
    alone.do(
        "big = torch.arange(6 << 20, dtype=torch.float32).reshape(6 << 10, 1 << 10)\n"
        f"dcp.save({{'big': big, 'other': big + 1}}, storage_writer=Writer({root + '/a'!r}))\n"
        "from ckptd.restore import Checkpoint; asked = []; before = Checkpoint.read_ranges\n"
        "def counting(self, ranges, into=None): asked.extend(ranges); return before(self, ranges, into)\n"
        "Checkpoint.read_ranges = counting\n"
        "from torch.distributed.checkpoint.metadata import ChunkStorageMetadata\n"
        "from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list\n"
        "class Slice(dcp.DefaultLoadPlanner):\n"
        "    def create_local_plan(self):\n"
        "        chunk = ChunkStorageMetadata(torch.Size([3000, 0]), torch.Size([60, 1 << 10]))\n"
        "        return dcp.LoadPlan(create_read_items_for_chunk_list('big', self.metadata.state_dict_metadata['big'], [chunk]))\n"
        "    def resolve_tensor(self, read_item): return out\n"
        "    def commit_tensor(self, read_item, tensor): pass\n"
        "out = torch.zeros(60, 1 << 10)\n"
        f"try: dcp.load({{'big': torch.zeros(1)}}, storage_reader=Reader({root + '/a'!r}, daemon={daemon_}), planner=Slice())\n"
        "finally: Checkpoint.read_ranges = before",
        60,
    )
    assert alone.do("bool(torch.equal(out, big[3000:3060]))")
    assert alone.do("[len(asked), sum(size for _, _, size in asked)]") == [1, 60 * 4096]


def test_load_of_one_hundredth_of_the_bytes_reads_little_more_than_the_chunks_it_touches(alone, root):
    load = f"dcp.load(into, storage_reader=Reader({root + '/a'!r}, daemon=False))"
    alone.do(
        "state = {f't{n}': torch.full((80, 1 << 10), float(n)) for n in range(400)}\n"
        f"dcp.save(state, storage_writer=Writer({root + '/a'!r}))\n"
        "into = {name: torch.zeros(80, 1 << 10) for name in ('t17', 't140', 't141', 't333')}\n"
        f"def read():\n    return int(open('/proc/self/io').read().split()[1])\n{load}\n"  # What loading imports is there now.
        "from torch.distributed.checkpoint import FileSystemReader\n"
        f"metadata = FileSystemReader({root + '/a'!r}).read_metadata(); storage = metadata.storage_data\n"
        f"chunk = ckptd.open_root({root!r}).open('a')._source.summary.chunk_bytes\n"
        "pieces = [info for index, info in storage.items() if index.fqn in into]\n"
        "touched = {(info.relative_path, n) for info in pieces\n"
        "           for n in range(info.offset // chunk, (info.offset + info.length - 1) // chunk + 1)}\n"
        f"before = read(); {load}\nbytes_read = read() - before",
        120,
    )
    touched, chunk, read = alone.do("[len(touched), chunk, bytes_read]")
    records = sum(os.path.getsize(f"{root}/a/{name}") for name in (".metadata", ".ckptd/manifest"))
    assert touched * chunk <= read - records <= 1.05 * touched * chunk + (64 << 10)


def test_damaged_chunk_is_an_error_that_names_it_and_only_for_who_reads_it(alone, root):
    alone.do(f"dcp.save({{'a': torch.ones(4 << 20), 'b': torch.zeros(10)}}, storage_writer=Writer({root + '/a'!r}))")
    with open(f"{root}/a/__0_0.distcp", "r+b") as file:
        file.seek(9 << 20)
        file.write(b"\xff")
    error = alone.fails(
        f"dcp.load({{'a': torch.zeros(4 << 20)}}, storage_reader=Reader({root + '/a'!r}, daemon=False))", 60
    )
    assert "__0_0.distcp" in error.message and "chunk" in error.message


@pytest.mark.parametrize("writer", ["Writer", "FileSystemWriter"])
def test_names_that_differ_by_a_prefix_alone_are_refused_with_the_prefix(alone, root, writer):
    alone.do(
        "import torch._dynamo; model = torch.nn.Linear(3, 3); compiled = torch.compile(model)\n"
        f"dcp.save({{'model': compiled.state_dict(), 'step': 1}}, storage_writer={writer}({root + '/a'!r}))"
    )
    error = alone.fails(f"dcp.load({{'model': model.state_dict()}}, storage_reader=Reader({root + '/a'!r}))")
    assert 'Missing key in checkpoint state_dict: model.weight' in error.message
    assert '"_orig_mod." in the saved names, which torch.compile puts there' in error.message
    error = alone.fails(f"dcp.load({{'model': {{'other': torch.ones(3)}}}}, storage_reader=Reader({root + '/a'!r}))")
    assert "Missing key in checkpoint state_dict: model.other" in error.message and "differ only" not in error.message
