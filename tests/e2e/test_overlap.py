"""Overlapping saves: each rank saves what it had when save() was called, and no save is lost."""

import pytest

from harness import ckptctl, tags, together, together_failing, until


def test_two_saves_in_flight_keep_their_own_bytes(trainers):
    rank = trainers("a", 1)[0]
    rank.do(
        'x = torch.zeros(8 << 20)\nfirst = run.save("one", files={"m.pt": {"x": x}})\nx += 1\n'
        'second = run.save("two", files={"m.pt": {"x": x}})\nx += 1\nfirst.wait(); second.wait()'
    )
    assert rank.do(
        "values = []\nfor tag in ('one', 'two'):\n    with run.open(tag) as c: t = c.load('m.pt')['x']; values.append([t.min().item(), t.max().item()])\nvalues"
    ) == [[0.0, 0.0], [1.0, 1.0]]


def test_tensor_changed_right_after_save_returns_is_saved_unchanged(make_daemon, trainers):
    big = make_daemon("big", pool_bytes=640 << 20)
    rank = trainers("a", 1, endpoint=big.endpoint)[0]
    rank.do('x = torch.zeros(64 << 20)\nsave = run.save("t", files={"m.pt": {"x": x}})\nx.fill_(7.0)\nsave.wait()')
    assert rank.do("with run.open() as c: y = c.load('m.pt')['x']\n[y.min().item(), y.max().item()]") == [0.0, 0.0]


def test_four_saves_back_to_back_are_all_committed(trainers, root):
    ranks = trainers("a", 2)
    together(
        ranks,
        "saves = []\nfor i in range(4):\n    saves.append(run.save(f's{i}', step=i, files={f'r{rank}.pt': {'x': torch.full((1 << 20,), float(i))}}))\n"
        "for save in saves: save.wait('committed', 60)",
    )
    assert tags(root) == ["s3", "s2", "s1", "s0"]
    assert ckptctl("verify", root).returncode == 0


def test_every_rank_sees_skipped_save(make_daemon, trainers, root):
    small = make_daemon("small", pool_bytes=16 << 20)
    ranks = trainers("a", 2, endpoint=small.endpoint)
    together(ranks, "part = run.begin('held', step=1)\npart.add(f'h{rank}.bin', b'x' * (7 << 20))")
    levels = together(ranks, "s = run.save('next', step=2, busy='skip', files={f'n{rank}.bin': b'y' * (4 << 20)})\ns.level")
    assert levels == ["skipped", "skipped"]
    errors = together_failing(ranks, "s.wait()")
    assert [error.kind for error in errors] == ["Skipped", "Skipped"]
    together(ranks, "part.__exit__(None, None, None)\npart.wait()")
    assert tags(root) == ["held"]


def test_supersede_replaces_unsealed_save(make_daemon, trainers, root):
    small = make_daemon("small", pool_bytes=16 << 20)
    rank = trainers("a", 1, endpoint=small.endpoint)[0]
    rank.do("part = run.begin('old', step=1)\npart.add('a.bin', b'x' * (12 << 20))")
    rank.do("run.save('new', step=2, busy='supersede', files={'a.bin': b'y' * (12 << 20)}).wait()")
    assert rank.fails("part.__exit__(None, None, None)\npart.wait()").kind == "Superseded"
    assert tags(root) == ["new"]


def test_two_half_admitted_saves_do_not_block_each_other(make_daemon, trainers, root):
    small = make_daemon("small", pool_bytes=16 << 20)
    ranks = trainers("a", 2, endpoint=small.endpoint)
    save = "run.save('{0}', files={{f'{0}{{rank}}.bin': b'x' * (6 << 20)}}, timeout=20)"
    # Rank 0 begins with A, rank 1 with B, each from two threads.
    code = (
        "import concurrent.futures as f\npool = f.ThreadPoolExecutor(2)\n"
        "first = pool.submit(lambda: {0})\ntime.sleep(0.2)\nsecond = pool.submit(lambda: {1})\n"
        "first.result(40).wait('committed', 40); second.result(40).wait('committed', 40)"
    )
    ranks[0].start(code.format(save.format("A"), save.format("B")))
    ranks[1].start(code.format(save.format("B"), save.format("A")))
    for trainer in ranks:
        trainer.result(90)
    assert sorted(tags(root)) == ["A", "B"]


