"""When a checkpoint counts, and what a failure leaves."""

import os

import ckptd
import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

from harness import Trainer, until


def listed(path):
    return sorted(name for name in os.listdir(path) if name != ".ckptd")


@ON_ONE_AND_TWO_NODES
def test_save_returns_when_the_checkpoint_is_committed_and_nothing_changes_it_after(launch, root):
    path = os.path.join(root, "step-7")
    ranks = launch(2)
    ranks.do(f"state = states.sharded_state(7)\ndcp.save(state, storage_writer=Writer({path!r}))")
    assert listed(path) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    ranks.do("[states.local(tensor).zero_() for tensor in state['model'].values()]")
    ranks.do(f"into = states.emptied(state)\ndcp.load(into, storage_reader=Reader({path!r}))")
    assert ranks.do("states.differences(states.sharded_state(7), into)") == [[], []]
    info = ranks.do("import ckptd; [(i.tag, i.step) for i in ckptd.open_root(%r).list()]" % root)[0]
    assert info == [["step-7", 7]]


@ON_ONE_AND_TWO_NODES
def test_sealed_save_is_committed_without_its_ranks(launch, root):
    ranks = launch(2)
    ranks.do(f"dcp.save(states.sharded_state(1), storage_writer=(w := Writer({root + '/s-1'!r}, wait='sealed')))")
    assert ranks.do("w.save.level")[0] in ("sealed", "committed")  # The other rank's watch may be behind.
    until(lambda: os.path.exists(root + "/s-1/.metadata"), "the commit")


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("call", ["resolve_data(self, item)", "create_local_plan(self)", "finish_plan(self, plan)"])
def test_rank_that_fails_gives_an_error_on_every_rank_and_no_checkpoint(launch, root, failing, call):
    ranks = launch(2)
    errors = ranks.fail(
        "class Planner(dcp.DefaultSavePlanner):\n"
        f"    def {call}:\n"
        f"        if dist.get_rank() == {failing}: raise KeyError('no such tensor')\n"
        f"        return super().{call.replace('self, ', '').replace('self', '')}\n"
        # Whoever waits for the failing rank waits longer than this test does.
        f"dcp.save(states.sharded_state(1), storage_writer=Writer({root + '/s-1'!r}, timeout=600), planner=Planner())"
    )
    assert [error.kind for error in errors] == ["CheckpointException"] * 2
    assert "no such tensor" in errors[failing].message
    assert not os.path.exists(root + "/s-1")
    # The next save of the name works.
    ranks.do(f"dcp.save(states.sharded_state(1), storage_writer=Writer({root + '/s-1'!r}))")
    assert listed(root + "/s-1") == [".metadata", "__0_0.distcp", "__1_0.distcp"]


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("call", ["create_local_plan(self)", "finish_plan(self, plan)"])
def test_planner_that_fails_without_collectives_gives_an_error_on_every_rank(launch, root, call):
    ranks = launch(2)
    errors = ranks.fail(
        "class Planner(dcp.DefaultSavePlanner):\n"
        f"    def {call}:\n"
        "        if dist.get_rank() == 1: raise KeyError('no such tensor')\n"
        f"        return super().{call.replace('self, ', '').replace('self', '')}\n"
        "planner = Planner()\n"
        f"dcp.save({{'a': torch.ones(3)}}, storage_writer=Writer({root + '/s-1'!r}, timeout=600), planner=planner, use_collectives=False)"
    )
    assert all("no such tensor" in error.message for error in errors)
    assert ranks.do("sorted(name for name in vars(planner) if 'plan' in name and callable(getattr(planner, name)))") == [[], []]
    ranks.do(f"dcp.save({{'a': torch.ones(3)}}, storage_writer=Writer({root + '/s-1'!r}), use_collectives=False)")


