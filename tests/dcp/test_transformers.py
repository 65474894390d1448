"""The Trainer of transformers, with ckptd's callback. The model is a small OPT, made from a configuration."""

import os
import shutil
import signal
import socket

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

from harness import Ranks, Trainer, until
from harness.stand_in_devices import IN_PROCESS

IMPORTS = """
import json, signal, torch, transformers, ckptd.transformers
transformers.logging.set_verbosity_error()

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, number): return dict.fromkeys(["input_ids", "labels"], torch.full((8,), number))

def model():
    torch.manual_seed(0)
    return transformers.OPTForCausalLM(transformers.OPTConfig(
        vocab_size=64, hidden_size=16, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2, word_embed_proj_dim=16,
        max_position_embeddings=16))

def trainer(folder, steps, callbacks, **options):
    arguments = transformers.TrainingArguments(
        folder, use_cpu=True, max_steps=steps, save_steps=2, logging_steps=1, per_device_train_batch_size=2, report_to=[],
        disable_tqdm=True, lr_scheduler_type="constant", **options)
    return transformers.Trainer(model(), arguments, train_dataset=Data(), eval_dataset=Data(), callbacks=callbacks)

def fit(folder, steps, resume=None, plugin=True, callbacks=(), **options):
    mine = [ckptd.transformers.CheckpointCallback()] if plugin else []
    made = trainer(folder, steps, [*mine, *callbacks], **options)
    made.train(resume_from_checkpoint=resume)
    return made

def losses(made): return [entry["loss"] for entry in made.state.log_history if "loss" in entry]

class Kill(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        if state.global_step == 5: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def start(daemon):
    """Starts a process that ends with the tests of this file."""
    made = []

    def start(**environment):
        made.append(Trainer(daemon.endpoint, {"CKPTD_TEST_IMPORTS": IMPORTS, **environment}))
        made[-1].start('ckptd.transformers.configure(os.environ["CKPTD_ENDPOINT"])')
        return made[-1]

    yield start
    for process in made:
        process.close()


@pytest.fixture(scope="module")
def trainer(start):
    made = start()
    made.result(200)
    return made


def folders(root):
    return sorted(name for name in os.listdir(root) if name.startswith("checkpoint-"))


def test_checkpoint_has_the_files_of_the_trainer_itself_and_a_resumed_job_has_the_same_losses(trainer, root):
    whole = trainer.do(f"losses(fit({root + '/stock'!r}, 6, plugin=False))", 120)
    trainer.do(f"first = fit({root + '/ours'!r}, 4)", 120)
    assert folders(root + "/ours") == ["checkpoint-2", "checkpoint-4"]
    stock = sorted(os.listdir(root + "/stock/checkpoint-4"))
    assert sorted(os.listdir(root + "/ours/checkpoint-4")) == [".ckptd", *stock]
    last = trainer.do(f"ckptd.transformers.latest({root + '/ours'!r})")
    assert last == root + "/ours/checkpoint-4"
    assert trainer.do(f"losses(fit({root + '/ours'!r}, 6, resume={last!r}))", 120) == whole
    # And both ways between ckptd and the Trainer itself.
    assert trainer.do(f"losses(fit({root + '/ours'!r}, 6, resume={last!r}, plugin=False))", 120) == whole
    resume = f"ckptd.transformers.latest({root + '/stock'!r})"
    assert trainer.do(f"losses(fit({root + '/stock'!r}, 8, resume={resume}))", 120)[:6] == whole
    assert folders(root + "/stock") == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-8"]


def test_values_are_those_of_the_saved_step(trainer, root):
    trainer.do(f"made = fit({root!r}, 2)", 120)
    trainer.do(f"loaded = transformers.OPTForCausalLM.from_pretrained({root + '/checkpoint-2'!r}).state_dict()")
    assert trainer.do("all(torch.equal(tensor, loaded[name]) for name, tensor in made.model.state_dict().items())")
    trainer.do(f"state = torch.load({root + '/checkpoint-2/optimizer.pt'!r})['state']; mine = made.optimizer.state_dict()['state']")
    assert trainer.do("all(torch.equal(state[n][key], mine[n][key]) for n in mine for key in ('exp_avg', 'exp_avg_sq'))")


OVERLAP = IN_PROCESS + """
import threading

