"""async_save and install(): what has returned is safe, and failures are heard of."""

import os
import signal

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES, ON_TWO_NODES

from harness import until
from harness.stand_in_devices import IN_PROCESS

STATE = "states.sharded_state({})"


def check(ranks, path, seed):
    ranks.do(f"wanted = {STATE.format(seed)}; into = states.emptied(wanted)\ndcp.load(into, storage_reader=Reader({path!r}))")
    assert ranks.do("states.differences(wanted, into)") == [[]] * len(ranks.processes)


@pytest.fixture
def installed(processes):
    for process in processes:
        process.do("ckptd.dcp.install()")
    yield
    for process in processes:
        process.do("ckptd.dcp.uninstall()")


ZERO = "[states.local(tensor).zero_() for tensor in state['model'].values()]"


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize(
    "call",
    [
        "dcp.async_save(state, storage_writer=Writer({path!r}))",
        "dcp.async_save(state, storage_writer=Writer('/nowhere/x'), checkpoint_id={path!r})",
        "ckptd.dcp.async_save(state, checkpoint_id={path!r})",
    ],
)
def test_async_save_takes_the_state_as_it_is_and_resolves_when_committed(launch, root, call):
    path = root + "/step-1"
    ranks = launch(2)
    ranks.do(f"state = {STATE.format(1)}\nsaved = {call.format(path=path)}\n{ZERO}")
    assert ranks.do("type(saved.result(60)).__name__") == ["Metadata"] * 2
    assert ranks.do("len(saved.result().storage_data) > 5") == [True, True]
    assert os.path.exists(path + "/.metadata")
    check(ranks, path, 1)


# The rank that seals last stops etcd before it does.
STOP_ETCD = """
import signal
from ckptd._saving.upload import PartUpload
seal_with = PartUpload._seal_with
def stop_etcd(self, joined):
    for pid in {pids}:
        os.kill(pid, signal.SIGSTOP)
    return seal_with(self, joined)
PartUpload._seal_with = stop_etcd
"""


@ON_TWO_NODES
def test_async_save_returns_before_etcd_knows_that_the_parts_are_sealed(launch, root, nodes, pair_of_nodes):
    ranks, pids = launch(2), [member.pid for member in pair_of_nodes.etcd.processes.values()]
    path = root + "/step-1"
    ranks.do(f"state = {STATE.format(1)}; import os")
    ranks.processes[0].do(STOP_ETCD.format(pids=pids))
    try:
        ranks.do(f"saved = dcp.async_save(state, storage_writer=Writer({path!r}))\n{ZERO}")
        assert ranks.do("saved.done()") == [False, False]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        ranks.processes[0].do("PartUpload._seal_with = seal_with")
    ranks.do("saved.result(60); None")
    check(ranks, path, 1)


@ON_ONE_AND_TWO_NODES
def test_plain_calls_of_dcp_go_through_ckptd_after_install_and_not_after_uninstall(launch, root, installed):
    ranks = launch(2)
    ranks.do(f"state = {STATE.format(1)}\ndcp.save(state, checkpoint_id={root + '/a'!r})")
    ranks.do(f"saved = dcp.async_save(state, checkpoint_id={root + '/b'!r})\n{ZERO}\nsaved.result(60)")
    for name in "ab":
        assert os.path.exists(f"{root}/{name}/.ckptd/manifest")
        ranks.do(f"into = states.emptied(state)\ndcp.load(into, checkpoint_id={root + '/' + name!r})")
        assert ranks.do(f"states.differences({STATE.format(1)}, into)") == [[], []]
    ranks.do("ckptd.dcp.uninstall()")
    ranks.do(f"dcp.save({STATE.format(2)}, checkpoint_id={root + '/c'!r})")
    assert not os.path.exists(root + "/c/.ckptd")
    check(ranks, root + "/c", 2)


