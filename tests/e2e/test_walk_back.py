"""Promise 7: reads are verified; damage is reported, remembered, and all ranks are offered the next older
checkpoint.
"""

import json
import os
import shutil

import ckptd
import pytest
from harness import ckptctl, together, together_failing, until

SAVE = (
    "save = run.save('step_{step}', step={step}, files={{f'r{{rank}}.pt': {{'x': torch.full((300_000,), {step}.0)}}}})\n"
    "save.wait('committed', 60)"
)
LOAD = "with run.resume() as c: value = c.load(f'r{rank}.pt')['x'][0].item()\n[c.tag, value]"
RESTORE = "run.restore(lambda c: [c.tag, c.load(f'r{rank}.pt')['x'][0].item()])"


def flip(root, path, at=-1):
    """Flips one bit of a file; `at` < 0 counts from its end."""
    with open(os.path.join(root, path), "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def saved(daemon, trainers, root):
    """Two checkpoints of two ranks whose trainers have ended; neither is in memory."""
    ranks = trainers("a", 2)
    for step in (1, 2):
        together(ranks, SAVE.format(step=step))
    for rank in ranks:
        rank.kill()
    daemon.restart()
    return root


# Each kind of byte. The last three are detected when the checkpoint is opened, before data is read.
DAMAGES = {
    "header": lambda root: flip(root, "step_2/r1.pt", 3),
    "data": lambda root: flip(root, "step_2/r1.pt", 600_000),
    "tail": lambda root: flip(root, "step_2/r1.pt", -1),
    "manifest": lambda root: flip(root, "step_2/.ckptd/manifest", 100),
    "cut": lambda root: os.truncate(os.path.join(root, "step_2/r1.pt"), 1_000_000),
    "missing": lambda root: os.unlink(os.path.join(root, "step_2/r1.pt")),
}


@pytest.mark.parametrize("kind", list(DAMAGES))
def test_damage_of_any_kind_is_skipped_by_all_ranks_and_after_restart(daemon, trainers, saved, kind):
    DAMAGES[kind](saved)
    ranks = trainers("b", 2)
    assert together(ranks, RESTORE) == [["step_1", 1.0]] * 2
    daemon.restart()
    again = trainers("c", 2)
    assert together(again, LOAD) == [["step_1", 1.0]] * 2
    assert together(again, "run.latest().tag") == ["step_1"] * 2
    passed = again[0].do("with run.open() as c: passed = [(p.tag, p.damage) for p in c.passed_over]\npassed")
    assert [tag for tag, _ in passed] == ["step_2"] and passed[0][1]
    assert ckptctl("verify", saved, check=False).returncode == 1
    # Training continues, and the next checkpoint counts.
    together(again, SAVE.format(step=3))
    assert together(trainers("d", 2), LOAD) == [["step_3", 3.0]] * 2


def test_verify_finds_damaged_part_record_and_restore_succeeds(trainers, saved):
    flip(saved, "step_2/.ckptd/part-00001", 40)
    result = ckptctl("verify", saved, check=False)
    assert result.returncode == 1 and "part-00001" in result.stdout
    # The manifest has everything that a restore needs.
    assert together(trainers("b", 2), LOAD) == [["step_2", 2.0]] * 2


def test_rank_0_skips_checkpoint_when_only_file_of_rank_1_is_corrupt(daemon, trainers, saved):
    flip(saved, "step_2/r1.pt", 600_000)
    ranks = trainers("b", 2)
    failures = together_failing(ranks, LOAD)
    assert [failure.kind for failure in failures] == ["Corrupt", "Corrupt"]
    assert failures[1].reason == "CORRUPT_FILE" and failures[0].reason == "CHECKPOINT_DAMAGED"
    for word in ("step_2", "r1.pt", "chunk 0", "rank 1"):
        assert word in failures[0].message
    assert together(ranks, LOAD) == [["step_1", 1.0]] * 2
    described = json.loads(ckptctl("--output=json", "describe", f"{saved}/step_2", endpoint=daemon.endpoint).stdout)
    assert described["damage"]["path"] == "r1.pt" and described["damage"]["expected"].startswith("0x")


def test_rank_that_dies_while_others_wait_is_named_at_once(trainers, saved):
    ranks = trainers("b", 3)
    for rank in ranks:
        assert rank.do("c = run.resume(finish_timeout=60)\nc.tag") == "step_2"
    for rank in ranks[:2]:
        rank.start("c.close()")
    ranks[2].kill()
    for rank in ranks[:2]:
        failure = rank.result_failing()
        assert failure.reason == "RESUME_FAILED" and failure.ranks == [2]


def test_rank_that_does_not_resume_is_named_at_deadline(trainers, saved):
    ranks = trainers("b", 2)
    ranks[0].do("c = run.resume(finish_timeout=0.5)")
    failure = ranks[0].fails("c.close()")
    assert failure.kind == "WaitTimeout" and failure.reason == "RESUME_INCOMPLETE" and failure.ranks == [1]


def test_rank_whose_own_code_fails_notifies_others(trainers, saved):
    ranks = trainers("b", 2)
    ranks[0].start(LOAD)
    failure = ranks[1].fails("with run.resume() as c: raise ValueError('no such optimizer')")
    assert failure.kind == "ValueError"
    heard = ranks[0].result_failing()
    assert heard.reason == "RESUME_FAILED" and "no such optimizer" in heard.message
    assert together(ranks, LOAD) == [["step_2", 2.0]] * 2


def test_agreement_survives_restart_of_daemon(daemon, trainers, saved):
    ranks = trainers("b", 2)
    for rank in ranks:
        rank.do("c = run.resume()")
    ranks[0].start("c.close()\n'left'")
    daemon.restart()
    ranks[1].do("c.close()")
    assert ranks[0].result() == "left"


def test_strict_resume_refuses_older_checkpoint(trainers, saved):
    flip(saved, "step_2/r0.pt", 600_000)
    ranks = trainers("b", 2)
    assert {failure.kind for failure in together_failing(ranks, LOAD)} == {"Corrupt"}
    for failure in together_failing(ranks, "run.resume(strict=True)"):
        assert failure.kind == "Corrupt" and failure.reason == "CHECKPOINT_DAMAGED" and "r0.pt" in failure.message
    assert ranks[0].fails("run.open(strict=True)").kind == "Corrupt"


def test_job_does_not_start_from_nothing_when_all_checkpoints_are_damaged(trainers, saved):
    for step in (1, 2):
        flip(saved, f"step_{step}/r0.pt", 600_000)
    for failure in together_failing(trainers("b", 2), RESTORE):
        assert failure.kind == "Corrupt" and "2 checkpoints are damaged" in failure.message


def test_repaired_checkpoint_is_offered_again(daemon, trainers, saved):
    flip(saved, "step_2/r1.pt", 600_000)
    assert together(trainers("b", 2), RESTORE) == [["step_1", 1.0]] * 2
    assert "step_2" in ckptctl("status", "--verbose", endpoint=daemon.endpoint).stdout.split("damaged")[1]
    flip(saved, "step_2/r1.pt", 600_000)
    assert ckptctl("verify", f"{saved}/step_2").returncode == 0
    ckptctl("repaired", f"{saved}/step_2", endpoint=daemon.endpoint)
    assert together(trainers("c", 2), RESTORE) == [["step_2", 2.0]] * 2


def test_pointer_of_framework_moves_to_older_checkpoint(daemon, trainers, root):
    ranks = trainers("a", 1)
    for step in (1, 2):
        ranks[0].do(
            f"run.save('step_{step}', files={{'m.bin': b'x' * 100_000}}, pointers={{'latest': 'step_{step}'}})"
            ".wait('committed', 60)"
        )

    def latest():
        with open(os.path.join(root, "latest"), encoding="utf-8") as file:
            return file.read()

    until(lambda: latest() == "step_2", "the pointer")
    daemon.restart()  # Drops it from memory.
    flip(root, "step_2/m.bin", 50_000)
    assert ranks[0].fails("with run.open() as c: c.read('m.bin')").kind == "Corrupt"
    until(lambda: latest() == "step_1", "the pointer's way back")
    ranks[0].do("run.save('step_3', files={'m.bin': b'x'}, pointers={'latest': 'step_3'}).wait('committed', 60)")
    until(lambda: latest() == "step_3", "the pointer's way on")


def test_reading_without_daemon_honors_damage_marks_of_daemon(daemon, trainers, saved):
    flip(saved, "step_2/r1.pt", 600_000)
    assert together(trainers("b", 2), RESTORE) == [["step_1", 1.0]] * 2
    daemon.kill()
    copy = saved + "-copy"
    shutil.copytree(saved, copy)
    for where in (saved, copy):
        root = ckptd.open_root(where)
        with root.open() as checkpoint:
            assert checkpoint.tag == "step_1" and [passed.tag for passed in checkpoint.passed_over] == ["step_2"]
        assert root.latest().tag == "step_1" and [info.damage != "" for info in root.list()] == [True, False]
        with pytest.raises(ckptd.Corrupt):
            root.open(strict=True)