class Watch(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, model=None, optimizer=None, **others):
        if state.global_step == 2:  # Before the save.
            [stand_in.tensor(one) for one in model.parameters()]
            [stand_in.tensor(one) for each in optimizer.state.values() for one in each.values()]
            self.saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            self.moments = [each["exp_avg"].clone() for each in optimizer.state.values()]
            stand_in.gate.clear()
    def on_save(self, args, state, control, **others):
        if state.global_step == 2:
            self.in_flight = len(copies.in_flight())
    def on_pre_optimizer_step(self, args, state, control, **others):
        if not stand_in.gate.is_set():
            stand_in.open_gate_when_held()
"""


def test_training_goes_on_while_a_device_copies(trainer, root):
    trainer.do(OVERLAP)
    try:
        trainer.do(
            "watch = Watch()\n"
            f"made = fit({root!r}, 4, plugin=False, callbacks=[ckptd.transformers.CheckpointCallback(stage='overlap'), watch])",
            120,
        )
    finally:
        trainer.do("stand_in.gate.set(); devices_module.replace(cuda); device_copy._SMALL_BYTES = 64 << 10")
    assert trainer.do("watch.in_flight, stand_in.holds > 0") == [2, True]  # Weights, and the optimizer's state.
    trainer.do(f"loaded = transformers.OPTForCausalLM.from_pretrained({root + '/checkpoint-2'!r}).state_dict()")
    assert trainer.do("all(torch.equal(tensor, loaded[name]) for name, tensor in watch.saved.items())")
    trainer.do(f"state = torch.load({root + '/checkpoint-2/optimizer.pt'!r})['state'].values()")
    assert trainer.do("all(torch.equal(mine, each['exp_avg']) for mine, each in zip(watch.moments, state))")
    assert not trainer.do("all(torch.equal(tensor, loaded[name]) for name, tensor in made.model.state_dict().items())")
    assert "overlap" in trainer.fails("ckptd.transformers.CheckpointCallback(stage='later')").message


def test_save_total_limit_keeps_the_newest_and_the_best_which_is_loaded_at_the_end(trainer, root):
    best = (
        "class Worse(transformers.TrainerCallback):\n"
        "    def on_evaluate(self, args, state, control, metrics, **others): metrics['eval_loss'] = float(state.global_step)"
    )
    options = "save_total_limit=1, eval_strategy='steps', eval_steps=2, load_best_model_at_end=True, metric_for_best_model='loss'"
    trainer.do(f"{best}\nmade = fit({root!r}, 8, callbacks=[Worse()], {options})", 120)
    assert trainer.do("made.state.best_model_checkpoint") == root + "/checkpoint-2"
    assert os.path.exists(root + "/checkpoint-2/.ckptd/manifest")
    assert '"best_model_checkpoint": "%s/checkpoint-2"' % root in open(root + "/checkpoint-2/trainer_state.json").read()
    trainer.do(f"loaded = transformers.OPTForCausalLM.from_pretrained({root + '/checkpoint-2'!r}).state_dict()")
    assert trainer.do("all(torch.equal(tensor, loaded[name]) for name, tensor in made.model.state_dict().items())")


def test_trainer_compares_and_removes_checkpoints_when_the_best_one_is_committed(trainer, root):
    trainer.do(
        "class Better(transformers.TrainerCallback):\n"
        "    def on_evaluate(self, args, state, control, metrics, **others): metrics['eval_loss'] = -float(state.global_step)\n"
        "import os.path; before = os.path.samefile; seen = []\n"
        "def samefile(*paths):\n"
        f"    seen.append([ckptd.transformers.process.is_saving({root!r}), *map(os.path.exists, paths)])\n"
        "    return before(*paths)\n"
        "os.path.samefile = samefile\n"
        "options = dict(save_total_limit=1, eval_strategy='steps', eval_steps=2, metric_for_best_model='loss')\n"
        f"try: fit({root!r}, 6, callbacks=[Better()], **options)\n"
        "finally: os.path.samefile = before",
        120,
    )
    assert trainer.do("seen") and all(each == [False, True, True] for each in trainer.do("seen"))
    assert folders(root) == ["checkpoint-6"]
    # One that was not saved is no reason to remove the others.
    trainer.do(
        "import types; state = types.SimpleNamespace(best_model_checkpoint='/nowhere/checkpoint-8')\n"
        "ckptd.transformers.CheckpointCallback().on_log(None, state, None, {'train_runtime': 1.0})"
    )
    assert trainer.do("state.best_model_checkpoint") is None


def test_only_the_newest_checkpoints_are_kept_with_a_limit(trainer, root):
    trainer.do(f"fit({root!r}, 8, save_total_limit=2)", 120)
    until(lambda: folders(root) == ["checkpoint-6", "checkpoint-8"], "the removal of the others")


def test_job_that_was_killed_resumes_from_what_it_had_saved_before(trainer, start, root):
    whole = trainer.do(f"losses(fit({root + '/whole'!r}, 6))", 120)
    killed = start()
    killed.result(200)
    killed.start(f"fit({root + '/killed'!r}, 6, callbacks=[Kill()])")
    assert killed.process.wait(120) == -signal.SIGKILL
    last = trainer.do(f"ckptd.transformers.latest({root + '/killed'!r})", 60)
    assert last == root + "/killed/checkpoint-4"
    assert trainer.do(f"losses(fit({root + '/killed'!r}, 6, resume={last!r}))", 120) == whole


def flip(path):
    with open(path, "r+b") as file:
        file.seek(-50, os.SEEK_END)
        byte = file.read(1)
        file.seek(-50, os.SEEK_END)
        file.write(bytes([byte[0] ^ 0x40]))


def make(path, source=None, without=(), cut=None):
    """Makes a folder, out of files of another one; `cut` is left half."""
    os.mkdir(path)
    for name in os.listdir(source) if source else []:
        if name != ".ckptd" and name not in without:
            shutil.copy(f"{source}/{name}", f"{path}/{name}")
    if cut:
        os.truncate(f"{path}/{cut}", os.path.getsize(f"{path}/{cut}") // 2)


@pytest.fixture(scope="module")
def trained(trainer, session_folder):
    """A root of ckptd with the checkpoints 2 and 4, and one of the Trainer itself."""
    root = os.path.join(session_folder, "trained")
    for side in ("ours", "stock"):
        trainer.do(f"fit('{root}/{side}', 4, plugin={side == 'ours'})", 120)
    return root


# What is done to a root whose checkpoint 4 is whole, and the checkpoint that is the latest then.
DAMAGES = {
    "nothing": (lambda root, stock: None, 4),
    "empty folder": (lambda root, stock: make(root + "/checkpoint-6"), 4),
    "a file": (lambda root, stock: open(root + "/checkpoint-6", "w").close(), 4),
    "torn weights": (lambda root, stock: make(root + "/checkpoint-6", stock, ["trainer_state.json"], "model.safetensors"), 4),
    "torn optimizer": (lambda root, stock: make(root + "/checkpoint-6", stock, cut="optimizer.pt"), 4),
    "no state": (lambda root, stock: make(root + "/checkpoint-6", stock, ["trainer_state.json"]), 4),
    "no weights": (lambda root, stock: make(root + "/checkpoint-6", stock, ["model.safetensors"]), 4),
    "whole one of the Trainer": (lambda root, stock: make(root + "/checkpoint-6", stock), 6),
    "damaged weights": (lambda root, stock: flip(root + "/checkpoint-4/model.safetensors"), 2),
    "damaged optimizer": (lambda root, stock: flip(root + "/checkpoint-4/optimizer.pt"), 2),
    "no manifest": (lambda root, stock: shutil.rmtree(root + "/checkpoint-4/.ckptd"), 2),
    "damaged manifest": (lambda root, stock: os.truncate(root + "/checkpoint-4/.ckptd/manifest", 20), 2),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_latest_is_the_newest_whole_checkpoint(trainer, trained, root, damage):
    do, step = DAMAGES[damage]
    root += "/copy"
    shutil.copytree(trained + "/ours", root)
    shutil.rmtree(root + "/.ckptd/nodes")  # A root of ckptd, which the daemon does not know yet.
    do(root, trained + "/stock/checkpoint-4")
    assert trainer.do(f"ckptd.transformers.latest({root!r})", 60) == f"{root}/checkpoint-{step}"


def test_damage_of_all_checkpoints_is_an_error_and_of_folders_that_are_none_is_not(trainer, trained, root):
    for name in ("checkpoint-2", "checkpoint-4"):
        shutil.copytree(f"{trained}/ours/{name}", f"{root}/{name}")
        flip(f"{root}/{name}/model.safetensors")
    assert trainer.fails(f"ckptd.transformers.latest({root!r})", 60).kind == "Corrupt"
    for name in ("checkpoint-2", "checkpoint-4"):
        shutil.rmtree(f"{root}/{name}")
        os.mkdir(f"{root}/{name}")
    assert trainer.do(f"ckptd.transformers.latest({root!r})", 60) is None


def resumed_from(root):
    """Notes what the Trainer loads, verified, where it is to find a checkpoint itself; and ends the training there."""
    return (
        "seen = []; method = transformers.Trainer._load_from_checkpoint; load = method.__wrapped__\n"
        "def note(trainer, path, *others): seen.append(path); raise KeyboardInterrupt\n"
        "method.__wrapped__ = note\n"
        f"try: fit({root!r}, 6, resume=True)\n"
        "except KeyboardInterrupt: pass\n"
        "finally: method.__wrapped__ = load\n"
        "seen"
    )


@pytest.mark.parametrize("damage", ["empty folder", "torn optimizer", "no weights", "no manifest"])
def test_trainer_that_finds_a_checkpoint_itself_takes_the_newest_whole_one(trainer, trained, root, damage):
    do, step = DAMAGES[damage]
    root += "/copy"
    shutil.copytree(trained + "/ours", root)
    do(root, trained + "/stock/checkpoint-4")
    assert trainer.do(resumed_from(root), 120) == [f"{root}/checkpoint-{step}"]


def test_trainer_that_finds_no_checkpoint_says_so_as_before(trainer, root):
    assert "No valid checkpoint found" in trainer.fails(f"fit({root!r}, 2, resume=True)", 60).message


def test_wait_outside_of_training_ends_when_all_is_committed(trainer, root):
    trainer.do(
        "class Interrupt(transformers.TrainerCallback):\n"
        "    def on_save(self, args, state, control, **others): raise KeyboardInterrupt\n"
        f"try: fit({root!r}, 4, callbacks=[Interrupt()])\n"
        "except KeyboardInterrupt: ckptd.transformers.wait(60)",
        120,
    )
    assert os.path.exists(root + "/checkpoint-2/.ckptd/manifest")
    trainer.do("ckptd.transformers.wait(0)")
    assert trainer.do(f"os.environ.update(HOME={os.path.dirname(root)!r}); ckptd.transformers.latest('~/{os.path.basename(root)}')") == (
        root + "/checkpoint-2"
    )


def test_trainer_does_not_look_at_what_ckptd_is_removing(trainer, root):
    trainer.do(
        "import os.path; samefile, removal = os.path.samefile, ckptd.transformers.await_removal; seen = []\n"
        "os.path.samefile = lambda one, other: (seen.append(os.path.basename(one)), samefile(one, other))[1]\n"
        "def removing(run):\n"  # As a daemon on a slow disk, which has removed the others, and this one not yet.
        "    removal(run)\n"
        f"    os.makedirs({root + '/checkpoint-1'!r}, exist_ok=True)\n"
        "ckptd.transformers.await_removal, known = removing, ckptd.transformers.unkept\n"
        "ckptd.transformers.unkept = lambda run: [*known(run), 'checkpoint-1']\n"
        "class Better(transformers.TrainerCallback):\n"
        "    def on_evaluate(self, args, state, control, metrics, **others): metrics['eval_loss'] = -float(state.global_step)\n"
        "options = dict(save_total_limit=1, eval_strategy='steps', eval_steps=2, metric_for_best_model='loss')\n"
        f"try: fit({root!r}, 4, callbacks=[Better()], **options)\n"
        "finally:\n"
        "    os.path.samefile, ckptd.transformers.await_removal, ckptd.transformers.unkept = samefile, removal, known",
        120,
    )
    assert "checkpoint-4" in trainer.do("seen") and "checkpoint-1" not in trainer.do("seen")


def test_trainer_reads_no_damaged_checkpoint(trainer, trained, root):
    shutil.copytree(trained + "/ours", root + "/copy")
    assert trainer.do(f"ckptd.transformers.latest({root + '/copy'!r})", 60) == root + "/copy/checkpoint-4"
    flip(root + "/copy/checkpoint-4/model.safetensors")
    assert trainer.fails(f"fit({root + '/copy'!r}, 6, resume={root + '/copy/checkpoint-4'!r})", 120).kind == "Corrupt"
    assert trainer.do(resumed_from(root + "/copy"), 120) == [root + "/copy/checkpoint-2"]
    trainer.do(
        f"made = trainer({root + '/copy'!r}, 6, [ckptd.transformers.CheckpointCallback()])\n"
        f"made.state.best_model_checkpoint = {root + '/copy/checkpoint-4'!r}"
    )
    assert trainer.fails("made._load_best_model()").kind == "Corrupt"


def test_error_while_the_trainer_writes_leaves_no_checkpoint(trainer, root):
    error = trainer.fails(
        f"made = trainer({root!r}, 2, [ckptd.transformers.CheckpointCallback()])\n"
        "def broken(*a, **k): raise OSError('no room for the weights')\n"
        "made.model.save_pretrained = broken; made.train()"
    )
    assert error.kind == "OSError" and folders(root) == []
    trainer.do("made.callback_handler.callbacks.clear()")
    assert trainer.do("made._get_output_dir(trial=None)") == root


def test_what_the_callback_does_not_do_is_refused_with_what_to_do(trainer, root):
    trainer.do("callback = ckptd.transformers.CheckpointCallback()")
    for option, words in (("fsdp='x'", "leave fsdp out"), ("deepspeed={}", "install()"), ("push_to_hub=True", "leave push_to_hub out")):
        name = option.partition("=")[0]
        values = "**{**dict.fromkeys(['fsdp', 'deepspeed', 'push_to_hub']), %r: True}" % name
        error = trainer.fails(f"import types; callback.on_init_end(types.SimpleNamespace({values}), None, None)")
        assert error.kind == "ValueError" and words in error.message
    values = "deepspeed=None, fsdp=None, push_to_hub=None, output_dir='s3://bucket/run'"
    error = trainer.fails(f"callback.on_init_end(types.SimpleNamespace({values}), None, None)")
    assert error.kind == "Refused" and 'upload=ckptd.Upload("s3://bucket/run")' in error.message
    assert trainer.do(f"ckptd.transformers.latest({root + '/nowhere'!r})") is None
    assert trainer.do(f"ckptd.transformers.latest({root!r})") is None


@ON_ONE_AND_TWO_NODES
def test_ranks_of_ddp_save_one_checkpoint_and_resume_from_it(start, nodes, root):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "CKPTD_LAUNCH_ID": "trainer-ddp"}
    ranks = Ranks([start(RANK=str(rank), CKPTD_ENDPOINT=nodes.endpoint(rank), LOCAL_RANK=str(rank), **places) for rank in range(2)])
    for process in ranks.processes:
        process.result(200)
    whole = ranks.do(f"losses(fit({root + '/stock'!r}, 4, plugin=False, ddp_backend='gloo'))", 200)
    ranks.do(f"fit({root + '/ours'!r}, 2, ddp_backend='gloo')", 200)
    stock = sorted(os.listdir(root + "/stock/checkpoint-2"))
    assert "rng_state_1.pth" in stock and sorted(os.listdir(root + "/ours/checkpoint-2")) == [".ckptd", *stock]
    ranks.do(f"last = ckptd.transformers.latest({root + '/ours'!r})")
    assert ranks.do(f"losses(fit({root + '/ours'!r}, 4, resume=last, ddp_backend='gloo'))", 200) == whole
