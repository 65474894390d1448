"""The example: AutoUnit as TorchTNT's documentation has it, with one line changed. It is killed and resumed."""

import pathlib
import signal

from harness import until

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples/training/train_torchtnt.py"
IMPORTS = (
    f"sys.path.insert(0, {str(ROOT)!r})\n"
    "from examples.training import train_torchtnt as example\n"
    "from examples.training.model import Gpt\n"
    "example.STEPS_IN_EPOCH = 4\n"
    "small = lambda: Gpt(width=32, layers=2, heads=2)\n"
)


def test_job_resumes_with_the_same_losses_after_all_ranks_were_killed(start_processes, launch, session_folder, root):
    killed = start_processes(2)
    for rank, process in enumerate(killed):
        process.start(
            f"{IMPORTS}\nstates.join({session_folder + '/example'!r}, {rank}, 2)\n"
            f"example.train_epochs({root!r}, small, 2, 2, [kill_at(6)])"
        )
    assert [process.process.wait(120) for process in killed] == [-signal.SIGKILL] * 2
    until(lambda: (pathlib.Path(root) / "epoch_1_train_step_6/.ckptd/manifest").exists(), "the commit")
    ranks = launch(2)
    resumed = ranks.do(f"{IMPORTS}\nexample.train_epochs({root!r}, small, 2, 2).losses", 120)
    whole = ranks.do(f"example.train_epochs({root + '/whole'!r}, small, 2, 2).losses", 120)
    assert [step for step, _ in resumed[0]] == [7, 8]
    assert resumed[0] == whole[0][6:]


def test_example_runs_with_torchtnts_own_saver_if_the_line_is_undone(launch, root):
    ours = "from ckptd.torchtnt import CheckpointSaver as DistributedCheckpointSaver  # The line.\n"
    theirs = "from torchtnt.framework.callbacks.dcp_saver import DistributedCheckpointSaver\n"
    text = SOURCE.read_text()
    assert text.count(ours) == 1 and text.replace(ours, "").count("import ckptd") == 0
    ranks = launch(2)
    stock, with_line = root + "/stock", root + "/ours"
    # Its asynchronous saves communicate in a thread, beside the training and with the same group, and the job stops.
    text = text.replace(ours, theirs).replace("async_checkpoint=True", "async_checkpoint=False")
    ranks.do(f"{IMPORTS}\nthere = {{'__name__': 'stock'}}; exec({text!r}, there)\nthere['STEPS_IN_EPOCH'] = 4")
    first = ranks.do(f"there['train_epochs']({stock!r}, small, 1, 2).losses", 120)
    assert ranks.do(f"example.train_epochs({with_line!r}, small, 1, 2).losses", 120) == first
    # Each goes on from what the other has saved.
    assert ranks.do(f"example.train_epochs({stock!r}, small, 2, 2).losses", 120) == ranks.do(
        f"there['train_epochs']({with_line!r}, small, 2, 2).losses", 120
    )