@ON_ONE_AND_TWO_NODES
def test_install_passes_its_options_to_each_writer_and_refuses_unknown_ones(launch, root, installed):
    ranks = launch(2)
    ranks.do("ckptd.dcp.install(num_kept_ckpts=1)")
    for step in (1, 2):
        ranks.do(f"dcp.save({STATE.format(1)}, checkpoint_id={root + '/step-' + str(step)!r})")
    until(lambda: not os.path.exists(root + "/step-1"), "the removal of step-1")
    assert "num_kept" in ranks.fail("ckptd.dcp.install(num_kept=1)")[0].message


@ON_ONE_AND_TWO_NODES
def test_kept_plan_is_used_while_the_state_keeps_its_form_and_not_after(launch, root, installed):
    ranks = launch(2)
    wider = "{{**states.sharded_state({0}), 'more': states.values('r', (5,), seed={0})}}"
    forms = [STATE.format(1), STATE.format(2), wider.format(3), wider.format(4), STATE.format(5)]
    for number, form in enumerate(forms):
        path = f"{root}/s-{number}"
        ranks.do(f"dcp.async_save({form}, checkpoint_id={path!r})")
    ranks = launch(1)  # A launch of its own, with the cache of the one before.
    ranks.do(f"dcp.async_save({STATE.format(6)}, checkpoint_id={root + '/s-5'!r})")
    for number, form in enumerate([*forms, STATE.format(6)]):
        ranks.do(f"wanted = {form}; into = states.emptied(wanted)\ndcp.load(into, checkpoint_id={root + '/s-' + str(number)!r})")
        assert ranks.do("states.differences(wanted, into)") == [[]]


@ON_ONE_AND_TWO_NODES
def test_load_waits_for_an_async_save_of_the_same_name(launch, root, installed):
    ranks = launch(2)
    ranks.do(f"ckptd.dcp.async_save({STATE.format(3)}, checkpoint_id={root + '/s'!r})\ninto = states.emptied({STATE.format(3)})")
    ranks.do(f"dcp.load(into, checkpoint_id={root + '/s'!r})")
    assert ranks.do(f"states.differences({STATE.format(3)}, into)") == [[], []]


@ON_ONE_AND_TWO_NODES
def test_async_save_serves_callers_that_expect_two_futures(launch, root, installed):
    ranks = launch(1)
    ranks.do(
        "from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType\n"
        f"saved = dcp.async_save({STATE.format(1)}, checkpoint_id={root + '/s'!r}, "
        "async_checkpointer_type=AsyncCheckpointerType.PROCESS)\n"
        "saved.staging_completion.result(0); saved.upload_completion.result(60)"
    )
    check(ranks, root + "/s", 1)


@ON_ONE_AND_TWO_NODES
def test_process_executor_of_dcp_is_refused_with_what_to_use(launch, root):
    ranks = launch(1)
    error = ranks.fail(
        "from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType\n"
        f"dcp.async_save({STATE.format(1)}, storage_writer=Writer({root + '/s'!r}), "
        "async_checkpointer_type=AsyncCheckpointerType.PROCESS)"
    )[0]
    assert error.kind == "ValueError" and "ckptd.dcp.install()" in error.message


@ON_ONE_AND_TWO_NODES
def test_failure_of_an_async_save_is_the_futures_and_a_warning_where_nobody_asks(launch, root, installed):
    ranks = launch(2)
    code = (
        "import logging; heard = []\n"
        "class Handler(logging.Handler):\n"
        "    def emit(self, record): heard.append(record.getMessage())\n"
        "logging.getLogger('ckptd').addHandler(handler := Handler())\n"
        "class Planner(dcp.DefaultSavePlanner):\n"
        "    def resolve_data(self, item): raise KeyError('no such tensor')\n"
        f"saved = dcp.async_save({STATE.format(1)}, checkpoint_id={root + '/s'!r}, planner=Planner())\n"
        "logging.getLogger('ckptd').removeHandler(handler)"
    )
    ranks.do(code)
    assert ranks.do("[line for line in heard if 'is not a checkpoint' in line and 'no such tensor' in line] != []") == [True] * 2
    assert {error.kind for error in ranks.fail("saved.result(10)")} == {"CheckpointException"}
    assert not os.path.exists(root + "/s")
    assert ranks.do(f"len(ckptd.dcp.run({root!r}).failures())") == [1, 1]


