"""Lightning's Trainer with ckptd's CheckpointIO."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys

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

def fit_with(folder, steps, resume=None, plugin=True, look=None, io=None, **options):
    keeper = ModelCheckpoint(folder, **{"every_n_train_steps": 1, **options})
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_progress_bar=False, enable_model_summary=False,
        plugins=[io or ckptd.lightning.CheckpointIO()] if plugin else [], callbacks=[*([look] if look else []), keeper], default_root_dir=folder)
    trainer.fit(Model(), ckpt_path=resume)
    return trainer

def weights_in(path, **options):
    return torch.load(path, **options)["state_dict"]["layer.weight"].tolist()

class At(pl.Callback):
    # Calls function(trainer) at the end of one step.
    def __init__(self, step, function): self.step, self.function, self.found = step, function, None
    def on_train_batch_end(self, trainer, *rest):
        if trainer.global_step == self.step: self.found = self.function(trainer)

said = []
handler = logging.Handler(); handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("ckptd").addHandler(handler)

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


@pytest.fixture(scope="module")
def unified(tmp_path_factory):
    """A folder with the distribution `lightning`, which has the modules of pytorch_lightning under other names."""
    folder = tmp_path_factory.mktemp("unified")
    (folder / "lightning").mkdir()
    (folder / "lightning/__init__.py").touch()
    for stock, name in (("pytorch_lightning", "pytorch"), ("lightning_fabric", "fabric")):
        origin = os.path.dirname(importlib.util.find_spec(stock).origin)
        made = shutil.copytree(origin, folder / "lightning" / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in made.rglob("*.py"):
            text = path.read_text().replace("pytorch_lightning", "lightning.pytorch")
            path.write_text(text.replace("lightning_fabric", "lightning.fabric"))
    return str(folder)


@pytest.mark.parametrize(
    "imports",
    [
        "import ckptd.lightning; import lightning.pytorch as pl",
        "import lightning.pytorch as pl; import ckptd.lightning",
        "import pytorch_lightning; import ckptd.lightning; import lightning.pytorch as pl",
        "import lightning.pytorch; import ckptd.lightning; import pytorch_lightning as pl",
    ],
)
def test_plugin_serves_the_name_of_lightning_that_the_trainer_has_whatever_is_imported_first(daemon, root, unified, imports):
    package = "pytorch_lightning" if "pytorch_lightning as pl" in imports else "lightning.pytorch"
    before = "import pytorch_lightning as pl, signal\nfrom pytorch_lightning.callbacks"
    assert before in IMPORTS
    environment = {
        "CKPTD_TEST_IMPORTS": IMPORTS.replace(before, f"import signal\n{imports}\nfrom {package}.callbacks"),
        "PYTHONPATH": os.pathsep.join([unified, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    process = Trainer(daemon.endpoint, environment)
    try:
        process.do(f"weights = fit({root!r}, 4)[0]", 200)
        assert checkpoints(root) == ["step=4.ckpt"] and committed(root) == ["step=4.ckpt"]
        assert process.do(f"weights_in({root!r} + '/step=4.ckpt') == weights")
        assert process.do(f"fit({root!r}, 6, resume={root!r} + '/step=4.ckpt')[1]", 200) == root + "/step=6.ckpt"
        wrapped = f"{package}.plugins.io.AsyncCheckpointIO(ckptd.lightning.CheckpointIO())"
        error = process.fails(f"import {package}.plugins.io\nfit_with({root!r}, 1, io={wrapped})", 200)
        assert "leave AsyncCheckpointIO out" in str(error)
    finally:
        process.close()


def checkpoints(root):
    return sorted(name for name in os.listdir(root) if not name.startswith(".ckptd"))


def behind(path):
    """The data file of the committed directory behind a checkpoint with a simple name."""
    folder, name = os.path.split(path)
    return f"{folder}/.ckptd-lightning/{name}/{name}"


def committed(folder):
    """The directories that ckptd has committed in a folder."""
    return sorted(name for name in os.listdir(folder + "/.ckptd-lightning") if not name.startswith("."))


def flip(path, seen=True):
    """Flips a bit in the middle of a file. If that is not seen, as one of a disk, the daemon's memory has the right bytes."""
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + seen))


