"""Paths of checkpoints: links, other spellings, directories without a manifest, and files of DCP's own writer."""

import os
import shutil

import pytest


@pytest.fixture
def saved(alone, root):
    """A checkpoint s-1 of one tensor, with a link `best` in the root and a link `outside` beside the root."""
    alone.do(f"dcp.save({{'w': torch.ones(64)}}, storage_writer=Writer({root + '/s-1'!r}))")
    os.symlink("s-1", root + "/best")
    os.symlink(root + "/s-1", root + "-outside")
    os.symlink(root, root + "-root")
    yield root
    os.unlink(root + "-outside")
    os.unlink(root + "-root")


def paths(root):
    return [root + "/s-1", root + "/best", root + "-outside", root + "-root/s-1", f"{root}/../{os.path.basename(root)}/s-1/"]


def load(path, daemon=True):
    return f"into = {{'w': torch.zeros(64)}}; dcp.load(into, storage_reader=Reader({path!r}, daemon={daemon})); into['w'].sum().item()"


@pytest.mark.parametrize("daemon_", [True, False], ids=["with the daemon", "from the disk"])
def test_every_path_of_a_checkpoint_is_read_verified(alone, saved, daemon_):
    for path in paths(saved):
        assert alone.do(load(path, daemon_)) == 64.0
    alone.do(
        f"data = bytearray(open({saved + '/s-1/__0_0.distcp'!r}, 'rb').read())\n"
        "data[data.find(torch.ones(64).numpy().tobytes()) + 2] ^= 0x40\n"
        f"open({saved + '/s-1/__0_0.distcp'!r}, 'wb').write(data)"
    )
    for path in paths(saved):
        if daemon_:  # It still has the bytes in memory.
            assert alone.do(load(path, daemon_)) == 64.0
        else:
            assert "Corrupt" in alone.fails(load(path, daemon_)).message


def test_save_in_flight_is_waited_for_by_every_path(alone, saved):
    shutil.rmtree(saved + "/s-1")
    for path in paths(saved):
        alone.do(f"ckptd.dcp.async_save({{'w': torch.full((64,), 2.0)}}, checkpoint_id={saved + '/s-1'!r})")
        assert alone.do(load(path)) == 128.0


def test_run_and_root_open_a_link(alone, saved):
    assert alone.do(f"[each.open('best').tag for each in (ckptd.dcp.run({saved!r}), ckptd.connect().open({saved!r}), ckptd.open_root({saved!r}))]") == ["s-1"] * 3


@pytest.mark.parametrize("daemon_", [True, False], ids=["with the daemon", "from the disk"])
def test_checkpoint_without_its_manifest_is_refused_in_its_root_and_read_with_a_warning_outside(alone, saved, daemon_):
    if daemon_:
        shutil.copytree(saved + "/s-1", saved + "/copy")  # The daemon has the bytes of s-1 itself in memory.
    else:
        os.rename(saved + "/s-1", saved + "/copy")
    shutil.rmtree(saved + "/copy/.ckptd")
    error = alone.fails(load(saved + "/copy", daemon_))
    assert "ckptd.errors.Corrupt: " in error.message and "written by ckptd, and its manifest" in error.message
    os.mkdir(saved + "-elsewhere")
    os.rename(saved + "/copy", saved + "-elsewhere/copy")
    alone.do(
        "import logging; said = []; handler = logging.Handler(); handler.emit = lambda record: said.append(record.getMessage())\n"
        "logging.getLogger('ckptd').addHandler(handler)"
    )
    assert alone.do(load(saved + "-elsewhere/copy", daemon_)) == 64.0
    assert [text for text in alone.do("said") if saved + "-elsewhere/copy" in text and "read unverified" in text]
    shutil.rmtree(saved + "-elsewhere")


def test_checkpoint_of_dcp_itself_in_a_root_of_ckptd_is_read_with_a_warning(alone, saved):
    alone.do(
        "import logging; said = []; handler = logging.Handler(); handler.emit = lambda record: said.append(record.getMessage())\n"
        "logging.getLogger('ckptd').addHandler(handler)\n"
        f"dcp.save({{'w': torch.full((64,), 3.0)}}, storage_writer=FileSystemWriter({saved + '/stock'!r}))"
    )
    assert alone.do(load(saved + "/stock")) == 192.0
    assert [text for text in alone.do("said") if saved + "/stock" in text and "read unverified" in text]


def test_latest_names_a_newer_checkpoint_of_dcp_itself_in_the_log(alone, root):
    alone.do(
        "import logging; said = []; handler = logging.Handler(); handler.emit = lambda record: said.append(record.getMessage())\n"
        "logging.getLogger('ckptd').addHandler(handler)\n"
        "state = {'w': torch.ones(64)}\n"
        f"dcp.save(state, storage_writer=FileSystemWriter({root + '/step-1'!r}))\n"
        f"dcp.save(state, storage_writer=ckptd.dcp.Writer({root + '/step-2'!r}))"
    )
    assert alone.do(f"ckptd.dcp.latest({root!r})") == root + "/step-2"
    assert alone.do("said") == []
    alone.do(f"dcp.save(state, storage_writer=FileSystemWriter({root + '/step-3'!r}))")
    assert alone.do(f"ckptd.dcp.latest({root!r})") == root + "/step-2"
    assert [text for text in alone.do("said") if f"{root}/step-3 is newer than {root}/step-2" in text]


def test_latest_of_a_damaged_manifest_and_nothing_else_is_corrupt_and_not_none(alone, saved):
    root = saved + "-copied"
    shutil.copytree(saved, root, ignore=lambda path, _: [".ckptd", "best"] if path == saved else [])
    latest = f"ckptd.dcp.latest({root!r})"
    assert alone.do(latest) == root + "/s-1"
    os.truncate(root + "/s-1/.ckptd/manifest", 20)
    errors = [alone.fails(latest)]  # Without a daemon, because it is no root of ckptd.
    os.mkdir(root + "/.ckptd")
    errors.append(alone.fails(latest))
    for error in errors:
        assert error.kind == "Corrupt" and root in error.message
    shutil.rmtree(root)
