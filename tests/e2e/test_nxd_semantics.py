"""What NxD's users rely on: which checkpoints are kept, which is the latest, what is refused. One rank, a
real daemon.
"""

import argparse
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import types

import ckptd
import nxd_job
import pytest
import torch
from ckptd import nxd
from ckptd._torch.writing import deferred_tensors
from ckptd.nxd import Topology, checkpointing
from harness import ckptctl, tags, until_equal
from nxd_trees import Far

ALONE = Topology(rank=0, world_size=1)
MODEL = "model/dp_rank_00_tp_rank_00_pp_rank_00.pt"


@pytest.fixture(autouse=True)
def configured(daemon):
    nxd.configure(endpoint=daemon.endpoint, topology=ALONE)
    yield
    nxd.configure()


def save(root, number, tag=None, **more):
    nxd.save_checkpoint(root, tag or f"step_{number}", model={"x": torch.full((3,), float(number))}, **more)


def load(root, tag=None):
    target = {}
    nxd.load_checkpoint(root, tag, model=target)
    return int(target["x"][0])


def as_nxd(root, number, tag=None, done=True):
    """Writes a tag in NxD's own format."""
    folder = os.path.join(root, tag or f"step_{number}")
    os.makedirs(os.path.join(folder, "model"))
    torch.save({"x": torch.full((3,), float(number))}, os.path.join(folder, MODEL))
    for marker in ("checkpoint", "done") if done else ("checkpoint",):
        with open(os.path.join(folder, marker), "w") as file:
            file.write("1")


def stamp(root, tag, seconds):
    for marker in ("checkpoint", "done"):
        os.utime(os.path.join(root, tag, marker), (seconds, seconds))


# ---- Retention


@pytest.mark.parametrize("kept", [None, -1])
def test_num_kept_none_and_minus_one_keep_all(root, kept):
    for number in range(5):
        save(root, number, num_kept_ckpts=kept)
    assert tags(root) == [f"step_{number}" for number in reversed(range(5))]


def test_num_kept_n_keeps_n_newest_saves(root):
    for number in (5, 9, 1, 3):
        save(root, number, num_kept_ckpts=2)
    until_equal(lambda: tags(root), ["step_3", "step_1"], "retention")


@pytest.mark.parametrize("kept", [0, -2, -100])
def test_num_kept_zero_and_below_minus_one_are_refused_and_delete_nothing(root, kept):
    save(root, 1)
    with pytest.raises(ValueError, match=f"num_kept_ckpts is {kept}; .*NxD would delete every checkpoint"):
        save(root, 2, num_kept_ckpts=kept)
    assert tags(root) == ["step_1"] and load(root) == 1


def test_synchronous_save_returns_when_what_it_has_pushed_out_is_gone(root):
    for number in range(12):
        save(root, number, num_kept_ckpts=2)
        assert sorted(os.listdir(root))[1:] == sorted(f"step_{n}" for n in range(max(0, number - 1), number + 1))


def test_synchronous_save_does_not_wait_for_what_is_pinned_or_open(daemon, root, caplog):
    caplog.set_level(logging.INFO, "ckptd")
    save(root, 0)
    ckptctl("pin", f"{root}/step_0", endpoint=daemon.endpoint)
    save(root, 1, num_kept_ckpts=1)
    with nxd.process.job(root).run.open("step_1") as checkpoint:
        assert checkpoint.tag == "step_1"
        for number in range(2, 5):
            save(root, number, num_kept_ckpts=1)
        assert tags(root) == ["step_4", "step_1", "step_0"]
    assert "retention has not removed" not in caplog.text


def test_retention_policy_keeps_what_a_rule_keeps_and_the_rest_is_gone_when_the_save_returns(root):
    keep = ckptd.Keep(best=1, metric="loss", every=10)
    for number, loss in [(1, 0.5), (10, 0.9), (11, 0.1), (12, 0.3), (13, 0.7)]:
        save(root, number, retention=keep, metrics={"loss": loss})
    assert tags(root) == ["step_13", "step_11", "step_10"]
    assert sorted(os.listdir(root))[1:] == ["step_10", "step_11", "step_13"]


def test_retention_policy_beside_num_kept_is_refused(root):
    with pytest.raises(ckptd.Refused, match="retention and num_kept_ckpts are both given"):
        save(root, 1, retention=ckptd.Keep(last=2), num_kept_ckpts=2)
    assert tags(root) == []


def test_num_kept_may_change_between_saves(root):
    for number in range(3):
        save(root, number)
    save(root, 3, num_kept_ckpts=2)
    until_equal(lambda: tags(root), ["step_3", "step_2"], "retention")
    save(root, 4, num_kept_ckpts=-1)
    save(root, 5)
    assert tags(root) == ["step_5", "step_4", "step_3", "step_2"]