def test_fit_keeps_what_model_checkpoint_keeps_and_a_resumed_one_ends_with_the_same_weights(trainer, root):
    whole, _ = trainer.do(f"fit({root + '/whole'!r}, 6)", 120)
    _, newest = trainer.do(f"fit({root + '/part'!r}, 4)", 120)
    assert checkpoints(root + "/part") == ["step=4.ckpt"] and newest.endswith("step=4.ckpt")
    assert os.path.isfile(newest) and not os.path.islink(newest)
    assert os.stat(newest).st_nlink == 2 and os.path.samefile(newest, behind(newest))  # The bytes are there once.
    resumed, _ = trainer.do(f"fit({root + '/part'!r}, 6, resume={newest!r})", 120)
    assert resumed == whole


def test_checkpoint_is_a_file_that_lightning_and_torch_read_without_ckptd(trainer, root):
    whole, newest = trainer.do(f"fit({root + '/ours'!r}, 6)", 120)
    assert trainer.do(f"weights_in({newest!r})") == whole
    assert trainer.do(f"weights_in({newest!r}, mmap=True)") == whole
    assert trainer.do(f"Model.load_from_checkpoint({newest!r}).layer.weight.tolist()") == whole
    resumed, _ = trainer.do(f"fit({root + '/stock'!r}, 6, resume={newest!r}, plugin=False)", 120)
    assert resumed == whole


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
    until(lambda: os.path.exists(root + "/killed/.ckptd-lightning/step=4.ckpt/.ckptd/manifest"), "the commit")
    resumed, _ = trainer.do(f"fit({root + '/killed'!r}, 6, resume={root + '/killed/step=4.ckpt'!r}, kept=-1)", 120)
    assert resumed == whole
    assert checkpoints(root + "/killed") == ["step=2.ckpt", "step=4.ckpt", "step=6.ckpt"]


def test_link_is_resumed_from_verified_and_a_copy_without_its_manifest_with_a_warning(trainer, root):
    whole, _ = trainer.do(f"fit({root + '/whole'!r}, 6)", 120)
    trainer.do(f"fit({root + '/part'!r}, 4)", 120)
    os.symlink("step=4.ckpt", root + "/part/best.ckpt")
    resumed, _ = trainer.do(f"fit({root + '/part'!r}, 6, kept=-1, resume={root + '/part/best.ckpt'!r})", 120)
    assert resumed == whole
    for copy in (root + "/copy.ckpt", root + "/part/copy.ckpt"):
        shutil.copyfile(root + "/part/step=4.ckpt", copy)
        resumed, _ = trainer.do(f"said.clear(); fit({root + '/other'!r}, 6, resume={copy!r})", 120)
        assert resumed == whole
        assert [text for text in trainer.do("said") if copy in text and "read unverified" in text]
    flip(root + "/part/step=4.ckpt")
    assert trainer.fails(f"fit({root + '/other'!r}, 6, resume={root + '/part/best.ckpt'!r})", 120).kind == "Corrupt"
    os.rename(root + "/part/step=4.ckpt", root + "/part/other.ckpt")
    os.rename(root + "/part", root + "/moved")
    assert trainer.fails(f"fit({root + '/other'!r}, 6, resume={root + '/moved/other.ckpt'!r})", 120).kind == "Corrupt"


def test_copied_folder_without_what_ckptd_has_there_is_resumed_from(trainer, root):
    whole, _ = trainer.do(f"fit({root + '/whole'!r}, 6)", 120)
    trainer.do(f"fit_with({root + '/part'!r}, 4, filename='{{step}}', save_last=True)", 120)
    shutil.copytree(root + "/part", root + "/copy", ignore=shutil.ignore_patterns(".ckptd*"))
    assert trainer.do(f"fit_with({root + '/copy'!r}, 6, resume='last', save_last=True).model.layer.weight.tolist()", 120) == whole
    shutil.copytree(root + "/part", root + "/copy2")  # Two files of each checkpoint are there now.
    assert trainer.do(f"fit_with({root + '/copy2'!r}, 6, resume='last', save_last=True).model.layer.weight.tolist()", 120) == whole
    assert os.path.samefile(root + "/copy2/last.ckpt", behind(root + "/copy2/last.ckpt"))  # Now one again.


def test_checkpoint_without_its_manifest_is_refused_by_its_file(trainer, root):
    _, newest = trainer.do(f"fit({root!r}, 2)", 120)
    os.unlink(os.path.dirname(behind(newest)) + "/.ckptd/manifest")
    error = trainer.fails(f"fit({root + '/other'!r}, 4, resume={newest!r})", 120)
    assert error.kind == "Corrupt" and "written by ckptd" in error.message