def test_rank_that_dies_gives_an_error_on_the_others_and_no_checkpoint(launch, root, daemon):
    ranks = launch(1)
    ranks.do("states.leave()")
    other = Trainer(daemon.endpoint, {"CKPTD_TEST_IMPORTS": "import ckptd.dcp", "CKPTD_LAUNCH_ID": "dies"})
    try:
        other.do(f"run = ckptd.connect().run({root!r}, rank=1, world_size=2)", 60)
        ranks.processes[0].start(
            "os.environ['CKPTD_LAUNCH_ID'] = 'dies'\n"
            f"run = ckptd.connect().run({root!r}, rank=0, world_size=2)\n"
            "run.save('s-1', files={'a': b'x'}).wait('committed', 30)"
        )
        other.do("part = run.begin('s-1')", 60)
        other.kill()
        error = ranks.processes[0].result_failing(60)
    finally:
        other.close()
    assert error.reason in ("SESSION_LOST", "RANKS_MISSING", "SAVE_ABORTED")
    assert not os.path.exists(root + "/s-1")


def test_rank_that_dies_in_dcp_save_gives_an_error_on_the_others_and_no_checkpoint(
    start_processes, daemon, session_folder, root
):
    ranks = start_processes(daemon.endpoint, 2)
    for rank, process in enumerate(ranks):
        process.start(f"states.join({session_folder + '/dies'!r}, {rank}, 2)")
    for process in ranks:
        process.result(60)
        process.start(
            "class Planner(dcp.DefaultSavePlanner):\n"
            "    def resolve_data(self, item):\n"
            "        if dist.get_rank() == 1: os.kill(os.getpid(), 9)\n"
            "        return super().resolve_data(item)\n"
            # Rank 0 waits that long for rank 1, which may come back as another process.
            f"dcp.save(states.sharded_state(1), storage_writer=Writer({root + '/s-1'!r}, timeout=3), planner=Planner())"
        )
    assert "peer" in ranks[0].result_failing(60).message
    ranks[0].process.stdin.close()
    assert ranks[0].process.wait(60) == 0
    assert not os.path.exists(root + "/s-1")


@ON_ONE_AND_TWO_NODES
def test_saving_again_replaces_the_checkpoint_whole(launch, root):
    path = root + "/last"
    ranks = launch(2)
    for seed in (1, 2):
        ranks.do(f"dcp.save(states.sharded_state({seed}), storage_writer=Writer({path!r}))")
    ranks = launch(1)  # Fewer files: nothing of the earlier one stays.
    ranks.do(f"dcp.save(states.sharded_state(3), storage_writer=Writer({path!r}))")
    assert listed(path) == [".metadata", "__0_0.distcp"]
    ranks.do(f"into = states.emptied(states.sharded_state(3))\ndcp.load(into, storage_reader=Reader({path!r}))")
    assert ranks.do("states.differences(states.sharded_state(3), into)") == [[]]


@ON_ONE_AND_TWO_NODES
def test_overwrite_false_refuses_an_existing_checkpoint(launch, root):
    ranks = launch(2)
    ranks.do(f"dcp.save(states.sharded_state(1), storage_writer=Writer({root + '/a'!r}))")
    errors = ranks.fail(f"dcp.save(states.sharded_state(2), storage_writer=Writer({root + '/a'!r}, overwrite=False))")
    assert all("already exists" in error.message for error in errors)


@ON_ONE_AND_TWO_NODES
def test_checkpoint_of_dcp_itself_is_replaced_only_if_overwrite_is_given(launch, root):
    path = root + "/checkpoint"
    ranks = launch(2)
    ranks.do(f"dcp.save(states.sharded_state(1), storage_writer=FileSystemWriter({path!r}))")
    errors = ranks.fail(f"dcp.save(states.sharded_state(2), storage_writer=Writer({path!r}))")
    assert all("overwrite=True" in error.message and "ckptd has not written it" in error.message for error in errors)
    assert listed(path) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    ranks.do(f"dcp.save(states.sharded_state(2), storage_writer=Writer({path!r}, overwrite=True))")
    ranks.do(f"into = states.emptied(states.sharded_state(2))\ndcp.load(into, storage_reader=Reader({path!r}))")
    assert ranks.do("states.differences(states.sharded_state(2), into)") == [[], []]
    assert os.listdir(root + "/.ckptd") and not os.path.exists(root + "/.checkpoint.replaced")