def test_clock_jump_and_equal_times_change_neither_latest_nor_evictions(root):
    save(root, 1)
    stamp(root, "step_1", 4_000_000_000)  # The clock was far ahead,
    save(root, 2)
    stamp(root, "step_2", 1_000_000_000)  # went back,
    save(root, 3)
    stamp(root, "step_3", 1_000_000_000)  # and stood still.
    assert load(root) == 3
    save(root, 4, num_kept_ckpts=3)
    until_equal(lambda: tags(root), ["step_4", "step_3", "step_2"], "retention")


def test_foreign_directories_are_left_untouched_whatever_they_contain(root):
    os.makedirs(f"{root}/mine/checkpoint")
    os.makedirs(f"{root}/notes")
    with open(f"{root}/notes/checkpoint", "w") as file:
        file.write("my list of checkpoints")
    as_nxd(root, 0, "begun", done=False)
    as_nxd(root, 0, "finished")
    for number in range(1, 4):
        save(root, number, num_kept_ckpts=1)
    until_equal(lambda: tags(root), ["step_3"], "retention")
    assert set(os.listdir(root)) == {".ckptd", "mine", "notes", "begun", "finished", "step_3"}
    assert os.path.exists(f"{root}/begun/{MODEL}") and os.path.exists(f"{root}/finished/done")


# ---- The latest


def test_load_raises_runtime_error_when_root_is_empty(root, folder):
    for path in (root, f"{folder}/nowhere"):
        assert nxd.has_checkpoint(path) is False
        with pytest.raises(RuntimeError, match="no checkpoint under directory") as caught:
            nxd.load_checkpoint(path, model={})
        assert isinstance(caught.value, ckptd.NotFound) and caught.value.reason == "NO_CHECKPOINT"
    assert not os.path.exists(f"{folder}/nowhere")


def test_latest_is_newest_save_also_while_job_continues(root):
    for number in (500, 1000, 600):
        save(root, number, async_save=True)
        assert load(root) == number
    assert nxd.has_checkpoint(root) is True


def test_saving_a_tag_again_replaces_it(root):
    save(root, 1, tag="a")
    save(root, 2, tag="b")
    save(root, 3, tag="a")
    assert load(root, "a") == load(root) == 3 and tags(root) == ["a", "b"]


def test_tag_without_done_file_is_ignored(root):
    as_nxd(root, 1, "begun", done=False)
    as_nxd(root, 2, "deleted")
    os.remove(f"{root}/deleted/done")
    os.remove(f"{root}/deleted/{MODEL}")
    assert nxd.has_checkpoint(root) is False
    for tag in ("begun", "deleted"):
        with pytest.raises(RuntimeError, match=f"no checkpoint {tag} .*it has no `done`"):
            load(root, tag)
    with pytest.raises(RuntimeError, match="no checkpoint never .*there is no such directory"):
        load(root, "never")
    with pytest.raises(RuntimeError, match="no checkpoint under directory"):
        load(root)


def test_damaged_latest_is_skipped(daemon, root):
    save(root, 1)
    save(root, 2)
    nxd.configure()
    daemon.kill()
    daemon.restart()  # Drops it from memory.
    with open(f"{root}/step_2/{MODEL}", "r+b") as file:
        data = bytearray(file.read())
        data[-600] ^= 1
        file.seek(0)
        file.write(data)
    nxd.configure(endpoint=daemon.endpoint, topology=ALONE)
    assert load(root) == 1
    with pytest.raises(ckptd.Corrupt):
        load(root, "step_2")


# ---- A root that NxD wrote


def test_nxd_root_is_loaded_and_continued(root):
    as_nxd(root, 1)
    as_nxd(root, 2)
    as_nxd(root, 3, done=False)
    stamp(root, "step_1", 2_000)
    stamp(root, "step_2", 1_000)
    assert nxd.has_checkpoint(root) is True
    assert load(root) == 1 and load(root, "step_2") == 2
    save(root, 4)
    assert load(root) == 4 and load(root, "step_1") == 1


def test_nxd_root_is_read_without_daemon_and_left_unchanged(root, folder):
    as_nxd(root, 1)
    as_nxd(root, 2)
    stamp(root, "step_2", 1_000)
    nxd.configure(endpoint=f"unix:{folder}/nobody", topology=ALONE)
    assert nxd.has_checkpoint(root) and load(root) == 1 and load(root, "step_2") == 2
    assert sorted(os.listdir(root)) == ["step_1", "step_2"]