def test_checkpoint_is_restored_from_memory_unless_the_file_was_written_to(trainer, root):
    whole, newest = trainer.do(f"fit({root!r}, 2)", 120)
    flip(newest, seen=False)
    load = f"ckptd.lightning.CheckpointIO().load_checkpoint({newest!r})['state_dict']['layer.weight'].tolist()"
    assert trainer.do(load) == whole
    os.utime(newest)
    error = trainer.fails(load)
    assert error.kind == "Corrupt" and f"written to {newest} on purpose" in error.message


def test_checkpoint_that_an_older_version_saved_as_a_directory_is_resumed_from_replaced_and_removed(trainer, root):
    whole, newest = trainer.do(f"fit({root + '/whole'!r}, 6)", 120)
    _, file = trainer.do(f"fit({root + '/part'!r}, 4)", 120)
    folder = root + "/old"
    trainer.do(
        f"run, state = ckptd.connect().run({folder!r}, rank=0, world_size=1), torch.load({file!r})\n"
        "for tag in ('last.ckpt', 'step=4.ckpt'): run.save(tag, files={'checkpoint.ckpt': state}).wait('committed', 60)"
    )
    assert os.path.isdir(folder + "/last.ckpt")
    options = "filename='{step}', save_last=True, save_top_k=-1, enable_version_counter=False"
    made = f"made = fit_with({folder!r}, 6, resume='last', {options})"
    assert trainer.do(f"{made}; made.model.layer.weight.tolist()", 120) == whole
    assert os.path.isfile(folder + "/last.ckpt") and os.path.isdir(folder + "/step=4.ckpt")
    assert trainer.do(f"weights_in({folder + '/last.ckpt'!r})") == whole
    trainer.do("run.save('newest', files={}).wait('committed', 60)")  # The daemon keeps the newest one of a root.
    trainer.do(f"made.strategy.remove_checkpoint({folder + '/step=4.ckpt'!r})")
    assert not os.path.exists(folder + "/step=4.ckpt")


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
        assert os.path.isfile(root + "/last.ckpt")


def test_link_does_not_go_back_when_an_older_save_is_heard_of_after_a_newer_one(trainer, root):
    trainer.do(
        f"flying = {{{root!r} + '/' + name for name in ('a', 'b', 'c')}}; last = {root!r} + '/last.ckpt'\n"
        "for path in [*flying, last]: open(path, 'w').close()\n"
        "io = ckptd.lightning.CheckpointIO(); io._is_in_flight = lambda path: path in flying\n"
        f"for name in 'abc': io.link({root!r} + '/' + name, last)"
    )
    for ended, leads_to in (("b", "b"), ("a", "b"), ("c", "c")):  # Saves are committed in order; their answers may overtake.
        trainer.do(f"flying.remove({root!r} + '/{ended}'); io._settle()")
        assert os.readlink(root + "/last.ckpt") == leads_to
    assert trainer.do("io._links") == {}


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
    assert os.path.isfile(root + "/final.ckpt") and os.path.samefile(root + "/final.ckpt", behind(root + "/final.ckpt"))


def test_wait_returns_when_the_files_of_saves_within_fit_are_there(trainer, root):
    path = root + "/mine.ckpt"
    for argument in ("", f"path={path!r}"):
        code = (
            f"io = ckptd.lightning.CheckpointIO()\n"
            f"def save(trainer): trainer.save_checkpoint({path!r}); io.wait({argument}); return os.path.isfile({path!r})\n"
            f"look = At(2, save); fit_with({root!r}, 3, io=io, look=look, save_top_k=0); look.found"
        )
        assert trainer.do(code, 120) is True
        os.unlink(path)
    save = f"def save(trainer): trainer.save_checkpoint({root + '/hpc_ckpt_1.ckpt'!r}); return os.path.isfile({root + '/hpc_ckpt_1.ckpt'!r})"
    # SLURM ends the job after this one.
    assert trainer.do(f"{save}\nlook = At(2, save); fit_with({root!r}, 3, look=look, save_top_k=0); look.found", 120) is True


