"""Promise 3: all ranks of an attempt resume from the same checkpoint, and `latest` never goes back by itself.
"""

from harness import tags, together

SAVE = 'save = run.save("{tag}", step={step}, files={{f"r{{rank}}.pt": {{"x": torch.full((1000,), {step}.0)}}}})\nsave.wait()'


def test_empty_root_has_nothing_to_resume_from(trainers):
    assert together(trainers("a", 2), "with run.resume() as c: found = bool(c)\nfound") == [False, False]


def test_checkpoint_published_between_resumes_of_two_ranks_does_not_split_them(trainers):
    first = trainers("a", 2)
    together(first, SAVE.format(tag="step_1", step=1))
    second = trainers("b", 2)
    assert second[0].do("c = run.resume()\nc.tag") == "step_1"
    together(second, SAVE.format(tag="step_2", step=2))
    assert second[1].do("c = run.resume()\nc.tag") == "step_1"
    assert second[1].do("run.latest().tag") == "step_2"


def test_job_resumes_from_older_step_and_continues(trainers, root):
    first = trainers("a", 1, options=", num_kept_ckpts=2")[0]
    for step in (500, 1000):
        first.do(SAVE.format(tag=f"step_{step}", step=step))
    second = trainers("b", 1, options=", num_kept_ckpts=2")[0]
    assert second.do("with run.open('step_500') as c: step = c.step\nstep") == 500
    second.do(SAVE.format(tag="step_600", step=600))
    assert second.do("run.latest().tag") == "step_600"
    second.do(SAVE.format(tag="step_700", step=700))
    second.do("time.sleep(0)\nrun.list()")
    assert [tag for tag in tags(root) if tag in ("step_600", "step_700")] == ["step_700", "step_600"]
    assert "goes back" in open(_log(second)).read()


def _log(trainer):
    return trainer.do("os.path.join(os.path.dirname(client.endpoint[len('unix:'):]), 'ckptd.log')")


def test_resume_with_another_world_size(trainers):
    first = trainers("a", 2)
    together(first, SAVE.format(tag="step_1", step=1))
    second = trainers("b", 3)
    assert together(second, "with run.resume() as c: files = list(c.files)\nfiles") == [["r0.pt", "r1.pt"]] * 3
    together(second, SAVE.format(tag="step_2", step=2))
    third = trainers("c", 1)[0]
    assert third.do("with run.resume() as c: tag = c.tag\ntag") == "step_2"


def test_metrics_step_and_files_are_restored(trainers):
    rank = trainers("a", 1)[0]
    rank.do(
        'run.save("t", step=7, metrics={"loss": 2.5}, files={"m.pt": {"w": torch.ones(3)}, "note.txt": b"hi"}).wait()'
    )
    assert rank.do("with run.open() as c: got = [c.tag, c.step, c.metrics['loss'], list(c.files), c.read('note.txt').decode()]\ngot") == [
        "t", 7, 2.5, ["m.pt", "note.txt"], "hi",
    ]


def test_corrupt_file_raises_error_with_its_place(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    rank.do('run.save("t", files={"m.pt": {"w": torch.ones(1000)}}).wait()')
    daemon.restart()  # Drops it from memory.
    with open(f"{root}/t/m.pt", "r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    error = rank.fails("with run.open() as c: c.load('m.pt')")
    assert error.kind == "Corrupt" and error.reason == "CORRUPT_FILE"
    assert "m.pt" in error.message and "chunk 0" in error.message
