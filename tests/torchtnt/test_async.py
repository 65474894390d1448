"""Saves that go on beside training, and how they end. TorchTNT 0.2.4 of PyPI."""

import os
import signal
import threading

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES

from harness import until
from harness.stand_in_devices import IN_PROCESS

EVERY_2 = "save_every_n_train_steps=2, async_checkpoint=True"


def saved(root):
    return sorted(name for name in os.listdir(root) if name != ".ckptd")


def watch_until(process, root, seen):
    """Runs in a thread: lists a directory again and again while a process has no answer."""
    while process.poll() is None:
        seen.append(saved(root))
        if os.path.exists(root + ".done"):
            return


def test_there_is_a_checkpoint_at_any_moment_although_only_one_is_kept(alone, root):
    seen = []
    watcher = threading.Thread(target=watch_until, args=(alone.process, root, seen))
    watcher.start()
    try:
        alone.do(f"trained({root!r}, epochs=20, {EVERY_2}, keep_last_n_checkpoints=1)", 120)
    finally:
        open(root + ".done", "w").close()
        watcher.join()
    until(lambda: saved(root) == ["epoch_20_train_step_100"], "the removal of the others")
    first = next(number for number, names in enumerate(seen) if names)
    assert all(seen[first:]) and len({tuple(names) for names in seen}) > 5


@ON_ONE_AND_TWO_NODES
def test_unit_is_told_of_a_checkpoint_when_it_is_committed(launch, root):
    ranks = launch(2)
    for how in ("", ", async_checkpoint=True"):
        folder = f"{root}/{bool(how)}"
        told = ranks.do(f"trained({folder!r}, epochs=1, save_every_n_train_steps=2{how}).told")
        names = ["epoch_0_train_step_2", "epoch_0_train_step_4", "epoch_1_train_step_5"]
        assert told == [[[name, True] for name in names]] * 2


@ON_ONE_AND_TWO_NODES
def test_failed_save_is_raised_once_by_the_next_one_on_all_ranks(launch, root):
    os.mkdir(f"{root}/epoch_0_train_step_4")
    with open(f"{root}/epoch_0_train_step_4/thesis.txt", "w") as file:
        file.write("years of work")
    ranks = launch(2)
    ranks.do(f"saver = CheckpointSaver({root!r}, {EVERY_2}); u, b = Unit(), Batches()")
    # The first save has ended before the second begins; else the failure may come first, and nobody hears of that one.
    ranks.do("first_ends = At(3, lambda: [save.wait() for save in saver._in_flight.values()])")
    errors = ranks.fail("train(u, b, max_epochs=2, callbacks=[saver, first_ends])")
    assert [error.kind for error in errors] == ["CheckpointFailed"] * 2
    assert all("epoch_0_train_step_4" in error.message and "ckptd has not written it" in error.message for error in errors)
    # Its checkpoint does not count, those before and after it do, and training goes on with the same callback.
    assert saved(root) == ["epoch_0_train_step_2", "epoch_0_train_step_4", "epoch_1_train_step_6"]
    ranks.do("train(u, b, max_epochs=2, callbacks=[saver])")
    more = ["epoch_1_train_step_10", "epoch_1_train_step_6", "epoch_1_train_step_8", "epoch_2_train_step_10"]
    assert saved(root)[2:] == more
    told = ["epoch_0_train_step_2", "epoch_1_train_step_8", "epoch_1_train_step_10", "epoch_2_train_step_10"]
    assert ranks.do("u.told") == [[[name, True] for name in told]] * 2


@pytest.mark.parametrize("name", ["epoch_0_train_step_3", "epoch_1_train_step_5"])
def test_failed_save_is_raised_by_the_end_of_training(alone, root, name):
    os.mkdir(f"{root}/{name}")
    with open(f"{root}/{name}/thesis.txt", "w") as file:
        file.write("years of work")
    error = alone.fails(f"trained({root!r}, epochs=1, save_every_n_train_steps=3, async_checkpoint=True)")
    assert name in error.message and "ckptd has not written it" in error.message
    # What could be saved was saved.
    assert saved(root) == ["epoch_0_train_step_3", "epoch_1_train_step_5"]