def test_wait_ends_at_its_timeout(trainer, root):
    code = (
        "from unittest import mock; io = ckptd.lightning.CheckpointIO(); ended = ckptd.lightning._Saving.has_ended\n"
        f"def save(trainer):\n    with mock.patch.object(ckptd.lightning._Saving, 'has_ended', lambda saving: False):\n"
        f"        trainer.save_checkpoint({root + '/a.ckpt'!r}); io.wait(timeout=0.01)\n"
        f"fit_with({root!r}, 3, io=io, look=At(2, save), save_top_k=0)"
    )
    error = trainer.fails(code, 120)
    assert error.kind == "WaitTimeout" and root + "/a.ckpt" in error.message


# ---- names


@pytest.mark.parametrize(
    "name",
    [
        "my model 100% {step}",
        "{step}-{train/loss:.2f}",
        "-{step}",
        ".{step}",
        "@{step}(final)[1]",
        "Modell-größe-\u6a21\u578b-{step}",
        "latest-{step}" + "x" * 230,
        "a/b/{step}/c",
        "latest",
    ],
)
def test_every_name_that_lightning_makes_is_saved_and_resumed_from(trainer, root, name):
    log = "Model.log_of = lambda self, batch, number: (self.log('train/loss', 0.5), Model.step_of(self, batch, number))[1]"
    trainer.do(f"Model.step_of = getattr(Model, 'step_of', Model.training_step); {log}; Model.training_step = Model.log_of")
    found = {}
    for side in ("ours", "stock"):
        folder = f"{root}/{side}"
        options = f"filename={name!r}, save_top_k=1, monitor='step', mode='max', every_n_train_steps=2"
        made = f"made = fit_with({folder!r}, 4, plugin={side == 'ours'}, {options})"
        best = trainer.do(f"{made}; made.checkpoint_callback.best_model_path", 120)
        assert os.path.isfile(best)
        assert trainer.do(f"fit_with({root + '/next'!r}, 5, resume={best!r}, plugin={side == 'ours'}).global_step", 120) == 5
        found[side] = [sorted(names) for at, _, names in os.walk(folder) if ".ckptd" not in at]
    assert found["ours"] == found["stock"]
    roots = [at for at, folders, _ in os.walk(root + "/ours") if ".ckptd-lightning" in folders]
    assert roots == [root + "/ours"]  # Not one in each folder that a slash has made.


@pytest.mark.parametrize(
    ("folder", "name", "why"),
    [
        ("", "a\nb", "control character"),
        ("", "x" * 256, "261 bytes"),
        ("", "x\udcff", "not valid UTF-8"),
        ("memory://ckpts", "a", "a URL"),
    ],
)
def test_name_that_is_not_possible_is_refused_before_training(trainer, root, folder, name, why):
    look = "look = Look('/x')"
    error = trainer.fails(f"{look}; fit_with({folder or root!r}, 3, look=look, filename={name!r})", 120)
    assert error.kind == "Refused" and why in error.message
    assert trainer.do("look.found") == []


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("file", "is a file and no directory"),
        ("file/below", "/file is a file and no directory"),
        ("/proc/sys/kernel/random", "this user may not write there"),  # Nor may root.
        ("/proc/sys/kernel/random/a/b", "it cannot be made in /proc/sys/kernel/random"),
    ],
)
def test_folder_that_takes_no_checkpoint_is_refused_before_training(trainer, root, folder, why):
    open(root + "/file", "w").close()
    where = os.path.join(root, folder)
    error = trainer.fails(f"look = Look('/x'); fit_with({where!r}, 3, look=look)", 120)
    assert error.kind == "Refused" and why in error.message and "ModelCheckpoint" in error.message, error
    assert trainer.do("look.found") == []
    trainer.do(f"fit_with({where!r}, 3, save_top_k=0)", 120)  # It saves nothing there.


def test_folder_is_made_by_the_first_save(trainer, root):
    folder = root + "/a/b"
    look = f"look = At(1, lambda trainer: os.path.exists({root + '/a'!r}))"
    trainer.do(f"{look}; fit_with({folder!r}, 2, look=look, every_n_train_steps=2)", 120)
    assert trainer.do("look.found") is False and committed(folder)


def test_plugin_within_the_asynchronous_one_of_lightning_is_refused_before_training(trainer, root):
    code = (
        "from pytorch_lightning.plugins.io import AsyncCheckpointIO\n"
        f"fit_with({root!r}, 3, look=(look := Look('/x')), io=AsyncCheckpointIO(ckptd.lightning.CheckpointIO()))"
    )
    error = trainer.fails(code, 120)
    assert error.kind == "Refused" and "leave AsyncCheckpointIO out" in error.message
    assert trainer.do("look.found") == []


