"""Restoring from memory: what an ended job left in the daemon is read by the next one, without the disk."""

import json
import os

import pytest
from harness import ckptctl, together, until

SAVE = (
    "save = run.save('step_{step}', step={step}, files={{f'r{{rank}}.pt': "
    "{{'x': torch.full((2_000_000,), {step}.0), 'odd': torch.arange(7)}}}})\nsave.wait('committed', 60)"
)
# What the files are opened as, too: "ResidentFile" or "LocalFile".
LOAD = """
with run.resume() as c:
    with c._open(f'r{rank}.pt') as file: kind = type(file).__name__
    value = c.load(f'r{rank}.pt')
[c.tag, value['x'][0].item(), value['x'][-1].item(), value['odd'].tolist(), kind]
"""


def loaded(step, kind):
    return [f"step_{step}", float(step), float(step), list(range(7)), kind]


@pytest.fixture
def saved(trainers, root):
    """Two checkpoints of two ranks, whose trainers have ended."""
    ranks = trainers("a", 2)
    for step in (1, 2):
        together(ranks, SAVE.format(step=step))
    for rank in ranks:
        rank.kill()
    return root


def pool(daemon):
    return daemon.status().pool


def test_restarted_job_reads_from_memory_what_the_killed_one_saved(daemon, trainers, saved):
    until(lambda: pool(daemon).resident_bytes > 0, "copies that outlive their trainers")
    listed = json.loads(ckptctl("--output=json", "describe", f"{saved}/step_2", endpoint=daemon.endpoint).stdout)
    assert listed["resident"] is True
    for rank in range(2):  # What is on disk now could not be loaded.
        with open(f"{saved}/step_2/r{rank}.pt", "r+b") as file:
            file.write(bytes(os.path.getsize(file.name)))
    ranks = trainers("b", 2)
    assert together(ranks, LOAD) == [loaded(2, "ResidentFile")] * 2


def test_load_into_fills_the_trainers_own_tensors_from_memory(daemon, trainers, saved):
    ranks = trainers("b", 2)
    code = """
state = {'x': torch.zeros(2_000_000), 'odd': torch.zeros(7, dtype=torch.int64)}
kept = state['x']
with run.resume() as c: c.load(f'r{rank}.pt', into=state)
[kept is state['x'], bool((kept == 2.0).all()), state['odd'].tolist()]
"""
    assert together(ranks, code) == [[True, True, list(range(7))]] * 2


def test_after_a_restart_of_the_daemon_the_disk_is_read(daemon, trainers, saved):
    daemon.restart()
    assert pool(daemon).resident_bytes == 0
    assert together(trainers("b", 2), LOAD) == [loaded(2, "LocalFile")] * 2


def test_daemon_that_is_killed_while_a_copy_is_read_costs_no_byte(daemon, trainers, saved):
    """What is mapped may be zeros by then: the successor gives the memory back."""
    reader = trainers("b", 1)[0]
    reader.do("c = run.open('step_2')\nfile = c._open('r0.pt')\nfirst = bytearray(1000)\nfile.readinto(first)")
    daemon.kill()
    daemon.restart()
    code = (
        "file.seek(0)\ndata = bytearray(file.size)\nfile.readinto(data)\n"
        "import io\n"
        "[torch.load(io.BytesIO(bytes(data)))['x'].eq(2.0).all().item(), type(file._disk).__name__]"
    )
    assert reader.do(code) == [True, "LocalFile"]


def test_copies_make_way_for_saves(daemon, trainers, saved):
    ranks = trainers("b", 2)
    assert together(ranks, LOAD) == [loaded(2, "ResidentFile")] * 2
    # More than the pool has beside the copies.
    save = (
        "save = run.save('big', step=9, files={f'r{rank}.pt': {'x': torch.ones(28 << 20)}}, timeout=60)\n"
        "save.wait('committed', 60)"
    )
    together(ranks, save)
    assert together(ranks, "run.latest().tag") == ["big"] * 2


def test_checkpoint_that_is_read_stays_in_memory_while_its_tag_is_saved_again(daemon, trainers, saved):
    reader = trainers("b", 1)[0]
    reader.do("c = run.open('step_2')\nfile = c._open('r1.pt')")
    writer = trainers("c", 1)[0]
    writer.do(SAVE.format(step=2).replace("2.0", "5.0"))
    code = "import io\nx = torch.load(io.BytesIO(file.readall()))['x']\n[x[0].item(), type(file).__name__]"
    assert reader.do(code) == [2.0, "ResidentFile"]
    assert reader.do("c.close()\nwith run.open('step_2') as d: tag = d.load('r0.pt')['x'][0].item()\ntag") == 5.0
