"""Files that name classes which could run code: refused, unless they are allowed. Nothing of them is run."""

import os

import pytest

EVIL = (
    "import pickle, numpy, argparse\n"
    "class Evil:\n"
    "    def __init__(self, path): self.path = path\n"
    "    def __reduce__(self): return os.mkdir, (self.path,)\n"
    "class Own:\n"
    "    pass\n"
    "Own.__module__ = __name__ = 'own'; import sys, types; sys.modules['own'] = types.SimpleNamespace(Own=Own)\n"
)


@pytest.fixture
def victim(alone, root):
    """A process that has a state to load into, and configures ckptd.dcp as by default at the end."""
    alone.do(f"{EVIL}into = {{'w': torch.zeros(4), 'o': None}}")
    yield alone
    alone.do("ckptd.dcp.configure()")


def replace_metadata(process, path, ours):
    """Writes a checkpoint whose .metadata makes a directory when it is unpickled."""
    process.do(f"dcp.save({{'w': torch.ones(4), 'o': 1}}, storage_writer=FileSystemWriter({path + '-stock'!r}))")
    process.do(f"evil = pickle.dumps([Evil({path + '-ran'!r})])")
    if ours:
        process.do(
            f"data = open({path + '-stock/__0_0.distcp'!r}, 'rb').read()\n"
            f"ckptd.dcp.run({os.path.dirname(path)!r}).save({os.path.basename(path)!r}, files={{'.metadata': evil, '__0_0.distcp': data}}).wait()"
        )
    else:
        process.do(f"os.rename({path + '-stock'!r}, {path!r}); open({path + '/.metadata'!r}, 'wb').write(evil)")


@pytest.mark.parametrize("ours", [True, False], ids=["of ckptd", "of DCP"])
def test_metadata_with_another_class_is_refused_and_nothing_runs(victim, root, ours):
    path = root + "/a"
    replace_metadata(victim, path, ours)
    error = victim.fails(f"dcp.load(into, storage_reader=Reader({path!r}))")
    assert "posix.mkdir, which could run code: allow it by ckptd.dcp.configure(safe_globals=[...])" in error.message
    assert not os.path.exists(path + "-ran")
    victim.do("ckptd.dcp.configure(weights_only=False)")
    victim.fails(f"dcp.load(into, storage_reader=Reader({path!r}))")  # It is no metadata.
    assert os.path.exists(path + "-ran")


@pytest.mark.parametrize("writer", ["Writer", "FileSystemWriter"])
def test_object_of_another_class_is_refused_unless_it_is_allowed(victim, root, writer):
    path = root + "/a"
    victim.do(f"dcp.save({{'w': torch.ones(4), 'o': Evil({path + '-ran'!r})}}, storage_writer={writer}({path!r}))")
    load = f"dcp.load(into, storage_reader=Reader({path!r}))"
    assert "o of " in victim.fails(load).message and not os.path.exists(path + "-ran")
    victim.do(f"ckptd.dcp.configure(weights_only=False); {load}")
    assert os.path.exists(path + "-ran")


def test_class_that_is_allowed_is_loaded_and_those_that_run_no_code_are_by_default(victim, root):
    victim.do(
        "o = {'a': numpy.arange(3), 's': numpy.float64(2), 'n': argparse.Namespace(x=1), 'b': b'', 'r': numpy.random.get_state(), 'set': {1}}\n"
        f"dcp.save({{'w': torch.ones(4), 'o': (o,)}}, storage_writer=Writer({root + '/a'!r}))\n"
        f"into = {{'w': torch.zeros(4), 'o': None}}; dcp.load(into, storage_reader=Reader({root + '/a'!r}))"
    )
    assert victim.do("into['o'][0]['a'].tolist() == [0, 1, 2] and into['o'][0]['n'].x == 1 and into['o'][0]['set'] == {1}")
    victim.do(f"dcp.save({{'w': torch.ones(4), 'o': Own()}}, storage_writer=Writer({root + '/b'!r}))")
    load = f"into = {{'w': torch.zeros(4), 'o': None}}; dcp.load(into, storage_reader=Reader({root + '/b'!r}))"
    assert "own.Own" in victim.fails(load).message
    victim.do(f"ckptd.dcp.configure(safe_globals=[Own]); {load}")
    assert victim.do("type(into['o']) is Own")


def test_metadata_of_every_writer_and_form_is_read(alone, root):
    alone.do(
        "import pathlib\n"
        "state = {'c': torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last), 'h': torch.ones(2).half(), 'o': {'x': [1]}}\n"
        f"dcp.save(state, checkpoint_id=pathlib.Path({root + '/a'!r}))\n"
        "into = states.emptied(state)\n"
        f"dcp.load(into, storage_reader=Reader({root + '/a'!r}))"
    )
    assert alone.do("states.differences(state['c'], into['c'])") == []
