"""Files that have not changed since the newest checkpoint are shared with it, if the run asks for that."""

import os
import subprocess

import ckptd
import pytest
from harness import ckptctl, tags, together, until_equal

SHARES = ", share_unchanged=True, num_kept_ckpts=2"
# 8 MB of each rank stay as they are, 80 kB change.
SAVE = """
torch.manual_seed(rank)
frozen, adapter = {{'w': torch.randn(2_000_000)}}, {{'w': torch.full((20_000,), {step}.0)}}
files = {{f'frozen/r{{rank}}.pt': frozen, f'adapter_{{rank}}.pt': adapter}}
run.save('step_{step}', step={step}, files=files).wait('committed', 60)
"""
RESUME = """
with run.resume() as c:
    frozen, adapter = c.load(f'frozen/r{rank}.pt')['w'], c.load(f'adapter_{rank}.pt')['w']
torch.manual_seed(rank)
[c.tag, adapter[0].item(), torch.equal(frozen, torch.randn(2_000_000))]
"""


@pytest.fixture
def by_links(folder):
    """Skips the test on file systems that share blocks: there a shared file has an inode of its own."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True).stdout.strip()
    if kind in ("xfs", "btrfs"):
        pytest.skip(f"on {kind} unchanged files share blocks, and have inodes of their own")


def inode(root, tag, name):
    return os.stat(os.path.join(root, tag, name)).st_ino


def test_unchanged_files_are_stored_once_and_every_checkpoint_is_whole(by_links, trainers, root):
    ranks = trainers("a", 2, options=SHARES)
    for step in range(1, 5):
        together(ranks, SAVE.format(step=step))
    until_equal(lambda: tags(root), ["step_4", "step_3"], "retention")
    for rank in range(2):
        name = f"frozen/r{rank}.pt"
        assert inode(root, "step_3", name) == inode(root, "step_4", name)
        kept = os.path.join(root, "step_4", name)
        until_equal(lambda kept=kept: os.stat(kept).st_nlink, 2, "the evicted checkpoints to be deleted")
        assert inode(root, "step_3", f"adapter_{rank}.pt") != inode(root, "step_4", f"adapter_{rank}.pt")
    assert ckptctl("verify", root).returncode == 0
    later = trainers("b", 2, options=SHARES)
    assert together(later, RESUME) == [["step_4", 4.0, True]] * 2


def test_next_daemon_shares_with_what_an_earlier_one_has_written(by_links, trainers, daemon, root):
    ranks = trainers("a", 1, options=SHARES)
    together(ranks, SAVE.format(step=1))
    daemon.kill()
    daemon.restart()
    together(ranks, SAVE.format(step=2))
    assert inode(root, "step_1", "frozen/r0.pt") == inode(root, "step_2", "frozen/r0.pt")


def test_file_that_another_program_has_changed_is_written_anew(trainers, root):
    ranks = trainers("a", 1, options=SHARES)
    together(ranks, SAVE.format(step=1))
    with open(os.path.join(root, "step_1", "frozen/r0.pt"), "r+b") as file:
        file.seek(4_000_000)
        file.write(b"!")
    together(ranks, SAVE.format(step=2))
    assert inode(root, "step_1", "frozen/r0.pt") != inode(root, "step_2", "frozen/r0.pt")
    assert ckptctl("verify", f"{root}/step_1", check=False).returncode != 0
    assert ckptctl("verify", f"{root}/step_2").returncode == 0


def test_without_the_option_every_checkpoint_has_bytes_of_its_own(trainers, root):
    ranks = trainers("a", 1)
    for step in (1, 2):
        together(ranks, SAVE.format(step=step))
    assert inode(root, "step_1", "frozen/r0.pt") != inode(root, "step_2", "frozen/r0.pt")


def test_ranks_share_files_of_their_own_only(by_links, trainers, root):
    one, two = trainers("a", 2, options=", share_unchanged=(rank == 0)")
    for step in (1, 2):
        together([one, two], SAVE.format(step=step))
    assert inode(root, "step_1", "frozen/r0.pt") == inode(root, "step_2", "frozen/r0.pt")
    assert inode(root, "step_1", "frozen/r1.pt") != inode(root, "step_2", "frozen/r1.pt")


def test_open_root_reads_a_checkpoint_whose_files_are_shared(trainers, root):
    ranks = trainers("a", 1, options=SHARES)
    for step in (1, 2):
        together(ranks, SAVE.format(step=step))
    with ckptd.open_root(root).open("step_2") as checkpoint:
        assert checkpoint.load("adapter_0.pt")["w"][0].item() == 2.0
        assert checkpoint.load("frozen/r0.pt")["w"].numel() == 2_000_000