@pytest.mark.parametrize("async_save", [False, True])
def test_tag_written_by_nxd_is_not_overwritten(root, async_save):
    as_nxd(root, 1)
    with pytest.raises(ckptd.Refused) as caught:
        save(root, 2, tag="step_1", async_save=async_save)
    assert caught.value.reason == "TAG_FOREIGN"
    assert load(root, "step_1") == 1
    save(root, 3, async_save=async_save)  # All ranks were told of the refusal, so it has no lasting effect.
    assert load(root) == 3


def test_saved_root_has_layout_and_order_of_nxd(daemon, root):
    """A root that ckptd wrote has NxD's layout: names, markers, and times of `done` in the order of saving.
    """
    for number in (3, 1, 2):
        save(root, number)
    nxd.configure()
    daemon.close()
    shutil.rmtree(f"{root}/.ckptd")
    done = {tag: os.stat(f"{root}/{tag}/done").st_mtime_ns for tag in os.listdir(root)}
    assert sorted(done, key=done.get) == ["step_3", "step_1", "step_2"]
    for tag in done:
        shutil.rmtree(f"{root}/{tag}/.ckptd")
        assert sorted(os.listdir(f"{root}/{tag}")) == ["checkpoint", "done", "model"]
    assert torch.load(f"{root}/step_2/{MODEL}", weights_only=True)["x"][0] == 2


# ---- Refusals


@pytest.mark.parametrize(
    "arguments, what",
    [
        ({"tag": "epoch_1/step_2"}, "a tag with a slash would be saved where no loader looks"),
        ({"use_zero1_dcp": True}, "NxD itself cannot load"),
    ],
)
def test_arguments_that_would_lose_data_are_refused(root, arguments, what):
    with pytest.raises(ValueError, match=what):
        nxd.save_checkpoint(**{"checkpoint_dir_str": root, "tag": "t", "model": {}, **arguments})
    assert tags(root) == []


def test_zero1_with_context_parallel_is_refused_on_every_rank_before_saving(daemon, root):
    nxd.configure(endpoint=daemon.endpoint, topology=Topology(cp_rank=0, cp_size=2, rank=0, world_size=2))
    with pytest.raises(ValueError, match="all shards but one would be lost"):
        nxd.save_checkpoint(root, "t", optimizer={}, zero1_optimizer=True)


def test_every_function_refuses_other_urls_and_zero1_dcp():
    for call in (nxd.has_checkpoint, nxd.load_checkpoint, lambda root: nxd.save_checkpoint(root, "t", model={})):
        with pytest.raises(ckptd.Refused, match="gs://bucket/ckpts"):
            call("gs://bucket/ckpts")
        with pytest.raises(ckptd.Refused, match='"Bucket" in s3://Bucket/ckpts is no name of a bucket'):
            call("s3://Bucket/ckpts")
        with pytest.raises(ckptd.Refused, match="s3:/bucket/ckpts.*give the URL of a bucket as a str"):
            call(pathlib.Path("s3://bucket/ckpts"))
    with pytest.raises(ValueError, match="use_zero1_dcp"):
        nxd.load_checkpoint("/tmp", use_zero1_dcp=True)


def test_unsafe_state_in_own_checkpoint_is_refused_without_damage_mark(root):
    with pytest.warns(ckptd.UnsafeGlobalsWarning):
        nxd.save_checkpoint(root, "t", model={"x": torch.ones(3), "odd": nxd_job.Scheduler(1)})
    with pytest.raises(ckptd.Refused) as caught:
        nxd.load_checkpoint(root, model={})
    assert caught.value.reason == "UNSAFE_GLOBALS"
    with ckptd.open_root(root).open() as checkpoint:
        assert not checkpoint.info.damage


@pytest.mark.parametrize("use_xser", [False, True])
def test_device_tensors_reach_the_disk(root, use_xser, monkeypatch):
    monkeypatch.setattr(deferred_tensors, "BATCH_BYTES", 100_000)
    state = {f"t{i}": Far(nxd_job.values((100, 33), torch.bfloat16, i)) for i in range(40)}
    Far.copies.clear()
    nxd.save_checkpoint(root, "t", model=state, use_xser=use_xser, async_save=True)
    assert len(Far.copies) == 40
    for far in state.values():
        far.near.zero_()
    target = {}
    nxd.load_checkpoint(root, "t", model=target)
    expected = {f"t{i}": nxd_job.values((100, 33), torch.bfloat16, i) for i in range(40)}
    assert nxd_job.differences(target, expected) == []


# ---- Without any configuration