def test_classes_that_configure_allows_are_loaded_from_a_checkpoint_and_from_a_copy(trainer, root):
    path, copy = root + "/a.ckpt", root + "/copy.ckpt"
    trainer.do("import fractions; io = ckptd.lightning.CheckpointIO()")
    trainer.do(f"io.save_checkpoint({{'state_dict': {{}}, 'mine': fractions.Fraction(1, 3)}}, {path!r}); io.wait()")
    shutil.copyfile(path, copy)
    for each in (path, copy):
        trainer.fails(f"io.load_checkpoint({each!r})")
    for options in ("safe_globals=[fractions.Fraction]", "weights_only=False"):
        trainer.do(f"ckptd.lightning.configure({options})")
        try:
            for each in (path, copy):
                assert trainer.do(f"str(io.load_checkpoint({each!r})['mine'])") == "1/3"
        finally:
            trainer.do("ckptd.lightning.configure()")


# ---- crashes, and users who change files

KILL_AT = """
def kill_at(module, name, number, after=False):
    # Kills this process at the number-th call of a function, before or after it is carried out.
    real, calls = getattr(module, name), []
    def call(*args, **options):
        calls.append(1)
        value = real(*args, **options) if after or len(calls) != number else None
        if len(calls) == number: os.kill(os.getpid(), signal.SIGKILL)
        return value
    setattr(module, name, call)
"""


@pytest.mark.parametrize(
    "where",
    [
        "ckptd._adapters.lightning_files, 'link', {number}",
        "os, 'link', {number}, True",
        "os, 'replace', {renames}",
        "os, 'replace', {renames}, True",
        "ckptd._adapters.lightning_files, '_write_record', {number}",
        "ckptd._adapters.lightning_files, '_write_record', {number}, True",
    ],
)
def test_killed_anywhere_between_commit_and_link_leaves_a_whole_file_and_the_next_fit_the_newest(trainer, start, root, where):
    """The third save of last.ckpt: the file of step 2 is there."""
    whole = trainer.do(f"fit_with({root + '/whole'!r}, 5, save_top_k=0, save_last=True).model.layer.weight.tolist()", 120)
    second = trainer.do(f"fit_with({root + '/second'!r}, 2, save_top_k=0, save_last=True).model.layer.weight.tolist()", 120)
    third = trainer.do(f"fit_with({root + '/third'!r}, 3, save_top_k=0, save_last=True).model.layer.weight.tolist()", 120)
    killed, folder = start(), root + "/killed"
    killed.do(KILL_AT)
    at = where.format(number=3, renames=5)  # Each save renames the file and its record.
    look = "class Each(pl.Callback):\n    def on_train_batch_start(self, trainer, *rest): trainer.strategy.checkpoint_io.wait()"
    killed.start(f"{look}\nkill_at({at}); fit_with({folder!r}, 5, look=Each(), save_top_k=0, save_last=True)")
    assert killed.process.wait(120) == -signal.SIGKILL
    until(lambda: os.path.exists(behind(folder + "/last.ckpt")), "the commit")
    assert trainer.do(f"weights_in({folder + '/last.ckpt'!r})") in (second, third)
    made = f"made = fit_with({folder!r}, 5, resume='last', save_top_k=0, save_last=True)"
    assert trainer.do(f"said.clear(); {made}; made.model.layer.weight.tolist()", 120) == whole
    assert not [text for text in trainer.do("said") if "unverified" in text]
    assert os.path.samefile(folder + "/last.ckpt", behind(folder + "/last.ckpt"))


def test_killed_before_the_first_link_is_resumed_from_and_an_explicit_path_too(trainer, start, root):
    killed = start()
    killed.do(KILL_AT)
    killed.start(f"kill_at(ckptd._adapters.lightning_files, 'link', 1); fit({root!r}, 2)")
    assert killed.process.wait(120) == -signal.SIGKILL
    path = root + "/step=2.ckpt"
    until(lambda: os.path.exists(os.path.dirname(behind(path)) + "/.ckptd/manifest"), "the commit")
    assert not os.path.lexists(path)
    state = trainer.do(f"ckptd.lightning.CheckpointIO().load_checkpoint({path!r})['global_step']", 120)
    assert state == 2 and os.path.samefile(path, behind(path))