def test_name_that_is_saved_twice_is_heard_of_twice(alone, root):
    alone.do(f"u = fitted({root!r}, save_every_n_eval_steps=3, save_every_n_eval_epochs=1, async_checkpoint=True)")
    assert alone.do("u.told") == [["epoch_1_train_step_5_eval_step_3", True]] * 2


@pytest.mark.parametrize("outcome", ["future.set_result(None)", "future.set_exception(OSError('no room'))"])
def test_exception_in_training_waits_for_the_save_in_flight_and_stays_the_users(alone, root, outcome):
    alone.do(
        "import concurrent.futures\nfuture, real = concurrent.futures.Future(), ckptd.dcp.async_save\n"
        "def late(**arguments):\n"
        f"    threading.Timer(0.2, lambda: {outcome}).start()\n    return future\n"
        "ckptd.dcp.async_save = late"
    )
    error = alone.fails(f"try: trained({root!r}, {EVERY_2}, callbacks=[fail_at(2)])\nfinally: ckptd.dcp.async_save = real\n")
    assert (error.kind, error.message) == ("RuntimeError", "the user's error")
    assert alone.do("future.done()") is True


def test_training_goes_on_while_a_device_copies(alone, root):
    alone.do("import threading\n" + IN_PROCESS)
    try:
        alone.do(
            "unit, seen = Unit(hidden=11), []\n"  # A form that no earlier test has saved from the CPU.
            "def prepare():\n"
            "    [stand_in.tensor(one) for one in unit.module.parameters()]\n"
            "    [stand_in.tensor(one) for each in unit.optimizer.state.values() for one in each.values()]\n"
            "    seen.append(values(unit)); stand_in.gate.clear()\n"
            "def look(): seen.append(len(copies.in_flight())); stand_in.open_gate_when_held()\n"
            f"saver = CheckpointSaver({root!r}, {EVERY_2}, stage='overlap')\n"
            "train(unit, Batches(), max_epochs=1, callbacks=[At(2, prepare), saver, At(2, look)])"
        )
    finally:
        alone.do("stand_in.gate.set(); devices_module.replace(cuda); device_copy._SMALL_BYTES = 64 << 10")
    alone.do(f"back = Unit(hidden=11); CheckpointSaver.restore({root + '/epoch_0_train_step_2'!r}, back)")
    assert alone.do("seen[1] > 0, stand_in.holds > 0") == [True, True]
    compared = "[[each[key] for key in ('module', 'optimizer')] for each in ({}, {})]"
    saved, loaded = alone.do(compared.format("seen[0]", "values(back)"))
    assert saved == loaded
    trained, loaded = alone.do(compared.format("values(unit)", "values(back)"))
    assert trained != loaded


def test_overlap_needs_async_checkpoint(alone, root):
    error = alone.fails(f"CheckpointSaver({root!r}, stage='overlap')")
    assert error.kind == "ValueError" and "async_checkpoint=True" in error.message
    assert "overlap" in alone.fails(f"CheckpointSaver({root!r}, stage='later')").message


@ON_ONE_AND_TWO_NODES
def test_ranks_killed_right_after_a_save_resume_from_it(start_processes, launch, session_folder, root):
    killed = start_processes(2)
    for rank, process in enumerate(killed):
        process.start(f"states.join({session_folder + '/killed-' + os.path.basename(root)!r}, {rank}, 2)")
    for process in killed:
        process.result(60)
        process.start(f"trained({root!r}, {EVERY_2}, keep_last_n_checkpoints=1, callbacks=[kill_at(6)])")
    assert [process.process.wait(120) for process in killed] == [-signal.SIGKILL] * 2
    ranks = launch(2)
    ranks.do(f"u, b = Unit(), Batches(); assert CheckpointSaver.restore_from_latest({root!r}, u, train_dataloader=b)")
    assert ranks.do("u.train_progress.num_steps_completed, b.position") == [[6, 1]] * 2
    ranks.do(f"trained({root!r}, unit=u, batches=b, {EVERY_2}); whole = trained({root + '/whole'!r})")
    assert ranks.do("values(u) == values(whole)") == [True] * 2
