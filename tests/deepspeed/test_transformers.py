"""Models and the Trainer of transformers, with DeepSpeed and ckptd. The model is a small OPT, made from a configuration."""

import os
import pathlib

import pytest

from harness import until

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMPORTS = (
    f"sys.path[:0] = [{str(ROOT)!r}] if {str(ROOT)!r} not in sys.path else []\n"
    "import transformers; transformers.logging.set_verbosity_error(); transformers.logging.disable_progress_bar()\n"
    "from examples.training import train_deepspeed as example\n"
)


@pytest.fixture
def with_models(pair):
    pair.do(IMPORTS, 120)
    yield pair
    pair.do("torch.use_deterministic_algorithms(False)")


@pytest.mark.parametrize("stage", [1, 3])
def test_model_is_saved_as_save_pretrained_does_and_loads_from_the_checkpoint(with_models, root, stage):
    save = (
        "torch.manual_seed(0); model = example.small_opt(); weights = states.copied(model.state_dict())\n"
        f"engine = states.initialize(model, model.parameters(), states.config({stage}), None)\n"
        f"run = ckptd.deepspeed.run({root!r})\n"
        "class Tokenizer:\n"
        "    def save_pretrained(self, folder):\n"
        "        os.mkdir(folder + '/sub'); open(folder + '/sub/tokens.txt', 'w').write('a b')\n"
        "ckptd.deepspeed.save_pretrained(engine, run, 'a', tokenizer=Tokenizer(), step=5, max_shard_size='100KB').wait()"
    )
    with_models.do(save)
    names = sorted(os.listdir(f"{root}/a"))
    assert [name for name in names if not name.endswith(".safetensors")] == [
        ".ckptd",
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "sub",
    ]
    assert len(names) > 6
    load = f"transformers.OPTForCausalLM.from_pretrained('{root}/a').state_dict()"
    assert with_models.do(f"states.differences(weights, {load})") == [[], []]
    # A model without an engine, and one whose files cannot be written: then no rank has a checkpoint.
    with_models.do(f"ckptd.deepspeed.save_pretrained(transformers.OPTForCausalLM.from_pretrained('{root}/a'), run, 'b').wait()")
    assert with_models.do(f"states.differences(weights, {load.replace('/a', '/b')})") == [[], []]
    errors = with_models.fail("ckptd.deepspeed.save_pretrained(example.small_opt(), run, 'c', tokenizer=7).wait()")
    assert [error.kind for error in errors] == ["AttributeError", "CheckpointFailed"]
    assert sorted(os.listdir(root)) == [".ckptd", "a", "b"]


def test_model_without_save_pretrained_is_refused(pair, root):
    errors = pair.fail(f"ckptd.deepspeed.save_pretrained(torch.nn.Linear(2, 2), ckptd.deepspeed.run({root!r}), 'a')")
    assert all(error.kind == "TypeError" and "Linear" in error.message for error in errors)


def test_example_resumes_with_the_same_losses(with_models, root):
    whole = with_models.do(f"example.train('{root}/whole', 2, 3, 1)[1]", 120)
    with_models.do(f"example.train('{root}/parts', 2, 2, 1)[1]", 120)
    assert with_models.do(f"example.train('{root}/parts', 2, 3, 1)[1]", 120) == [losses[2:] for losses in whole]


TRAINER = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, number): return dict.fromkeys(["input_ids", "labels"], torch.full((8,), number))

def train(root, stage, steps, resume):
    settings = states.config(stage, scheduler={"params": {"warmup_num_steps": "auto"}})
    arguments = transformers.TrainingArguments(
        root, deepspeed=settings, use_cpu=True, max_steps=steps, save_steps=2, save_total_limit=2, logging_steps=1,
        per_device_train_batch_size=2, report_to=[], optim="adamw_torch", disable_tqdm=True)
    torch.manual_seed(0)
    trainer = transformers.Trainer(example.small_opt(), arguments, train_dataset=Data())
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
"""


def test_trainer_of_transformers_saves_removes_and_resumes(with_models, root):
    with_models.do(f"{TRAINER}\nckptd.deepspeed.install()")
    first = with_models.do(f"train({root!r}, 2, 6, False)", 120)
    assert sorted(os.listdir(root)) == ["checkpoint-4", "checkpoint-6"]
    until(lambda: os.path.exists(f"{root}/checkpoint-6/global_step6/.ckptd/manifest"), "the commit")
    assert with_models.do(f"train({root!r}, 2, 8, True)", 120)[0][:6] == first[0]
    assert sorted(os.listdir(root)) == ["checkpoint-6", "checkpoint-8"]


ACCELERATE = """
import accelerate

def train(root, steps, resume):
    accelerate.state.AcceleratorState._reset_state(True)
    settings = {key: value for key, value in states.config(2).items() if key != "scheduler"}
    accelerator = accelerate.Accelerator(deepspeed_plugin=accelerate.DeepSpeedPlugin(hf_ds_config=settings))
    torch.manual_seed(0)
    model = states.Net()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    if resume:
        accelerator.load_state(root)
    losses = []
    for _ in range(steps):
        torch.manual_seed(10 * model.global_steps + dist.get_rank())
        loss = model(torch.randn(2, 13)).square().mean()
        accelerator.backward(loss)
        losses.append(loss.item())
    accelerator.save_state(root)
    return losses
"""


def test_accelerate_saves_and_resumes(with_models, root):
    with_models.do(f"{ACCELERATE}\nckptd.deepspeed.install()")
    whole = with_models.do(f"train('{root}/whole', 4, False)")
    assert with_models.do(f"train('{root}/parts', 2, False)") == [losses[:2] for losses in whole]
    assert with_models.do(f"train('{root}/parts', 2, True)") == [losses[2:] for losses in whole]
    assert "random_states_0.pkl" in os.listdir(f"{root}/parts")
    until(lambda: os.path.exists(f"{root}/parts/pytorch_model/.ckptd/manifest"), "the commit")