def test_killed_before_old_checkpoints_are_removed_removes_them_in_the_next_fit(trainer, start, root):
    """The removals are asked for; those of step 1 and 2 may be carried out, and that of step 3 not: step 4 is never committed."""
    killed = start()
    killed.do(KILL_AT)
    hold = "from unittest import mock; mock.patch.object(ckptd.lightning, '_delete', lambda file: False).start()"
    killed.do(f"{hold}; class_of = type('Wait', (pl.Callback,), {{'on_train_batch_start': lambda self, trainer, *_: trainer.strategy.checkpoint_io.wait()}})")
    refuse = "def refuse(trainer): type(ckptd.lightning.process).run = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
    killed.start(
        f"{refuse}\nkeeper = ModelCheckpoint({root!r}, every_n_train_steps=1, save_top_k=1, filename='{{step}}')\n"
        "trainer = pl.Trainer(accelerator='cpu', max_steps=6, logger=False, enable_progress_bar=False, enable_model_summary=False,\n"
        "    plugins=[ckptd.lightning.CheckpointIO()], callbacks=[class_of(), At(4, refuse), keeper])\ntrainer.fit(Model())"
    )
    assert killed.process.wait(120) == -signal.SIGKILL
    assert checkpoints(root) == ["step=1.ckpt", "step=2.ckpt", "step=3.ckpt"]
    # The one that is resumed from stays, as Lightning does it.
    resume = f"resume={root + '/step=2.ckpt'!r}"
    trainer.do(f"fit_with({root!r}, 4, {resume}, filename='new-{{step}}', save_top_k=0)", 120)
    assert checkpoints(root) == committed(root) == ["step=2.ckpt", "step=3.ckpt"]


def test_link_leads_to_the_newest_committed_checkpoint_while_saves_come_without_a_pause(trainer, root):
    code = (
        "from unittest import mock; io = ckptd.lightning.CheckpointIO(); has_ended = ckptd.lightning._Saving.has_ended\n"
        "def late(saving): return 'step=3' not in saving.file.name and has_ended(saving)\n"
        f"def look(trainer):\n    io.wait({root + '/step=2.ckpt'!r}); return os.readlink({root + '/last.ckpt'!r})\n"
        "with mock.patch.object(ckptd.lightning._Saving, 'has_ended', late):\n    try: fit_with("
        f"{root!r}, 4, io=io, look=(at := At(4, look)), filename='{{step}}', monitor='step', mode='max', save_top_k=-1, save_last='link')\n"
        "    except ckptd.WaitTimeout: pass\n"
        "at.found"
    )
    assert trainer.do("ckptd.lightning.configure(timeout=1)") is None
    try:
        assert trainer.do(code, 120) == "step=2.ckpt"
    finally:
        trainer.do("ckptd.lightning.configure()")


def test_file_that_a_user_removes_frees_its_bytes_and_one_that_a_user_replaces_stays(trainer, root):
    options = "filename='{step}', save_top_k=-1"
    trainer.do(f"fit_with({root!r}, 4, {options})", 120)
    os.unlink(root + "/step=1.ckpt")
    os.unlink(root + "/step=2.ckpt")
    shutil.copyfile(root + "/step=4.ckpt", root + "/step=2.ckpt")
    trainer.do(f"fit_with({root!r}, 6, resume={root + '/step=4.ckpt'!r}, {options})", 120)
    assert committed(root) == ["step=3.ckpt", "step=4.ckpt", "step=5.ckpt", "step=6.ckpt"]
    assert checkpoints(root) == [f"step={step}.ckpt" for step in (2, 3, 4, 5, 6)]
    assert trainer.do(f"weights_in({root + '/step=2.ckpt'!r})") == trainer.do(f"weights_in({root + '/step=4.ckpt'!r})")


def test_file_that_a_user_renames_is_verified_also_after_the_next_fit(trainer, root):
    trainer.do(f"fit_with({root!r}, 2, filename='{{step}}', save_top_k=-1)", 120)
    os.rename(root + "/step=1.ckpt", root + "/good.ckpt")
    trainer.do(f"fit_with({root!r}, 3, resume={root + '/good.ckpt'!r}, filename='{{step}}', save_top_k=0)", 120)
    assert checkpoints(root) == ["good.ckpt", "step=2.ckpt"]
    flip(root + "/good.ckpt")
    assert trainer.fails(f"fit_with({root!r}, 3, resume={root + '/good.ckpt'!r})", 120).kind == "Corrupt"
    os.unlink(root + "/good.ckpt")
    trainer.do(f"fit_with({root!r}, 3, resume={root + '/step=2.ckpt'!r}, save_top_k=0)", 120)
    assert committed(root) == ["step=2.ckpt"]


