"""Restoring from memory: the next job reads what an ended one left in the daemon, without the disk."""

import json
import os

import pytest
from harness import ckptctl, start_ckptctl, together, until

SAVE = (
    "save = run.save('step_{step}', step={step}, files={{f'r{{rank}}.pt': "
    "{{'x': torch.full((2_000_000,), {step}.0), 'odd': torch.arange(7)}}}})\nsave.wait('committed', 60)"
)
# Also returns the class that opened the file: "ResidentFile" or "LocalFile".
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
    """Two checkpoints of two ranks whose trainers have ended."""
    ranks = trainers("a", 2)
    for step in (1, 2):
        together(ranks, SAVE.format(step=step))
    for rank in ranks:
        rank.kill()
    return root


def pool(daemon):
    return daemon.status().pool


def test_restarted_job_reads_save_of_killed_job_from_memory(daemon, trainers, saved):
    until(lambda: pool(daemon).resident_bytes > 0, "copies that outlive their trainers")
    listed = json.loads(ckptctl("--output=json", "describe", f"{saved}/step_2", endpoint=daemon.endpoint).stdout)
    assert listed["resident"] is True
    for rank in range(2):  # The files on disk cannot be loaded any more.
        with open(f"{saved}/step_2/r{rank}.pt", "r+b") as file:
            file.write(bytes(os.path.getsize(file.name)))
    ranks = trainers("b", 2)
    assert together(ranks, LOAD) == [loaded(2, "ResidentFile")] * 2


def test_load_into_fills_trainer_tensors_from_memory(daemon, trainers, saved):
    ranks = trainers("b", 2)
    code = """
state = {'x': torch.zeros(2_000_000), 'odd': torch.zeros(7, dtype=torch.int64)}
kept = state['x']
with run.resume() as c: c.load(f'r{rank}.pt', into=state)
[kept is state['x'], bool((kept == 2.0).all()), state['odd'].tolist()]
"""
    assert together(ranks, code) == [[True, True, list(range(7))]] * 2


def test_restarted_daemon_reads_from_disk(daemon, trainers, saved):
    daemon.restart()
    assert pool(daemon).resident_bytes == 0
    assert together(trainers("b", 2), LOAD) == [loaded(2, "LocalFile")] * 2


def test_daemon_killed_during_read_of_resident_copy_loses_no_byte(daemon, trainers, saved):
    """The mapping may read zeros by then: the next daemon frees the memory."""
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


def test_resident_copies_are_evicted_for_saves(daemon, trainers, saved):
    ranks = trainers("b", 2)
    assert together(ranks, LOAD) == [loaded(2, "ResidentFile")] * 2
    # More than the pool has without the copies.
    save = (
        "save = run.save('big', step=9, files={f'r{rank}.pt': {'x': torch.ones(28 << 20)}}, timeout=60)\n"
        "save.wait('committed', 60)"
    )
    together(ranks, save)
    assert together(ranks, "run.latest().tag") == ["big"] * 2


def test_checkpoint_being_read_stays_in_memory_while_its_tag_is_saved_again(daemon, trainers, saved):
    reader = trainers("b", 1)[0]
    reader.do("c = run.open('step_2')\nfile = c._open('r1.pt')")
    writer = trainers("c", 1)[0]
    writer.do(SAVE.format(step=2).replace("2.0", "5.0"))
    code = "import io\nx = torch.load(io.BytesIO(file.readall()))['x']\n[x[0].item(), type(file).__name__]"
    assert reader.do(code) == [2.0, "ResidentFile"]
    assert reader.do("c.close()\nwith run.open('step_2') as d: tag = d.load('r0.pt')['x'][0].item()\ntag") == 5.0


# True if a tensor's bytes are in the daemon's segments, not in a copy.
MAPPED = """
def mapped(tensor):
    at = tensor.data_ptr()
    for line in open('/proc/self/maps'):
        first, last = (int(x, 16) for x in line.split()[0].split('-'))
        if first <= at < last: return 'ckptd-segment' in line
"""