@ON_ONE_AND_TWO_NODES
def test_checkpoint_that_was_to_be_replaced_comes_back_when_the_save_fails(launch, root):
    path = root + "/checkpoint"
    ranks = launch(2)
    ranks.do(f"dcp.save(states.sharded_state(1), storage_writer=FileSystemWriter({path!r}))")
    ranks.fail(
        "class Planner(dcp.DefaultSavePlanner):\n"
        "    def resolve_data(self, item): raise KeyError('no')\n"
        f"dcp.save(states.sharded_state(2), storage_writer=(w := Writer({path!r}, overwrite=True)), planner=Planner())"
    )
    for _ in range(2):  # First from where it was set aside.
        ranks.do(f"into = states.emptied(states.sharded_state(1))\ndcp.load(into, storage_reader=Reader({path!r}))")
        assert ranks.do("states.differences(states.sharded_state(1), into)") == [[], []]
        ranks.do("w.reset()")
    assert listed(path) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_directory_with_files_of_others_is_never_replaced(alone, root):
    os.mkdir(root + "/mine")
    with open(root + "/mine/thesis.txt", "w") as file:
        file.write("years of work")
    error = alone.fails(f"dcp.save({{'a': torch.ones(3)}}, storage_writer=Writer({root + '/mine'!r}, overwrite=True))")
    assert "TAG_FOREIGN" in error.reason or "ckptd has not written it" in error.message
    assert listed(root + "/mine") == ["thesis.txt"]


def test_empty_directory_that_was_made_before_is_used(alone, root):
    os.mkdir(root + "/a")
    alone.do(f"dcp.save({{'a': torch.ones(3)}}, storage_writer=Writer({root + '/a'!r}))")
    assert listed(root + "/a") == [".metadata", "__0_0.distcp"]


@ON_ONE_AND_TWO_NODES
def test_only_the_newest_checkpoints_are_kept_if_asked(launch, root):
    ranks = launch(2)
    for step in (1, 2, 3):
        path = f"{root}/step-{step}"
        ranks.do(f"dcp.save(states.sharded_state(1), storage_writer=Writer({path!r}, num_kept_ckpts=2))")
    until(
        lambda: sorted(name for name in os.listdir(root) if name[0] != ".") == ["step-2", "step-3"],
        "the removal of step-1",
    )


@ON_ONE_AND_TWO_NODES
def test_retention_policy_keeps_what_a_rule_keeps(launch, root):
    ranks = launch(2)
    for step, loss in [(1, 0.5), (10, 0.9), (11, 0.1), (12, 0.3), (13, 0.7)]:
        ranks.do(
            f"dcp.save({{'a': torch.ones(3)}}, storage_writer=Writer({f'{root}/step-{step}'!r}, metrics={{'loss': {loss}}}, "
            "retention=ckptd.Keep(best=1, metric='loss', every=10)))"
        )
    kept = ["step-10", "step-11", "step-13"]
    until(lambda: sorted(name for name in os.listdir(root) if name[0] != ".") == kept, "the removal of the others")


@ON_ONE_AND_TWO_NODES
def test_step_of_the_argument_counts_and_not_the_number_in_the_name(launch, root):
    launch(2).do(f"dcp.save({{'a': torch.ones(3)}}, storage_writer=Writer({root + '/loss=0.5'!r}, step=40))")
    assert [(info.tag, info.step) for info in ckptd.open_root(root).list()] == [("loss=0.5", 40)]


@ON_ONE_AND_TWO_NODES
def test_ranks_save_on_their_own_without_collectives(launch, root):
    path = root + "/a"
    ranks = launch(2)
    state = "{'x': torch.full((3,), float(dist.get_rank())), 'o': dist.get_rank()}"
    ranks.do(f"dcp.save({state}, storage_writer=Writer({path!r}), use_collectives=False)")
    assert listed(path) == ["__0.metadata", "__0_0.distcp", "__1.metadata", "__1_0.distcp"]
    for reader in ("Reader", "FileSystemReader"):
        ranks.do(f"into = states.emptied({state})\ndcp.load(into, storage_reader={reader}({path!r}))")
        assert ranks.do(f"states.differences({state}, into)") == [[], []]


def test_wrong_arguments_are_refused_with_what_to_do(alone, root):
    for arguments, word in [
        ("wait='durable'", "sealed"),
        ("thread_count=0", "at least 1"),
        ("_extensions=[1]", "FileSystemWriter"),
        ("serialization_format=states.SerializationFormat.SAFETENSORS", "ckptd.dcp.HuggingFaceWriter"),
    ]:
        error = alone.fails(f"Writer({root + '/a'!r}, {arguments})")
        assert error.kind == "ValueError" and word in error.message
    assert "ckptd://" in alone.fails("Writer('gs://bucket/a')").message
    assert "names no checkpoint" in alone.fails("Writer('s3://bucket')").message
    assert alone.fails("Reader('/')").reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/", "/checkpoint", "~"])