def test_both_ranks_receive_error_when_they_claim_one_file(trainers, root):
    ranks = trainers("a", 2)
    errors = together_failing(ranks, "run.save('t', files={'model.pt': {'x': torch.ones(3)}})")
    assert [error.kind for error in errors] == ["FileConflict", "FileConflict"]
    assert "model.pt" in errors[0].message and errors[0].ranks == [0, 1]
    assert tags(root) == []


def test_trainers_run_own_collective_during_save(trainers, root):
    ranks = trainers(
        "a", 2, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571", "WORLD_SIZE": "2"}, join=False
    )
    together(
        ranks,
        "os.environ['RANK'] = str(rank)\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
        f"run = client.run({root!r})\n"
        "saves = []\n"
        "for i in range(20):\n"
        "    saves.append(run.save(f's{i}', step=i, files={f'r{rank}.pt': {'x': torch.ones(1 << 18)}}))\n"
        "    t = torch.ones(1 << 16); dist.all_reduce(t)\n"
        "for s in saves: s.wait()\n"  # A younger one may be on a slow disk first.
        "dist.destroy_process_group()",
        120,
    )
    assert tags(root)[0] == "s19" and len(tags(root)) == 20


def test_exception_in_begin_aborts_save_for_all_ranks(trainers, root):
    ranks = trainers("a", 2)
    together(ranks, "s = run.begin('t', step=1)")
    ranks[1].do("s.add('r1.bin', b'x'); s.__exit__(None, None, None)")
    assert ranks[0].fails("with s: raise ValueError('no gradient')").kind == "ValueError"
    error = ranks[1].fails("s.wait('committed', 30)")
    assert error.kind == "CheckpointFailed" and error.reason == "SAVE_ABORTED" and "no gradient" in error.message
    assert tags(root) == []


def test_failure_without_waiter_is_in_failures_and_not_in_later_save(trainers, root):
    ranks = trainers("a", 2, options=", commit_timeout=1.0")
    ranks[1].start("part = run.begin('t', step=1)")
    ranks[0].do("s = run.save('t', step=1, files={'r0.bin': b'x'})")
    ranks[1].result()
    until(lambda: ranks[0].do("[f.reason for f in run.failures()]") == ["RANKS_MISSING"], "the failure's report")
    together(ranks, "run.save('u', step=2, files={f'r{rank}.bin': b'y'}).wait()")
    assert tags(root) == ["u"]


@pytest.mark.parametrize("backend", ["io_uring", "threads"])
def test_both_io_back_ends_save_and_restore(make_daemon, trainers, root, backend):
    other = make_daemon(backend, io_backend=backend)
    ranks = trainers("a", 2, endpoint=other.endpoint)
    together(ranks, "x = torch.randn(3 << 20)\nrun.save('t', files={f'r{rank}.pt': {'x': x}}).wait()")
    assert other.run_status(root).probe.io_backend == backend
    assert together(ranks, "with run.open() as c: y = c.load(f'r{rank}.pt')['x']\nbool(torch.equal(x, y))") == [True, True]
    assert ckptctl("verify", root).returncode == 0


def test_bytes_go_over_grpc_when_descriptors_cannot_be_received(trainers, root):
    rank = trainers("a", 1, env={"CKPTD_TRANSPORT": "grpc"})[0]
    rank.do("x = torch.randn(5 << 20)\ns = run.save('t', files={'m.pt': {'x': x}, 'empty': b''})\ns.wait()")
    assert rank.do("s.transport") == "grpc"
    assert rank.do("with run.resume() as c: y = c.load('m.pt')['x']\nbool(torch.equal(x, y))") is True
    assert ckptctl("verify", root).returncode == 0