def test_mapped_state_is_in_daemon_memory_and_private_to_reader(daemon, trainers, saved):
    one, two = trainers("b", 2)
    for rank in (one, two):
        rank.do(MAPPED)
    code = "with run.open('step_2') as c: state = c.load('r0.pt', mmap=True)\n[mapped(state['x']), state['x'].sum().item()]"
    assert one.do(code) == [True, 4_000_000.0]
    assert one.do("state['x'].add_(5)\nstate['x'][0].item()") == 7.0
    assert two.do(code) == [True, 4_000_000.0], "writes of one reader must not be visible to another"


def test_mapped_state_outlives_daemon_and_its_memory(daemon, trainers, saved):
    reader = trainers("b", 1)[0]
    reader.do(MAPPED + "with run.open('step_2') as c: state = c.load('r1.pt', mmap=True)")
    daemon.kill()
    daemon.restart()
    # The whole pool now belongs to another save.
    writer = trainers("c", 1)[0]
    writer.do("run.save('big', files={'b.pt': {'x': torch.ones(28 << 20)}}, timeout=60).wait('committed', 60)")
    assert reader.do("[mapped(state['x']), bool((state['x'] == 2).all()), state['odd'].tolist()]") == [True, True, list(range(7))]


def test_state_is_read_when_it_cannot_be_mapped(daemon, trainers, saved):
    daemon.restart()
    reader = trainers("b", 1)[0]
    code = "with run.open('step_2') as c: state = c.load('r0.pt', mmap=True)\n[mapped(state['x']), state['x'].sum().item()]"
    assert reader.do(MAPPED + code) == [False, 4_000_000.0]
    with pytest.raises(Exception, match="give one of them"):
        reader.do("run.open('step_2').load('r0.pt', into=state, mmap=True)")


def test_prefetched_checkpoint_is_read_from_memory(daemon, trainers, saved):
    daemon.restart()
    said = ckptctl("prefetch", f"{saved}/latest", endpoint=daemon.endpoint).stdout
    assert said.startswith("step_2 is in memory ("), said
    for rank in range(2):  # The files on disk cannot be loaded any more.
        with open(f"{saved}/step_2/r{rank}.pt", "r+b") as file:
            file.write(bytes(os.path.getsize(file.name)))
    assert together(trainers("b", 2), LOAD) == [loaded(2, "ResidentFile")] * 2


def test_trainer_prefetches_in_the_background(daemon, trainers, saved):
    daemon.restart()
    reader = trainers("b", 2)[0]
    code = "info = run.prefetch().result(60)\n[info.tag, info.resident, run.latest().resident]"
    assert reader.do(code) == ["step_2", True, True]
    assert reader.do("str(run.prefetch('step_9').exception(60))").startswith("no checkpoint step_9")


def test_damage_found_by_prefetch_is_remembered(daemon, trainers, saved):
    daemon.restart()
    with open(f"{saved}/step_2/r1.pt", "r+b") as file:
        file.seek(100_000)
        file.write(b"damage")
    failed = ckptctl("prefetch", f"{saved}/latest", endpoint=daemon.endpoint, check=False)
    assert failed.returncode == 1 and "CORRUPT_FILE" in failed.stderr, failed
    assert ckptctl("prefetch", f"{saved}/latest", endpoint=daemon.endpoint).stdout.startswith("step_1 is in memory")
    assert together(trainers("b", 2), LOAD) == [loaded(1, "ResidentFile")] * 2


def test_watch_shows_progress_of_restore(daemon, trainers, saved):
    watch = start_ckptctl("--output=json", "watch", saved, "--timeout=60", endpoint=daemon.endpoint)
    reader = trainers("b", 2)[0]
    # Makes this short restore report progress like one that takes seconds.
    reader.do("from ckptd._reading import read_progress\nread_progress.REPORT_SECONDS = 0")
    reader.do("with run.open('step_2') as c: c.load('r0.pt')")
    seen = []
    for line in watch.stdout:
        seen.append(json.loads(line)["restore"])
        if seen[-1]["ended"]:
            break
    watch.kill()
    watch.wait()
    assert seen[0]["tag"] == "step_2" and seen[0]["rank"] == 0 and int(seen[0]["read_bytes"]) > 0, seen
    assert seen[-1]["read_bytes"] == seen[-1]["total_bytes"], seen
