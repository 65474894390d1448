"""`ckptd://` URLs, where DCP takes a URL and no writer."""

import os

STATE = "states.sharded_state({})"
REGISTER = "import fsspec; fsspec.register_implementation('ckptd', 'ckptd.dcp._fsspec.CkptdFileSystem', clobber=True)"


def test_url_saves_through_ckptd_and_loads_again_without_a_sync_of_the_machine(launch, root):
    ranks = launch(2)
    url = f"ckptd://{root}/step-1"
    ranks.do(
        f"{REGISTER}\nsyncs = []; real_sync, os.sync = os.sync, lambda: syncs.append(1)\n"
        f"try: dcp.save({STATE.format(1)}, checkpoint_id={url!r})\nfinally: os.sync = real_sync"
    )
    assert ranks.do("syncs") == [[], []]
    assert os.path.exists(f"{root}/step-1/.ckptd/manifest")
    assert sorted(name for name in os.listdir(root) if name != ".ckptd") == ["step-1"]
    for target in (f"dcp.load(into, checkpoint_id={url!r})", f"dcp.load(into, storage_reader=Reader({root + '/step-1'!r}))"):
        ranks.do(f"into = states.emptied({STATE.format(1)})\n{target}")
        assert ranks.do(f"states.differences({STATE.format(1)}, into)") == [[], []]
    assert ranks.do(f"sorted(os.path.basename(p) for p in fsspec.filesystem('ckptd').ls({url!r}, detail=False))")[0] == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
    ]


def test_checkpoint_of_a_url_is_replaced_whole(alone, root):
    url = f"ckptd://{root}/last"
    os.mkdir(f"{root}/.last.incoming")
    with open(f"{root}/.last.incoming/__3_0.distcp", "w") as file:
        file.write("left by a job that was killed")
    for seed in (1, 2):
        alone.do(f"{REGISTER}\ndcp.save({{'a': torch.full((3,), {seed}.0)}}, checkpoint_id={url!r})")
    alone.do(f"into = {{'a': torch.zeros(3)}}; dcp.load(into, checkpoint_id={url!r})")
    assert alone.do("into['a'].tolist()") == [2.0] * 3
    assert sorted(os.listdir(f"{root}/last")) == [".ckptd", ".metadata", "__0_0.distcp"]


def test_file_in_a_folder_of_a_checkpoint_is_listed_and_read(alone, root):
    alone.do(f"{REGISTER}\nfs = fsspec.filesystem('ckptd')")
    alone.do(f"ckptd.dcp.run({root!r}).save('step-1', files={{'unet/config.json': b'1234', 'a.bin': b'5'}}).wait('committed', 60)")
    url = f"ckptd://{root}/step-1/unet/config.json"
    assert alone.do(f"fs.cat_file({url!r}).decode()") == "1234"
    assert alone.do(f"fs.ls({url!r}, detail=False)") == [f"{root}/step-1/unet/config.json"]
    assert alone.do(f"fs.find('ckptd://{root}/step-1')") == [f"{root}/step-1/a.bin", f"{root}/step-1/unet/config.json"]
    assert 'step-1 has no file "unet/none"' in alone.fails(f"fs.cat_file('ckptd://{root}/step-1/unet/none')").message


def test_missing_checkpoint_and_wrong_uses_of_a_url_are_errors_that_say_so(alone, root):
    alone.do(f"{REGISTER}\nfs = fsspec.filesystem('ckptd')")
    assert "no checkpoint" in alone.fails(f"fs.open('ckptd://{root}/none/.metadata', 'rb')").message
    assert "commits a checkpoint" in alone.fails(f"fs.rename('ckptd://{root}/a/x', 'ckptd://{root}/a/y')").message
    assert '"rb" or "wb"' in alone.fails(f"fs.open('ckptd://{root}/a/x', 'ab')").message


def test_single_file_is_refused_because_no_checkpoint_would_have_it(alone, root):
    alone.do(f"{REGISTER}\nfs = fsspec.filesystem('ckptd'); ckptd.dcp.run({root!r}).save('a', files={{'b': b'1'}}).wait('committed', 60)")
    with open(f"{root}/local", "w") as file:
        file.write("x")
    url = f"ckptd://{root}/step-1/x"
    calls = (
        f"fs.put({root + '/local'!r}, {url!r})",
        f"fs.pipe({url!r}, b'1')",
        f"fs.touch({url!r})",
        f"fs.cp('ckptd://{root}/a/b', {url!r})",
    )
    for call in calls:
        assert "appears whole" in alone.fails(call).message, call
    assert sorted(os.listdir(root)) == [".ckptd", "a", "local"]
