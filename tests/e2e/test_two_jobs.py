"""Two jobs in one root: the second one is refused, takes over, or comes after the first; notebooks that run a cell
twice; readers that are no rank.
"""

import time

from harness import tags, together, until_equal

import ckptd

SAVE = "run.save({tag!r}, files={{f'r{{rank}}.bin': b'x'}}).wait()"


def job(name):
    return {"CKPTD_JOB_ID": name}


def test_second_job_is_refused_until_it_takes_over_and_both_sides_are_told(daemon, trainers, root):
    first = trainers("a", 2, env=job("one"))
    together(first, SAVE.format(tag="one"))
    (second,) = trainers("b", 1, env=job("two"), join=False)
    began = time.monotonic()
    error = second.fails(f"client.run({root!r}, rank=0, world_size=1)")
    assert time.monotonic() - began > 5, "it waits a little for the end of the other job"
    assert error.kind == "Refused" and error.reason == "RUN_IN_USE"
    assert "attempt 1 (ranks 0,1) of another job still runs" in error.message and "takeover" in error.message
    together(first, SAVE.format(tag="two"))  # Nothing has happened to the first.
    second.do(f"run = client.run({root!r}, rank=0, world_size=1, takeover=True)")
    assert "attempt 2 takes" in daemon.log() and "from attempt 1 (ranks 0,1)" in daemon.log()
    for rank in first:  # Before the second one has saved anything.
        assert rank.fails(SAVE.format(tag="late")).kind == "Fenced"
    second.do(SAVE.format(tag="three"))
    for rank in first:
        error = rank.fails(SAVE.format(tag="four"))
        assert error.kind == "Fenced" and "attempt 2 of this run" in error.message
    assert tags(root) == ["three", "two", "one"]


def test_job_that_starts_while_the_one_before_is_ending_waits_for_it(daemon, trainers, root):
    first = trainers("a", 2, env=job("one"))
    (second,) = trainers("b", 1, env=job("two"), join=False)
    second.start(f"run = client.run({root!r}, rank=0, world_size=1)\nrun.attempt")
    first[1].kill()  # One process that has ended ends its launch; the other one may hang.
    assert second.result() == 2
    second.do(SAVE.format(tag="one"))
    assert first[0].fails("run.save('two', files={'r0.bin': b'x'}, ranks=[0])").kind == "Fenced"


def test_restart_of_one_job_needs_no_takeover(daemon, trainers, root):
    first = trainers("a", 1, env=job("one"))[0]  # It hangs.
    second = trainers("b", 1, env=job("one"))[0]
    second.do(SAVE.format(tag="one"))
    assert first.fails(SAVE.format(tag="two")).kind == "Fenced"


def test_cell_that_is_run_twice_resumes_from_what_it_saved(daemon, trainers, root):
    (notebook,) = trainers("a", 1, join=False)
    cell = f"""
run = ckptd.connect().run({root!r}, rank=0, world_size=1)
with run.resume() as last:
    step = last.step + 1 if last else 1
run.save(f"step_{{step}}", step=step, files={{"a.bin": b"x"}}).wait()
"""
    for step in (1, 2, 3):
        notebook.do(f"older = globals().get('run')\n{cell}")
        assert notebook.do("step") == step
    assert notebook.fails("older.save('four', files={'a.bin': b'x'})").reason == "RANK_TAKEN"
    assert tags(root) == ["step_3", "step_2", "step_1"]


def test_save_of_one_rank_is_committed_and_read_by_all(daemon, trainers, root):
    ranks = trainers("a", 2)
    error = ranks[0].fails("run.save('two', files={'m.bin': b'x'}, timeout=0.5)")
    assert error.reason == "RANKS_MISSING" and "unless the save names its ranks" in error.message
    ranks[0].do("run.save('one', step=1, files={'m.bin': b'model'}, ranks=[0]).wait()")
    assert ranks[1].do("[info.tag for info in run.list()]") == ["one"]
    together(ranks, SAVE.format(tag="one"))  # The same tag by all ranks: another save.
    ranks[0].do("run.save('one', step=1, files={'m.bin': b'model'}, ranks=[0]).wait()")
    both = together(ranks, "run.restore(lambda last: last.read('m.bin').decode())")
    assert both == ["model", "model"]


def test_reader_without_rank_reads_beside_the_job(daemon, trainers, root):
    (rank,) = trainers("a", 1)
    rank.do("run.save('one', step=1, files={'a.bin': b'bytes'}).wait()")
    with ckptd.connect(daemon.endpoint) as client:
        reader = client.open(root)
        assert [info.tag for info in reader.list()] == ["one"] and reader.latest().step == 1
        with reader.open("latest") as checkpoint:
            assert checkpoint.read("a.bin") == b"bytes"
    rank.do("run.save('two', step=2, files={'a.bin': b'bytes'}).wait()")
    assert rank.do("run.attempt") == 1


def test_other_model_does_not_evict_what_it_could_not_resume_from(daemon, trainers, root):
    (first,) = trainers("a", 1, options=", num_kept_ckpts=2")
    first.do("import torch")
    for step in (1, 2):
        first.do(f"run.save('one_{step}', step={step}, files={{'m.pt': {{'w': torch.ones(3)}}}}).wait('committed')")
    first.kill()
    (second,) = trainers("b", 1, options=", num_kept_ckpts=1")
    second.do("import torch")
    error = second.fails("with run.resume() as last: last.load('m.pt', into={'w': torch.zeros(5)})")
    assert error.reason == "STATE_MISMATCH"
    for step in (1, 2, 3):
        second.do(f"run.save('other_{step}', step={step}, files={{'m.pt': {{'w': torch.ones(5)}}}}).wait('committed')")
    until_equal(lambda: tags(root), ["other_3", "one_2", "one_1"], "the eviction of the second model's own checkpoints")
    assert "could not resume from sequence 2" in daemon.log() and "ckptctl delete" in daemon.log()
    second.kill()
    (third,) = trainers("c", 1, options=", num_kept_ckpts=1, takeover=True")
    third.do("run.save('third', step=4, files={'m.bin': b'x'}).wait('committed')")
    until_equal(lambda: tags(root), ["third"], "the eviction of what a takeover counts")
