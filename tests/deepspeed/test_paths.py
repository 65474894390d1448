"""Checkpoints by links, without a manifest, and those of DeepSpeed alone."""

import os
import shutil

import pytest

SAID = (
    "import logging; said = []; handler = logging.Handler(); handler.emit = lambda record: said.append(record.getMessage())\n"
    "logging.getLogger('ckptd').addHandler(handler)"
)


@pytest.mark.parametrize("with_daemon", [True, False], ids=["with the daemon", "at a restart"])
def test_link_to_a_checkpoint_is_loaded_verified(pair, daemon, root, with_daemon):
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine(wait='committed'))")
    pair.do(f"states.train(made); made.save_checkpoint({root!r}, 'a'); wanted = states.state(made)")
    os.symlink("a", f"{root}/best")
    if with_daemon:
        daemon.kill()  # It has the bytes in memory, too.
        daemon.restart()
    else:
        shutil.copytree(root, root + "-moved", symlinks=True, ignore=lambda path, names: [".ckptd"] if path == root else [])
        root += "-moved"  # A root that no daemon has open.
    pair.do("made = states.engine(1, seed=9, checkpoint_engine=CheckpointEngine())")
    assert pair.do(f"made.load_checkpoint({root!r}, 'best')[0]")[0].startswith(f"{root}/best/")
    assert pair.do("states.differences(wanted, states.state(made))") == [[], []]
    pair.processes[0].do(f"states.damage('{root}/a/zero_pp_rank_1_mp_rank_00_optim_states.pt')")
    pair.do("before = states.state(made)")
    errors = pair.fail(f"made.load_checkpoint({root!r}, 'best')")
    assert [error.kind for error in errors] == ["CheckpointFailed", "Corrupt"]
    assert pair.do("states.differences(before, states.state(made))") == [[], []]


def test_checkpoint_without_its_manifest_is_refused_and_passed_over(pair, root):
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine(wait='committed'))")
    for tag in ("a", "b"):
        pair.do(f"states.train(made); made.save_checkpoint({root!r}, {tag!r})")
    shutil.copytree(f"{root}/b", f"{root}/c", ignore=shutil.ignore_patterns(".ckptd"))
    errors = pair.fail(f"made.load_checkpoint({root!r}, 'c')")
    assert all("written by ckptd, and its manifest" in error.message for error in errors)


def test_checkpoint_of_deepspeed_alone_is_loaded_with_a_warning(pair, root):
    pair.do(f"made = states.engine(1); states.train(made); made.save_checkpoint({root!r}, 'a')")
    pair.do(f"{SAID}\nmade.checkpoint_engine = CheckpointEngine(wait='committed')")
    pair.do(f"made.save_checkpoint({root!r}, 'b'); made.load_checkpoint({root!r}, 'b')")
    assert pair.do("[text for text in said if 'unverified' in text]") == [[], []]
    pair.do(f"made.load_checkpoint({root!r}, 'a')")
    for texts in pair.do("said"):
        assert [text for text in texts if f"{root}/a" in text and "read unverified" in text]


EVIL = (
    "class Evil:\n"
    "    def __init__(self, path): self.path = path\n"
    "    def __reduce__(self): return os.makedirs, (self.path, 0o777, True)"
)


@pytest.mark.parametrize("ours", [True, False], ids=["of ckptd", "of DeepSpeed"])
def test_class_that_could_run_code_is_refused_unless_it_is_allowed(pair, root, ours):
    engine = "CheckpointEngine(wait='committed')" if ours else "None"
    pair.do(f"{EVIL}\nmade = states.engine(1, checkpoint_engine={engine}); states.train(made)")
    pair.do(f"made.save_checkpoint({root!r}, 'a', client_state={{'evil': Evil('{root}-ran-%d' % dist.get_rank())}})")
    pair.do("made.checkpoint_engine = CheckpointEngine(wait='committed'); before = states.state(made)")
    try:
        for error in pair.fail(f"made.load_checkpoint({root!r}, 'a')"):
            assert error.kind in ("Refused", "CheckpointFailed") and "os.makedirs" in error.message, error
            assert "ckptd.deepspeed.configure(safe_globals=[...])" in error.message
        assert not os.path.exists(f"{root}-ran-0")
        assert pair.do("states.differences(before, states.state(made))") == [[], []]
        pair.do(f"ckptd.deepspeed.configure(weights_only=False); made.load_checkpoint({root!r}, 'a')")
        assert os.path.exists(f"{root}-ran-0")
    finally:
        pair.do("ckptd.deepspeed.configure()")