@ON_ONE_AND_TWO_NODES
def test_latest_is_the_newest_committed_one_and_before_that_the_newest_of_dcp(launch, root):
    ranks = launch(2)
    assert ranks.do(f"ckptd.dcp.latest({root!r})") == [None, None]
    ranks.do(f"dcp.save({STATE.format(1)}, storage_writer=FileSystemWriter({root + '/theirs'!r}))")
    assert ranks.do(f"ckptd.dcp.latest({root!r})") == [root + "/theirs"] * 2
    for name in ("b", "a"):
        ranks.do(f"dcp.save({STATE.format(1)}, storage_writer=Writer({root + '/' + name!r}))")
    assert ranks.do(f"ckptd.dcp.latest({root!r})") == [root + "/a"] * 2
    assert ranks.do(f"[info.tag for info in ckptd.dcp.list({root!r})]") == [["a", "b"]] * 2


def test_relative_path_and_path_object_name_the_same_checkpoint(alone, root, installed):
    above, name = os.path.split(root)
    alone.do(f"import pathlib; os.chdir({above!r}); dcp.save({{'a': torch.ones(3)}}, checkpoint_id='{name}/checkpoint')")
    alone.do(f"into = {{'a': torch.zeros(3)}}; dcp.load(into, checkpoint_id=pathlib.Path({root + '/checkpoint'!r}))")
    assert alone.do("into['a'].tolist()") == [1.0, 1.0, 1.0]
    alone.do(f"dcp.save({{'a': torch.zeros(3)}}, checkpoint_id=pathlib.Path('./{name}/checkpoint')); os.chdir('/')")
    assert os.path.exists(root + "/checkpoint/.ckptd/manifest")


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("save", ["ckptd.dcp.async_save", "dcp.save"])
def test_dcp_plans_again_only_when_the_form_of_a_state_changes(launch, root, installed, save):
    ranks = launch(2)
    ranks.do(
        "from ckptd.dcp import _names, _repeated; _repeated._kept.clear(); planned = []; save_state = _names.save_state\n"
        "_names.save_state = lambda *a, **k: (planned.append(1), save_state(*a, **k))[1]"
    )
    state = "{**" + STATE.format("NUMBER") + ", f'of rank {dist.get_rank()}': b'x'}"
    trained = "(lambda state: (state['model']['plain'].requires_grad_(), state)[1])(" + state + ")"
    saves = [  # (state, arguments, whether DCP plans)
        (state, "", True),
        (state, "", False),
        (trained, "", True),
        (state, "", False),  # The plan before the last is kept, too.
        (state.replace("b'x'", "b'longer' * 99"), "", False),
        (state.replace("b'x'", "b'longer on one rank' * 99 * dist.get_rank()"), "", False),
        (f"{{**{state}, **({{'more': 1}} if dist.get_rank() else {{}})}}", "", True),
        (state, ", thread_count=2", True),
        (state, ", thread_count=2", False),
    ]
    for number, (form, arguments, plans) in enumerate(saves):
        path, code = f"{root}/s-{number}", form.replace("NUMBER", str(number))
        ranks.do(f"planned.clear(); saved = {save}({code}, storage_writer=Writer({path!r}{arguments}))")
        assert ranks.do("len(planned)") == [int(plans)] * 2
        ranks.do("metadata = saved if isinstance(saved, dcp.Metadata) else saved.result(60)")
        ranks.do(f"read = FileSystemReader({path!r}).read_metadata(); read.storage_meta.load_id = None")
        assert ranks.do("metadata == read") == [True, True]
        for reader in ("Reader", "FileSystemReader"):
            ranks.do(f"wanted = {code}; into = states.emptied(wanted)\ndcp.load(into, storage_reader={reader}({path!r}))")
            assert ranks.do("states.differences(wanted, into)") == [[], []]
        assert ranks.do(f"FileSystemReader({path!r}).read_metadata().storage_meta.checkpoint_id")[0] == path
    assert len([name for name in os.listdir(f"{root}/s-8") if name.endswith(".distcp")]) == 4
    ranks.do("_names.save_state = save_state")


