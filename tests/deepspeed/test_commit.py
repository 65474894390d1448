"""When a checkpoint of DeepSpeed counts, and what a failure leaves."""

import os
import shutil
import signal

from job_nodes import ON_ONE_AND_TWO_NODES

from harness import TrainerError, until


def latest(root):
    try:
        with open(f"{root}/latest") as file:
            return file.read()
    except FileNotFoundError:
        return None


@ON_ONE_AND_TWO_NODES
def test_ranks_killed_right_after_save_leave_the_new_checkpoint_and_resume(pair, new_ranks, root):
    first = new_ranks(2)
    for process in first.processes:
        process.start(
            "made = states.engine(2, checkpoint_engine=CheckpointEngine()); states.train(made, 2)\n"
            f"made.save_checkpoint({root!r}, client_state=states.CLIENT_STATE)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
    assert [process.process.wait(60) for process in first.processes] == [-signal.SIGKILL] * 2
    until(lambda: latest(root) == "global_step2", "the commit by the daemon alone")
    # A job that goes on from there has the same losses as one that was never killed.
    second = new_ranks(2)
    second.do(
        "made = states.engine(2, seed=7, checkpoint_engine=CheckpointEngine())\n"
        f"path, client_state = made.load_checkpoint({root!r})\n"
        "assert states.client_differences(client_state) == []"
    )
    resumed = second.do("states.train(made, 2)")
    assert resumed == [losses[2:] for losses in pair.do("states.train(states.engine(2), 4)")]
    # A rank that is killed before its save: the newest checkpoint stays the newest.
    second.processes[1].start("os.kill(os.getpid(), signal.SIGKILL)")
    second.processes[0].start(f"made.save_checkpoint({root!r})")
    second.processes[1].process.wait(60)
    second.processes[0].result_failing(60)
    assert latest(root) == "global_step2" and not os.path.exists(f"{root}/global_step4")


@ON_ONE_AND_TWO_NODES
def test_rank_that_fails_gives_an_error_on_every_rank_and_no_checkpoint(pair, root):
    pair.do("made = states.engine(2, checkpoint_engine=CheckpointEngine(wait='committed')); states.train(made)")
    pair.do(f"made.save_checkpoint({root!r}, 'good')")
    for failing, what in ((1, "optimizer.state_dict"), (0, "_copy_recovery_script"), (0, "module_state_dict")):
        outcomes = pair.outcomes(
            f"def fail(*_, **__): raise OSError('no such device')\n"
            f"if dist.get_rank() == {failing}: made.{what} = fail\n"
            f"made.save_checkpoint({root!r}, 'bad')"
        )
        pair.processes[failing].do(f"del made.{what}")
        assert all(isinstance(outcome, TrainerError) for outcome in outcomes), outcomes
        assert outcomes[failing].kind == "OSError", (what, outcomes)
        assert "no such device" in outcomes[1 - failing].message, what
        assert latest(root) == "good" and not os.path.exists(f"{root}/bad")
    pair.do(f"made.save_checkpoint({root!r}, 'bad')")
    assert latest(root) == "bad"


def test_directory_that_deepspeed_itself_has_written_is_not_replaced(pair, root):
    pair.do(f"made = states.engine(1); states.train(made); made.save_checkpoint({root!r}, 'a')")
    pair.do("made.checkpoint_engine = CheckpointEngine(wait='committed')")
    errors = pair.fail(f"made.save_checkpoint({root!r}, 'a')")
    assert [error.reason for error in errors] == ["TAG_FOREIGN"] * 2
    pair.do(f"made.save_checkpoint({root!r}, 'b')")
    assert latest(root) == "b"
    assert pair.do(f"made.load_checkpoint({root!r}, 'a')[0]")[0].startswith(f"{root}/a/")
    # The same name again replaces what ckptd has committed.
    pair.do(f"states.train(made); made.save_checkpoint({root!r}, 'b')")
    assert pair.do(f"made.load_checkpoint({root!r})[0]; made.global_steps") == [2, 2]


def test_empty_directory_of_the_tag_is_used(pair, root):
    os.mkdir(f"{root}/a")
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine(wait='committed'))")
    pair.do(f"made.save_checkpoint({root!r}, 'a')")
    assert os.path.exists(f"{root}/a/.ckptd/manifest")