def test_path_that_names_no_folder_for_checkpoints_is_refused_by_every_call(alone, root, name):
    alone.do(f"import pathlib; os.chdir({root!r})")
    for call in (
        f"Writer({name!r})",
        f"dcp.save({{'a': torch.ones(3)}}, storage_writer=Writer({root + '/a'!r}), checkpoint_id={name!r})",
        f"ckptd.dcp.async_save({{'a': torch.ones(3)}}, checkpoint_id=pathlib.Path({name!r}))",
        f"ckptd.dcp.HuggingFaceWriter({name!r})",
    ):
        error = alone.fails(call)
        assert "names no folder" in error.message and name.rstrip("/") + "/step-1" in error.message
    assert os.listdir(root) == []
    alone.do("os.chdir('/')")


def test_save_id_is_that_of_the_checkpoint(alone, root):
    for name in ("a", "b"):
        alone.do(f"dcp.save({{'a': torch.ones(3)}}, storage_writer=(w := Writer({root + '/' + name!r})))")
        assert alone.do(f"w.save_id == FileSystemReader({root + '/' + name!r}).read_metadata().storage_meta.save_id")


def test_home_directory_and_current_one_are_what_shells_take_them_for(alone, root):
    alone.do(f"os.environ['HOME'] = {root!r}; os.chdir({root!r})")
    alone.do("dcp.save({'a': torch.ones(3)}, storage_writer=Writer('~/runs/step-1'))")
    alone.do("dcp.save({'a': torch.ones(3)}, storage_writer=Writer('./runs//x/../step-2'))")
    assert alone.do("[info.tag for info in ckptd.dcp.list('~/runs')]") == ["step-2", "step-1"]
    assert alone.do("ckptd.dcp.latest('runs')") == root + "/runs/step-2"
    alone.do("into = {'a': torch.zeros(3)}; dcp.load(into, storage_reader=Reader('~/runs/step-1')); os.chdir('/')")
    assert alone.do("into['a'].tolist()") == [1.0, 1.0, 1.0]


def test_compressed_checkpoint_of_dcp_is_read_and_none_is_written(alone, root):
    path = root + "/a"
    alone.do(
        "import gzip; from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension\n"
        "class Gzip(StreamTransformExtension):\n"
        "    registry_name = staticmethod(lambda: 'test.gzip')\n"
        "    from_descriptor = staticmethod(lambda version: Gzip())\n"
        "    def get_descriptor(self): return 'test.gzip/1'\n"
        "    def transform_to(self, output): return gzip.GzipFile(fileobj=output, mode='wb')\n"
        "    def transform_from(self, input): return gzip.GzipFile(fileobj=input)\n"
        "registry = ExtensionRegistry(); registry.register(Gzip)\n"
        f"dcp.save({{'a': torch.ones(3), 'n': 5}}, storage_writer=FileSystemWriter({path!r}, _extensions=[Gzip()]))\n"
        f"into = {{'a': torch.zeros(3), 'n': 0}}; dcp.load(into, storage_reader=Reader({path!r}, registry))"
    )
    assert alone.do("[into['a'].tolist(), into['n']]") == [[1.0, 1.0, 1.0], 5]
    for writer in ("Writer", "ckptd.dcp.HuggingFaceWriter"):
        error = alone.fails(f"{writer}({root + '/b'!r}, _extensions=[Gzip()])")
        assert error.kind == "ValueError" and "torch.distributed.checkpoint.FileSystemWriter" in error.message


def test_number_is_a_tag(alone, root):
    alone.do(f"import ckptd; run = ckptd.dcp.run({root!r}); run.save(5, files={{'a': b'x'}}).wait('committed', 60)")
    with ckptd.open_root(root).open(5) as checkpoint:
        assert (checkpoint.tag, checkpoint.read("a")) == ("5", b"x")
    assert alone.do("[each.open(5).tag for each in (run, ckptd.connect().open(run.root))]") == ["5", "5"]