PROGRAM = """
import sys, torch, ckptd.nxd as nxd
root = sys.argv[1]
nxd.configure(pool_bytes=64 << 20)
start = nxd.load_checkpoint(root)["step"] if nxd.has_checkpoint(root) else 0
model = torch.nn.Linear(3, 3)
nxd.save_checkpoint(root, f"step_{start + 1}", model, user_content={"step": start + 1}, num_kept_ckpts=1, async_save=True)
print(start)
"""


def test_private_daemon_is_started_and_its_saves_survive_process_exit(folder, root):
    environment = {name: value for name, value in os.environ.items() if name not in ("CKPTD_ENDPOINT", "RANK", "WORLD_SIZE")}
    for start in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, root],
            env={**environment, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0 and done.stdout == f"{start}\n", done.stderr
        assert os.path.exists(f"{root}/step_{start + 1}/done")
    assert tags(root)[0] == "step_2"


# ---- NxD's older functions, and its own functions replaced


@pytest.mark.parametrize("save_xser", [False, True])
def test_older_functions_save_and_load_through_the_daemon(root, save_xser):
    state = {"model": {"x": torch.arange(3.0)}, "args": argparse.Namespace(lr=1), "betas": (0.9, 0.95)}
    checkpointing.save(state, f"{root}/epoch=0-step=10.ckpt", save_xser=save_xser)
    assert tags(root) == ["epoch=0-step=10.ckpt"]
    loaded = checkpointing.load(f"{root}/epoch=0-step=10.ckpt", load_xser=save_xser)
    assert nxd_job.differences(loaded, {**state, "betas": [0.9, 0.95]}) == []  # As with NxD.
    model = torch.nn.Module()
    model.x = torch.nn.Parameter(torch.zeros(3))
    left = checkpointing.load(f"{root}/epoch=0-step=10.ckpt", model_or_optimizer=model, load_xser=save_xser)
    assert torch.equal(model.x, state["model"]["x"]) and sorted(left) == ["args", "betas"]
    with pytest.raises(ckptd.Refused, match="argparse.Namespace"):
        checkpointing.load(f"{root}/epoch=0-step=10.ckpt", load_xser=save_xser, weights_only=True)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpointing.load(f"{root}/never", load_xser=save_xser)


@pytest.fixture
def neuronx_distributed(monkeypatch):
    """Stands in for NxD: its functions raise. Returns a library that has imported some of them by name."""

    def refuse(*args, **options):
        raise AssertionError("NxD's own function was called")

    def module(name, *functions):
        made = types.ModuleType(name)
        for function in functions:
            setattr(made, function, types.FunctionType(refuse.__code__, {}, function))
        monkeypatch.setitem(sys.modules, name, made)
        return made

    package = module("neuronx_distributed")
    module("neuronx_distributed.trainer")
    trainer = module("neuronx_distributed.trainer.checkpoint", "save_checkpoint", "load_checkpoint", "has_checkpoint")
    module("neuronx_distributed.parallel_layers")
    older = module("neuronx_distributed.parallel_layers.checkpointing", "save", "load")
    package.save_checkpoint = trainer.save_checkpoint
    library = module("somebodys_lightning")
    library.nxd_save, library.load, library.package = trainer.save_checkpoint, older.load, package
    yield library
    nxd.uninstall()


def test_install_reaches_imports_inside_libraries_and_uninstall_undoes_it(root, neuronx_distributed):
    library = neuronx_distributed
    before = dict(vars(library))
    nxd.install()
    nxd.install()
    library.nxd_save(root, "step_1", model={"x": torch.ones(2)})
    library.package.save_checkpoint(root, "step_2", model={"x": torch.ones(2)})
    assert tags(root) == ["step_2", "step_1"] and library.load is checkpointing.load
    from neuronx_distributed.trainer.checkpoint import load_checkpoint  # As a library that is imported later.

    target = {}
    load_checkpoint(root, "step_1", model=target)
    assert torch.equal(target["x"], torch.ones(2))
    nxd.uninstall()
    assert dict(vars(library)) == before
    with pytest.raises(AssertionError, match="NxD's own function"):
        library.package.save_checkpoint(root, "step_3")


def test_unsharded_file_is_loaded_by_nxd_itself(root, neuronx_distributed):
    nxd.install()
    with pytest.raises(AssertionError, match="NxD's own function"):
        neuronx_distributed.load(f"{root}/whole.pt", model_or_optimizer=torch.nn.Linear(1, 1), sharded=False)


def test_install_without_nxd_says_that_it_is_missing():
    with pytest.raises(ModuleNotFoundError, match="neuronx_distributed"):
        nxd.install()