def test_save_goes_through_dcp_save_where_torch_has_no_inner_function(alone, root):
    alone.do(
        "import types, warnings; from ckptd.dcp import _names, _repeated; _repeated._kept.clear()\n"
        "saver, _names.state_dict_saver = _names.state_dict_saver, types.SimpleNamespace()\n"
        "with warnings.catch_warnings(record=True) as heard:\n"
        "    warnings.simplefilter('always')\n"
        f"    ckptd.dcp.async_save({{'a': torch.ones(3)}}, storage_writer=Writer({root + '/s'!r})).result(60)\n"
        "_names.state_dict_saver = saver"
    )
    assert alone.do("[str(warning.message) for warning in heard if '_save_state_dict' in str(warning.message)] != []")
    alone.do(f"into = {{'a': torch.zeros(3)}}; dcp.load(into, storage_reader=FileSystemReader({root + '/s'!r}))")
    assert alone.do("into['a'].tolist()") == [1.0, 1.0, 1.0]


@ON_ONE_AND_TWO_NODES
def test_files_are_laid_out_again_only_when_more_than_their_values_changes(launch, root, installed):
    ranks = launch(2)
    ranks.do(
        "from ckptd.dcp import _files, _repeated; _repeated._kept.clear(); laid_out = []; before = _files.PlannedFiles._lay_out\n"
        "_files.PlannedFiles._lay_out = lambda *a: (laid_out.append(1), before(*a))[1]\n"
        "mesh = states.mesh_of(2); values = states.values\n"
        "def state(n, tied=True, step=b'x', turned=False):\n"
        "    own, other = values('own', (6, 4), seed=n), values('other', (6, 4), seed=n)\n"
        "    other = values('turned', (4, 6), seed=n).t() if turned else own if tied else other\n"
        "    whole = states.distribute_tensor(values('whole', (5, 2), seed=n), mesh, [states.Shard(0)])\n"
        "    return {'whole': whole, 'step': step, f'of rank {dist.get_rank()}': {'own': own, 'other': other}}"
    )
    saves = ["0", "1", "2, tied=False", "3, tied=False", "4, tied=False, step=b'longer' * 99", "5, turned=True", "6, turned=True"]
    found = []
    for number, arguments in enumerate(saves):
        path = f"{root}/s-{number}"
        ranks.do(f"laid_out.clear(); dcp.async_save(state({arguments}), checkpoint_id={path!r}).result(60)")
        found.append(max(ranks.do("len(laid_out)")))
        ranks.do(f"wanted = state({arguments}); into = states.emptied(wanted)\ndcp.load(into, storage_reader=FileSystemReader({path!r}))")
        assert ranks.do("states.differences(wanted, into)") == [[], []]
    ranks.do("_files.PlannedFiles._lay_out = before")
    assert found == [1, 0, 1, 0, 1, 1, 1]  # A tensor that is not contiguous is laid out each time.


def test_equal_numbers_and_strings_come_back_with_their_own_type_and_bits(alone, root):
    state = "{'o': {'a': 1, 'b': 1.0, 'c': True, 'd': 0.0, 'e': -0.0, 'f': '1', 'g': None, 'h': float('nan'), 'i': [1, 1.0]}}"
    for number in range(2):
        alone.do(f"ckptd.dcp.async_save({state}, storage_writer=Writer({f'{root}/s-{number}'!r})).result(60)")
        alone.do(f"into = {{'o': dict.fromkeys('abcdefghi', 7)}}; dcp.load(into, storage_reader=FileSystemReader({f'{root}/s-{number}'!r}))")
        assert alone.do(f"repr(into) == repr({state})")