def test_training_does_not_wait_while_a_file_is_synced(trainer, root):
    code = (
        "from unittest import mock; go_on, in_time = threading.Event(), []\n"
        "def sync(path): in_time.append(go_on.wait(60))\n"
        "with mock.patch.object(ckptd._adapters.lightning_files, '_sync_directory', sync):\n"
        f"    fit_with({root!r}, 4, look=At(4, lambda trainer: go_on.set()), filename='{{step}}', save_top_k=-1, save_last='link',\n"
        "        enable_version_counter=False)\n"
        "in_time"
    )
    os.symlink("step=0.ckpt", root + "/last.ckpt")
    shutil.copyfile(__file__, root + "/step=0.ckpt")  # So that the link is not waited for.
    assert trainer.do(code, 200) == [True] * 4


def test_files_of_checkpoints_that_retention_removes_go_with_them(trainer, root):
    io = "ckptd.lightning.CheckpointIO(num_kept_ckpts=2)"
    trainer.do(f"fit_with({root!r}, 5, io={io}, filename='{{step}}', save_top_k=-1)", 120)
    assert committed(root) == checkpoints(root) == ["step=4.ckpt", "step=5.ckpt"]


def test_file_system_without_hard_links_gets_symbolic_ones(trainer, root):
    refuse = "def refuse(*args, **options): raise PermissionError(1, 'no hard links')"
    code = f"from unittest import mock\n{refuse}\nwith mock.patch.object(os, 'link', refuse): whole = fit({root!r}, 4)"
    whole, newest = trainer.do(f"{code}\nwhole", 120)
    assert checkpoints(root) == committed(root) == ["step=4.ckpt"] and os.path.islink(newest)
    assert trainer.do(f"weights_in({newest!r})") == whole
    flip(behind(newest))
    os.rename(root, root + "-moved")
    assert trainer.fails(f"fit({root + '-other'!r}, 6, resume={root + '-moved/step=4.ckpt'!r})", 120).kind == "Corrupt"


# ---- failures

FULL = """
from unittest import mock
def full(*steps):
    # Has the links of some steps fail as on a full disk: after the save has returned.
    real = ckptd._adapters.lightning_files.link
    def link(file):
        if any(f"step={step}." in file.name for step in steps): raise OSError(28, "No space left on device", file.path)
        real(file)
    return mock.patch.object(ckptd._adapters.lightning_files, "link", link)
class Each(pl.Callback):
    # Lets each save end before the next one begins.
    def on_train_batch_start(self, trainer, *rest): ckptd.lightning.process.await_all(time.monotonic() + 60); trainer.strategy.checkpoint_io._settle()
"""


def test_failed_save_raises_from_the_next_one_which_is_made(trainer, root):
    trainer.do(FULL)
    options = "look=Each(), filename='{step}', save_top_k=-1"
    error = trainer.fails(f"with full(2): fit_with({root!r}, 5, {options})", 120)
    assert "step=2.ckpt" in error.message and "No space left" in error.message
    assert checkpoints(root) == ["step=1.ckpt", "step=3.ckpt"]
    error = trainer.fails(f"with full(5): fit_with({root!r}, 5, resume={root + '/step=3.ckpt'!r}, {options})", 120)
    assert "step=5.ckpt" in error.message and checkpoints(root) == [f"step={step}.ckpt" for step in (1, 2, 3, 4)]
    error = trainer.fails(f"try: raise ValueError\nexcept ValueError:\n  with full(6): fit_with({root!r}, 6, resume={root + '/step=4.ckpt'!r}, {options})", 120)
    assert "step=6.ckpt" in error.message


def test_failed_save_does_not_hide_why_training_ended(trainer, root):
    trainer.do(FULL)
    error = trainer.fails(f"def end(trainer): 1 / 0\nwith full(1): fit_with({root!r}, 3, look=At(1, end), filename='{{step}}')", 120)
    assert error.kind == "ZeroDivisionError"


