"""Pointer files, such as DeepSpeed's `latest`: correct after every commit and every restart, and never a
user's own directory.
"""

import os
import signal

from harness import tags, together, together_failing, until, until_equal


SAVE = (
    'run.save("{tag}", step={step}, files={{f"r{{rank}}.bin": b"x" * 100000}}, pointers={{"latest": "{tag}"}})'
    '.wait("committed", 60)'
)


def pointer(root, name="latest"):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def test_latest_pointer_names_newest_checkpoint_after_daemon_was_killed(daemon, trainers, root):
    ranks = trainers("a", 2, options=", num_kept_ckpts=1")
    for step in (1, 2):
        together(ranks, SAVE.format(tag=f"global_step{step}", step=step))
        # What DeepSpeed's loader does, without ckptd.
        assert os.listdir(os.path.join(root, pointer(root))) and pointer(root) == f"global_step{step}"
    os.kill(daemon.pid, signal.SIGKILL)
    with open(os.path.join(root, "latest"), "w", encoding="utf-8") as file:
        file.write("global_step1")
    daemon.restart()
    until(lambda: pointer(root) == "global_step2", "the pointer's repair")
    # What the pointer names is kept, although only one checkpoint is.
    together(ranks, "run.save('other', step=3, files={f'r{rank}.bin': b'y'}).wait('committed', 60)", 90)
    assert pointer(root) == "global_step2" and "global_step2" in tags(root)
    together(ranks, SAVE.format(tag="global_step4", step=4))
    assert pointer(root) == "global_step4"
    until_equal(lambda: tags(root), ["global_step4"], "retention")


def test_sealed_save_moves_pointer_when_daemon_is_killed_before_commit(daemon, trainers, root):
    ranks = trainers("a", 2)
    together(ranks, SAVE.format(tag="one", step=1))
    together(
        ranks,
        "s = run.save('two', step=2, files={f'r{rank}.bin': b'z' * (8 << 20)}, pointers={'latest': 'two'})",
    )
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.restart()
    # Depending on timing it had reached the disk, or the clients recover it with the next daemon.
    committed = together(ranks, "s.future().exception(60) is None", 90)
    together(ranks, "run.resume().__exit__(None, None, None)", 90)
    assert tags(root)[0] == ("two" if any(committed) else "one")
    assert pointer(root) == tags(root)[0]


def test_directory_in_place_of_pointer_is_refused_and_untouched(daemon, trainers, root):
    os.makedirs(os.path.join(root, "latest", "mine"))
    rank = trainers("a", 1)[0]
    error = rank.fails(SAVE.format(tag="one", step=1))
    assert (error.kind, error.reason) == ("Refused", "POINTER_FOREIGN")
    assert os.listdir(os.path.join(root, "latest")) == ["mine"] and tags(root) == []
    rank.do(SAVE.format(tag="two", step=2).replace('"latest"', '"newest"'))
    assert pointer(root, "newest") == "two" and tags(root) == ["two"]


def test_ranks_with_different_pointer_contents_are_refused(trainers):
    ranks = trainers("a", 2)
    code = "run.save('t', files={f'{rank}.bin': b'x'}, pointers={'latest': 'tu'[rank]}, timeout=3)"
    first, second = sorted(together_failing(ranks, code), key=lambda error: error.reason)
    assert first.reason == "SAVE_ABORTED"
    assert second.reason == "SAVE_CONFLICT" and '"t"' in second.message and '"u"' in second.message