@pytest.mark.parametrize("broken", ["ckptd._saving.upload.PartUpload.save", "ckptd.Run.save"], ids=["while it saves", "before"])
def test_repeated_saves_give_whole_checkpoints_also_after_one_that_failed_on_one_rank(launch, root, installed, broken):
    ranks = launch(2)
    failing = (
        "def broken(self, *a, **k): raise OSError('one rank cannot write')\n"
        f"import ckptd._saving.upload; before = {broken}\n"
        f"if dist.get_rank() == 1: {broken} = broken\n"
        f"failed = dcp.async_save({STATE.format(9)}, checkpoint_id={root + '/failed'!r})\n"
        f"try: dcp.save({STATE.format(9)}, checkpoint_id={root + '/failed'!r})\n"
        "except dcp.CheckpointException as error: told = list(error.failures)\n"
        f"{broken} = before"
    )
    for number in range(3):
        ranks.do(f"saved = dcp.async_save({STATE.format(number)}, checkpoint_id={f'{root}/s-{number}'!r})")
        assert ranks.do("[len(saved.result(60).storage_data), len(saved.result().state_dict_metadata)]")[0][0] > 5
        if number == 1:
            ranks.do(failing)
            for error in ranks.fail("failed.result(60)"):
                assert error.kind == "CheckpointException"
                assert "one rank cannot write" in error.message.partition("\n")[0]  # Above the tracebacks of all ranks.
            assert ranks.do("told") == [[0], [1]]
    assert not os.path.exists(root + "/failed")
    for number in range(3):
        check(ranks, f"{root}/s-{number}", number)
        ranks.do(f"dcp.load(into, storage_reader=FileSystemReader({f'{root}/s-{number}'!r}))")
        assert ranks.do("states.differences(wanted, into)") == [[], []]


STAND_IN = IN_PROCESS + "weight = stand_in.tensor(torch.ones(300_000))\n"


@pytest.mark.parametrize("world_size", [1, 2])
def test_async_save_returns_while_devices_copy(start_processes, daemon, root, session_folder, world_size):
    ranks = start_processes(daemon.endpoint, world_size)
    store = os.path.join(session_folder, f"overlap-{world_size}")
    for rank, process in enumerate(ranks):
        process.start(
            STAND_IN + f"dist.init_process_group('gloo', store=dist.FileStore({store!r}, {world_size}), "
            f"rank={rank}, world_size={world_size})"
        )
    for process in ranks:
        process.result(60)
    for number, change in enumerate(("weight.zero_()", "weight.add_(5)")):
        # The second one by the plan of the first.
        for process in ranks:
            process.start(
                "stand_in.gate.clear()\n"
                f"writer = Writer({root + f'/s{number}'!r}, stage='overlap')\n"
                "saved = ckptd.dcp.async_save({'weight': weight, 'bias': torch.arange(10.0)}, storage_writer=writer)"
            )
        for process in ranks:
            process.result(60)
        # One of the ranks saves the tensors, which both have.
        assert [process.do("saved.staging_completion.done()") for process in ranks].count(False) == 1
        for process in ranks:
            process.do(f"stand_in.gate.set(); saved.staging_completion.result(60); {change}", 90)
        for process in ranks:
            process.do("saved.upload_completion.result(60)", 90)
    for number, value in enumerate((1.0, 0.0)):
        ranks[0].do(
            "into = {'weight': torch.full((300_000,), 7.0), 'bias': torch.zeros(10)}\n"
            f"dcp.load(into, storage_reader=FileSystemReader({root + f'/s{number}'!r}), no_dist=True)"
        )
        assert ranks[0].do("[float(into['weight'].min()), float(into['weight'].max()), float(into['bias'][9])]") == [value, value, 9.0]


def test_change_while_devices_copy_is_an_error_and_no_checkpoint(start_processes, daemon, root):
    (process,) = start_processes(daemon.endpoint, 1)
    process.do(STAND_IN)
    process.do(
        "stand_in.gate.clear()\n"
        f"writer = Writer({root + '/s'!r}, stage='overlap')\n"
        "saved = ckptd.dcp.async_save({'weight': weight}, storage_writer=writer, no_dist=True)\n"
        "weight.zero_(); stand_in.gate.set()"
    )
    assert "was changed" in process.fails("saved.result(60)", 90).message
    process.do("saved.staging_completion.result(60)", 90)
    assert not os.path.exists(root + "/s")