def test_training_goes_on_after_failed_saves_if_asked_and_the_next_save_and_the_end_tell(trainer, root):
    trainer.do(FULL)
    os.makedirs(root + "/step=4.ckpt")  # Of another program: the save cannot begin.
    options = "look=Each(), io=io, filename='{step}', save_top_k=1, enable_version_counter=False"
    code = f"said.clear(); io = ckptd.lightning.CheckpointIO(on_failure='warn')\nwith full(2): made = fit_with({root!r}, 4, {options})\n"
    assert trainer.do(f"{code}made.global_step", 120) == 4
    said = trainer.do("said")
    assert [text for text in said if "1 of 2 saves of this training have failed" in text and "step=2.ckpt" in text], said
    assert [text for text in said if "2 of 4 saves of this training have failed" in text and "step=4.ckpt" in text], said
    assert len(trainer.do("io.failures()")) > 0 and trainer.do("len(io.failures())") == 2
    # The one before the one that failed stays, and so do its bytes.
    assert os.path.isfile(root + "/step=3.ckpt") and os.path.isfile(root + "/step=1.ckpt")


def test_stage_of_saves(trainer, root):
    trainer.do(
        f"""
stages, stock = [], ckptd.Run.save
ckptd.Run.save = lambda run, *args, **options: [stages.append(options["stage"]), stock(run, *args, **options)][1]
try:
    fit_with({root!r}, 2, io=ckptd.lightning.CheckpointIO(stage="overlap"), save_top_k=-1)
finally:
    ckptd.Run.save = stock
"""
    )
    assert set(trainer.do("stages")) == {"overlap"}
    error = trainer.fails("ckptd.lightning.CheckpointIO(stage='later')")
    assert "later" in str(error) and "overlap" in str(error)


def test_on_failure_is_one_of_two(trainer):
    error = trainer.fails("ckptd.lightning.CheckpointIO(on_failure='ignore')")
    assert error.kind == "ValueError" and "ignore" in error.message


def test_no_thread_and_no_daemon_is_left_after_fit(start, root):
    code = (
        "import tempfile\ndel os.environ['CKPTD_ENDPOINT']\n"
        f"tempfile.tempdir = {root!r}\nckptd.lightning.configure(pool_bytes=64 << 20)\n"
        "def tasks(): return len(os.listdir('/proc/self/task'))\n"
        "def children(): return open(f'/proc/self/task/{os.getpid()}/children').read().split()\n"
        f"fit({root + '/stock'!r}, 2, plugin=False); before = tasks()\n"
        f"fit({root + '/ours'!r}, 2)"
    )
    process = start()
    process.do(code, 120)
    until(lambda: process.do("tasks() <= before and not children()"), "the end of the threads and of the private daemon")
    assert "ckptd" not in " ".join(process.do("[thread.name for thread in threading.enumerate()]"))


DDP = """
import json, os, sys, time, logging, torch
""" + IMPORTS + FULL + """
root, failing = sys.argv[1:]
keeper = ModelCheckpoint(root, filename="{step}", every_n_train_steps=2, save_top_k=2, monitor="step", mode="max", save_last="link")
trainer = pl.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=6, logger=False, enable_progress_bar=False, enable_model_summary=False,
    plugins=[ckptd.lightning.CheckpointIO()], callbacks=[keeper])
error = ""
try:
    with full(failing): trainer.fit(Model())
    seen = sorted(os.listdir(root))
    trainer.save_checkpoint(root + "/final.ckpt")
    seen.append(os.path.isfile(root + "/final.ckpt"))
except ckptd.CkptdError as caught:
    seen, error = [], str(caught)
with open(f"{root}/rank-{trainer.global_rank}.json", "w") as file: json.dump([seen, error], file)
"""


@pytest.mark.parametrize("failing", ["none", "6"])
def test_every_rank_sees_the_files_or_the_failure_when_fit_returns(daemon, root, failing):
    with open(root + "/program.py", "w") as file:
        file.write(DDP)
    environment = {**os.environ, "CKPTD_ENDPOINT": daemon.endpoint, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, root + "/program.py", root, failing], env=environment, check=True, timeout=240)
    ranks = []
    for rank in (0, 1):
        with open(f"{root}/rank-{rank}.json") as file:
            ranks.append(json.load(file))
    if failing == "none":
        for seen, error in ranks:
            names = [name for name in seen[:-1] if name.endswith(".ckpt")]
            assert (names, seen[-1], error) == (["last.ckpt", "step=4.ckpt", "step=6.ckpt"], True, "")
    else:
        assert "step=6.ckpt" in ranks[0][1] and "rank 0 could not save" in ranks[1][1]
