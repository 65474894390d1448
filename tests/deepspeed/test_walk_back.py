"""A load without a tag, when what `latest` names cannot be loaded: the next older checkpoint, with a message."""

import os
import shutil

import pytest

SAID = (
    "import logging; said = []; handler = logging.Handler(); handler.emit = lambda record: said.append(record.getMessage())\n"
    "logging.getLogger('ckptd').addHandler(handler)"
)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


# What is done to a root with the tags a and b, of which `latest` names b; and what is loaded then.
DAMAGES = {
    "manifest cut": (lambda root: os.truncate(f"{root}/b/.ckptd/manifest", 20), "a"),
    "head of the manifest": (lambda root: flip(f"{root}/b/.ckptd/manifest", 40), "a"),
    "body of the manifest": (lambda root: flip(f"{root}/b/.ckptd/manifest", 4100), "a"),
    "no manifest": (lambda root: shutil.rmtree(f"{root}/b/.ckptd"), "a"),
    "removed tag": (lambda root: shutil.rmtree(f"{root}/b"), "a"),
    "latest names nothing": (lambda root: write(f"{root}/latest", "zzz"), "b"),
    "latest is empty": (lambda root: write(f"{root}/latest", ""), "b"),
    "latest is missing": (lambda root: os.unlink(f"{root}/latest"), "b"),
}


@pytest.fixture(scope="module")
def saved(shared_pair, session_folder):
    root = os.path.join(session_folder, "walk-back")
    shared_pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine(wait='committed'))")
    for tag in ("a", "b"):
        shared_pair.do(f"states.train(made); made.save_checkpoint({root!r}, {tag!r})")
    return root


@pytest.mark.parametrize("with_daemon", [True, False], ids=["with the daemon", "at a restart"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_load_walks_back(pair, saved, root, damage, with_daemon):
    os.rmdir(root)
    shutil.copytree(saved, root)
    shutil.rmtree(root + "/.ckptd")
    do, wanted = DAMAGES[damage]
    do(root)
    if with_daemon or damage == "no manifest":  # Which is known in a root of ckptd alone.
        os.mkdir(root + "/.ckptd")
    pair.do(f"{SAID}\nmade = states.engine(1, seed=9, checkpoint_engine=CheckpointEngine())")
    assert pair.do(f"made.load_checkpoint({root!r})[0]")[0].startswith(f"{root}/{wanted}/")
    texts = pair.do("said")[0]
    if with_daemon or damage == "no manifest":
        return  # The daemon has already made `latest` name another checkpoint.
    reasons = ("loading the next older checkpoint", "latest is empty", "latest is missing")
    assert [text for text in texts if any(reason in text for reason in reasons)], texts


def test_load_begins_anew_where_no_checkpoint_was_saved_with_latest(pair, root):
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine(wait='committed'))")
    assert pair.do(f"made.load_checkpoint({root!r})[0]") == [None, None]
    pair.do(f"states.train(made); made.save_checkpoint({root!r}, 'best', save_latest=False)")
    assert pair.do(f"made.load_checkpoint({root!r})[0]") == [None, None]
    pair.do(f"made.save_checkpoint({root!r}, 'newest'); made.save_checkpoint({root!r}, 'best-2', save_latest=False)")
    os.unlink(f"{root}/latest")
    assert [os.path.basename(os.path.dirname(path)) for path in pair.do(f"made.load_checkpoint({root!r})[0]")] == ["newest"] * 2


def test_tag_that_is_not_there_is_not_found(pair, root):
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine())")
    write(f"{root}/latest", "zzz")
    for tag in (None, "zzz"):
        for error in pair.fail(f"made.load_checkpoint({root!r}, {tag!r})"):
            assert error.kind == "NotFound" and f"there is no checkpoint {root}/zzz" in error.message
    write(f"{root}/latest", "")
    for error in pair.fail(f"made.load_checkpoint({root!r})"):
        assert error.kind == "NotFound" and "latest is empty" in error.message
