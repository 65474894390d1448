"""The Trainer of transformers, with ckptd's callback. The model is a small OPT, made from a configuration."""

import os
import signal
import socket

import pytest

from harness import Ranks, Trainer, until

IMPORTS = """
import json, signal, torch, transformers, ckptd.transformers
transformers.logging.set_verbosity_error()
ckptd.transformers.configure(os.environ["CKPTD_ENDPOINT"])

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
        made[-1].start("None")
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
    assert trainer.do(f"ckptd.transformers.latest({root + '/nowhere'!r})") is None
    assert trainer.do(f"ckptd.transformers.latest({root!r})") is None


def test_ranks_of_ddp_save_one_checkpoint_and_resume_from_it(start, root):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "CKPTD_LAUNCH_ID": "trainer-ddp"}
    ranks = Ranks([start(RANK=str(rank), LOCAL_RANK=str(rank), **places) for rank in range(2)])
    for process in ranks.processes:
        process.result(200)
    whole = ranks.do(f"losses(fit({root + '/stock'!r}, 4, plugin=False, ddp_backend='gloo'))", 200)
    ranks.do(f"fit({root + '/ours'!r}, 2, ddp_backend='gloo')", 200)
    stock = sorted(os.listdir(root + "/stock/checkpoint-2"))
    assert "rng_state_1.pth" in stock and sorted(os.listdir(root + "/ours/checkpoint-2")) == [".ckptd", *stock]
    ranks.do(f"last = ckptd.transformers.latest({root + '/ours'!r})")
    assert ranks.do(f"losses(fit({root + '/ours'!r}, 4, resume=last, ddp_backend='gloo'))", 200) == whole