def test_damage_that_one_rank_finds_makes_all_ranks_load_the_next_older_checkpoint(pair, daemon, root):
    pair.do("made = states.engine(2, checkpoint_engine=CheckpointEngine(wait='committed'))")
    pair.do(f"states.train(made); made.save_checkpoint({root!r}); wanted = states.state(made)")
    pair.do(f"states.train(made); made.save_checkpoint({root!r})")
    daemon.kill()  # It has the bytes in memory, too.
    daemon.restart()
    pair.processes[0].do(f"states.damage('{root}/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt')")
    pair.do("before = states.state(made)")
    errors = pair.fail(f"made.load_checkpoint({root!r}, 'global_step2')")
    assert [error.kind for error in errors] == ["CheckpointFailed", "Corrupt"]
    assert "rank 1: Corrupt" in errors[0].message and errors[0].ranks == [1]
    assert pair.do("states.differences(before, states.state(made))") == [[], []]
    assert pair.do(f"made.load_checkpoint({root!r})[0]")[0].startswith(f"{root}/global_step1/")
    assert pair.do("states.differences(wanted, states.state(made))") == [[], []]
    until(lambda: latest(root) == "global_step1", "the pointer's repair")


def test_rank_that_finds_damage_goes_on_to_the_next_older_checkpoint_with_the_others(pair, daemon, root):
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine(wait='committed'))")
    pair.do(f"states.train(made); made.save_checkpoint({root!r}); wanted = states.state(made)")
    pair.do(f"states.train(made); made.save_checkpoint({root!r})")
    daemon.kill()
    daemon.restart()
    pair.processes[0].do(f"states.damage('{root}/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt')")
    assert pair.do(f"made.load_checkpoint({root!r})[0]")[1].startswith(f"{root}/global_step1/")
    assert pair.do("states.differences(wanted, states.state(made))") == [[], []]


def test_directory_that_was_removed_behind_ckptd_is_survived(pair, root):
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine(wait='committed')); states.train(made)")
    for number in (1, 2, 3):  # As the Trainer of transformers does: a directory for each checkpoint.
        pair.do(f"made.save_checkpoint('{root}/checkpoint-{number}')")
        if number > 1:
            shutil.rmtree(f"{root}/checkpoint-{number - 1}")
    assert latest(f"{root}/checkpoint-3") == "global_step1"
    # One tag of several in a directory, and then the directory itself, which is made again.
    for tag in ("a", "b"):
        pair.do(f"made.save_checkpoint('{root}/checkpoint-3', {tag!r})")
    shutil.rmtree(f"{root}/checkpoint-3/a")
    pair.do(f"made.save_checkpoint('{root}/checkpoint-3', 'c')")
    assert pair.do(f"made.load_checkpoint('{root}/checkpoint-3')[0]")[0].startswith(f"{root}/checkpoint-3/c/")
    shutil.rmtree(f"{root}/checkpoint-3")
    pair.do(f"made.save_checkpoint('{root}/checkpoint-3', 'd')")
    assert latest(f"{root}/checkpoint-3") == "d"
    assert pair.do(f"made.load_checkpoint('{root}/checkpoint-3')[0]")[0].startswith(f"{root}/checkpoint-3/d/")


def test_checkpoint_with_a_directory_of_its_own_is_committed_before_its_program_removes_the_one_before(pair, root):
    pair.do("made = states.engine(1, checkpoint_engine=CheckpointEngine())")
    for number in (1, 2, 3):
        pair.do(f"made.save_checkpoint('{root}/checkpoint-{number}', 'a')")
        assert os.path.exists(f"{root}/checkpoint-{number}/a/.ckptd/manifest")
        if number > 1:
            shutil.rmtree(f"{root}/checkpoint-{number - 1}")


def test_ranks_may_wait_for_each_other_between_their_states(pair, root):
    # Releases of DeepSpeed before 0.17 do, when rank 0 has saved and the others have not.
    pair.do("made = states.engine(2, checkpoint_engine=CheckpointEngine(wait='committed', timeout=20))")
    pair.do("made._create_zero_checkpoint_files = lambda *_: dist.barrier()")
    pair.do(f"made.save_checkpoint({root!r}, 'a')")
    assert latest(root) == "a"
