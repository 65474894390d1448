"""Lightning's Trainer with ckptd's CheckpointIO."""

import os
import shutil
import signal

import pytest

from harness import Trainer, until

IMPORTS = """
import warnings; warnings.filterwarnings("ignore")
import logging; logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import pytorch_lightning as pl, signal
from pytorch_lightning.callbacks import ModelCheckpoint
import ckptd.lightning

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 2)
    def training_step(self, batch, number):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.arange(4.0).repeat(16, 1), batch_size=2)

def fit(folder, steps, resume=None, plugin=True, kept=1, callbacks=()):
    keeper = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=kept, filename="{step}")
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_progress_bar=False, enable_model_summary=False,
        plugins=[ckptd.lightning.CheckpointIO()] if plugin else [], callbacks=[keeper, *callbacks], default_root_dir=folder)
    model = Model()
    trainer.fit(model, ckpt_path=resume)
    return model.layer.weight.tolist(), keeper.best_model_path

def fit_with(folder, steps, resume=None, plugin=True, look=None, **options):
    keeper = ModelCheckpoint(folder, every_n_train_steps=1, **options)
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_progress_bar=False, enable_model_summary=False,
        plugins=[ckptd.lightning.CheckpointIO()] if plugin else [], callbacks=[*([look] if look else []), keeper], default_root_dir=folder)
    trainer.fit(Model(), ckpt_path=resume)
    return trainer

class Look(pl.Callback):
    # Notes, before each step, whether last.ckpt is a link that leads to nothing.
    def __init__(self, path): self.path, self.found = path, []
    def on_train_batch_start(self, trainer, *rest):
        self.found.append("dangling" if os.path.islink(self.path) and not os.path.exists(self.path) else os.path.exists(self.path))

class Kill(pl.Callback):
    def on_train_batch_end(self, trainer, model, outputs, batch, number):
        if trainer.global_step == 5: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def start(daemon):
    """Starts a process that ends with the tests of this file."""
    made = []

    def start():
        made.append(Trainer(daemon.endpoint, {"CKPTD_TEST_IMPORTS": IMPORTS}))
        made[-1].do("None", 200)
        return made[-1]

    yield start
    for process in made:
        process.close()


@pytest.fixture(scope="module")
def trainer(start):
    return start()


def checkpoints(root):
    return sorted(name for name in os.listdir(root) if name != ".ckptd")


def test_fit_keeps_what_model_checkpoint_keeps_and_a_resumed_one_ends_with_the_same_weights(trainer, root):
    whole, _ = trainer.do(f"fit({root + '/whole'!r}, 6)", 120)
    _, newest = trainer.do(f"fit({root + '/part'!r}, 4)", 120)
    assert checkpoints(root + "/part") == ["step=4.ckpt"] and newest.endswith("step=4.ckpt")
    assert sorted(os.listdir(newest)) == [".ckptd", "checkpoint.ckpt"]
    resumed, _ = trainer.do(f"fit({root + '/part'!r}, 6, resume={newest!r})", 120)
    assert resumed == whole
    # And without ckptd, from the file that it has committed.
    stock, _ = trainer.do(f"fit({root + '/stock'!r}, 6, resume={newest.replace('step=4', 'step=6') + '/checkpoint.ckpt'!r}, plugin=False)", 120)
    assert stock == whole


def test_checkpoint_of_lightning_itself_is_loaded_and_removed(trainer, root):
    whole, _ = trainer.do(f"fit({root + '/whole'!r}, 6)", 120)
    _, newest = trainer.do(f"fit({root + '/stock'!r}, 4, plugin=False)", 120)
    assert os.path.isfile(newest)
    resumed, _ = trainer.do(f"fit({root + '/ours'!r}, 6, resume={newest!r})", 120)
    assert resumed == whole
    trainer.do(f"ckptd.lightning.CheckpointIO().remove_checkpoint({newest!r})")
    assert not os.path.exists(newest)


def test_what_was_saved_before_the_job_was_killed_is_committed_and_resumed(trainer, start, root):
    whole, _ = trainer.do(f"fit({root + '/whole'!r}, 6)", 120)
    killed = start()
    killed.start(f"fit({root + '/killed'!r}, 6, kept=-1, callbacks=[Kill()])")
    assert killed.process.wait(120) == -signal.SIGKILL
    until(lambda: os.path.exists(root + "/killed/step=4.ckpt/.ckptd/manifest"), "the commit")
    resumed, _ = trainer.do(f"fit({root + '/killed'!r}, 6, resume={root + '/killed/step=4.ckpt'!r}, kept=-1)", 120)
    assert resumed == whole
    assert checkpoints(root + "/killed") == ["step=2.ckpt", "step=4.ckpt", "step=6.ckpt"]


def test_link_is_resumed_from_verified_and_a_copy_without_its_manifest_with_a_warning(trainer, root):
    whole, _ = trainer.do(f"fit({root + '/whole'!r}, 6)", 120)
    trainer.do(f"fit({root + '/part'!r}, 4)", 120)
    os.symlink("step=4.ckpt", root + "/part/best.ckpt")
    resumed, _ = trainer.do(f"fit({root + '/part'!r}, 6, kept=-1, resume={root + '/part/best.ckpt'!r})", 120)
    assert resumed == whole
    shutil.copytree(root + "/part/step=4.ckpt", root + "/copy.ckpt", ignore=shutil.ignore_patterns(".ckptd"))
    trainer.do(
        "import logging; said = []; handler = logging.Handler(); handler.emit = lambda record: said.append(record.getMessage())\n"
        "logging.getLogger('ckptd').addHandler(handler)"
    )
    resumed, _ = trainer.do(f"fit({root + '/other'!r}, 6, resume={root + '/copy.ckpt'!r})", 120)
    assert resumed == whole
    assert [text for text in trainer.do("said") if root + "/copy.ckpt" in text and "read unverified" in text]
    shutil.copytree(root + "/copy.ckpt", root + "/part/copy.ckpt")
    error = trainer.fails(f"fit({root + '/other'!r}, 6, resume={root + '/part/copy.ckpt'!r})", 120)
    assert error.kind == "Corrupt" and "written by ckptd" in error.message
    flipped = root + "/part/step=4.ckpt/checkpoint.ckpt"
    with open(flipped, "r+b") as file:
        file.seek(os.path.getsize(flipped) // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    assert trainer.fails(f"fit({root + '/part'!r}, 6, resume={root + '/part/best.ckpt'!r})", 120).kind == "Corrupt"


@pytest.mark.parametrize(
    "options",
    [
        "filename='model', monitor='step', mode='max', save_top_k=-1",
        "filename='model', monitor='step', mode='max', save_top_k=2",
        "filename='model', save_top_k=-1",
        "filename='model', save_top_k=1",
        "filename='{step}', save_top_k=1, save_last=True",
        "filename='{step}', save_top_k=0, save_last=True",
    ],
)
def test_names_are_those_of_lightning_also_while_saves_are_in_flight(trainer, root, options):
    for steps, resume in ((4, None), (6, "last")):  # The second job finds the names of the first.
        for side in ("ours", "stock"):
            resumed = resume if "save_last" in options else None
            trainer.do(f"fit_with('{root}/{side}', {steps}, resume={resumed!r}, plugin={side == 'ours'}, {options})", 120)
        found = [checkpoints(f"{root}/{side}") for side in ("ours", "stock")]
        assert found[0] == found[1] and found[0]


def test_link_to_the_last_checkpoint_never_leads_to_nothing_and_is_resumed_from(trainer, root):
    options = "filename='{step}', monitor='step', mode='max', save_top_k=2, save_last='link'"
    trainer.do(f"look = Look({root + '/last.ckpt'!r}); fit_with({root!r}, 4, look=look, {options})", 120)
    assert trainer.do("look.found") == [False, True, True, True]  # Before the first step there is nothing.
    assert os.readlink(root + "/last.ckpt") == "step=4.ckpt" and checkpoints(root) == ["last.ckpt", "step=3.ckpt", "step=4.ckpt"]
    for resume in ("last", root + "/last.ckpt"):
        steps = 5 if resume == "last" else 6
        assert trainer.do(f"fit_with({root!r}, {steps}, resume={resume!r}, {options}).global_step", 120) == steps
        assert os.path.exists(root + "/last.ckpt/checkpoint.ckpt")


def test_link_stays_where_it_was_if_the_new_checkpoint_fails(trainer, root):
    options = "filename='{step}', monitor='step', mode='max', save_top_k=-1, save_last='link'"
    trainer.do(f"made = fit_with({root!r}, 1, {options})", 120)
    trainer.do(
        "io = ckptd.lightning.CheckpointIO()\n"
        f"io.link({root + '/failed.ckpt'!r}, {root + '/last.ckpt'!r})"
    )
    assert os.readlink(root + "/last.ckpt") == "step=1.ckpt"
    trainer.do(f"io.remove_checkpoint({root + '/last.ckpt'!r})")
    assert checkpoints(root) == ["step=1.ckpt"]


def test_checkpoint_that_is_saved_after_fit_is_there_when_the_call_returns(trainer, root):
    trainer.do(f"made = fit_with({root!r}, 1, filename='a'); made.save_checkpoint({root + '/final.ckpt'!r})", 120)
    assert os.path.exists(root + "/final.ckpt/.ckptd/manifest")
