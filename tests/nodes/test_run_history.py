"""A short run of tools/soak history, and the checker itself: it must refuse what no run can have answered, and nothing else."""

from __future__ import annotations

import os
from typing import List, Optional

import pytest
from cluster import Cluster
from places import best_places
from run_history import recording
from run_history.recording import OK, Call
from run_history.rounds import Rounds, problem_of

from harness import closing, temporary_folder

ROUNDS = 20  # In batches that share their faults.
AT_ONCE = 10


class Recorder:
    """Writes a history by hand. Times are seconds."""

    def __init__(self) -> None:
        self.calls: List[Call] = []

    def save(self, step: int, tag: str, start: float, end: Optional[float], answers: str = "ok ok", attempt: int = 1) -> None:
        """By one rank on each of two nodes."""
        for rank, answer in enumerate(answers.split()):
            answer = "" if answer == "unknown" else answer
            staged = start if answer in (OK, "") else None
            node = f"gpu{rank + 1}"
            self.calls.append(Call(f"rank {rank}", node, "save", start, attempt, step, tag, staged, end, answer))

    def resume(self, found: int, start: float, end: float, attempt: int = 1, other: Optional[int] = None) -> None:
        for rank, step in enumerate((found, found if other is None else other)):
            self.calls.append(Call(f"rank {rank}", f"gpu{rank + 1}", "resume", start, attempt, end=end, answer=OK, found=step))

    def listed(self, start: float, *shown: "tuple[int, str, bool]", node: str = "gpu1", fresh: bool = False) -> None:
        self.calls.append(Call("reader", node, "list", start, end=start + 0.1, answer=OK, found=list(shown), fresh=fresh))

    def latest(self, start: float, step: int, node: str = "gpu1", fresh: bool = False) -> None:
        self.calls.append(Call("reader", node, "latest", start, end=start + 0.1, answer=OK, found=step, fresh=fresh))

    def change(self, name: str, tag: str, start: float, answer: str = OK, step: int = 0, node: str = "gpu1", end: Optional[float] = None) -> None:
        end = start + 0.1 if end is None else end
        self.calls.append(Call("operator", node, name, start, tag=tag, end=end, answer=answer, found=step or None))


@pytest.fixture
def history() -> Recorder:
    return Recorder()


def explained(history: Recorder) -> bool:
    return not problem_of(history.calls)


# ---- what a run can have answered


def test_history_in_order_is_explained(history):
    history.resume(0, 0, 1)
    history.save(1, "a", 1, 2)
    history.save(2, "b", 3, 4)
    history.listed(5, (2, "b", False), (1, "a", False), node="gpu1")
    history.change("pin", "a", 6, step=1)
    history.save(3, "c", 7, 8)
    history.save(4, "d", 8, 9)
    history.listed(10, (4, "d", False), (3, "c", False), (1, "a", True), fresh=True)
    history.change("unpin", "a", 11, step=1)
    history.change("delete", "c", 12, step=3)
    history.resume(4, 13, 14, attempt=2)
    assert explained(history)


def test_read_during_a_save_may_show_it_or_not(history):
    history.save(1, "a", 0, 9)
    history.latest(1, 0)
    history.latest(2, 1)
    assert explained(history)


def test_unknown_save_may_be_there_or_not(history):
    history.save(1, "a", 0, None, "unknown unknown")
    history.latest(1, 0)
    history.latest(5, 1)
    assert explained(history)


def test_node_that_saved_nothing_may_show_an_older_state(history):
    history.save(1, "a", 0, 1)
    history.latest(2, 0, node="gpu3")
    history.latest(3, 1, node="gpu3")
    assert explained(history)


def test_listing_may_have_a_pin_that_is_later_than_a_checkpoint_which_it_lacks(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 2, 3)
    history.change("pin", "a", 4, step=1)
    history.listed(5, (1, "a", True), node="gpu3")
    assert explained(history)


def test_retention_may_take_its_time(history):
    for step, tag in enumerate("abc", 1):
        history.save(step, tag, step, step + 0.5)
    history.listed(5, (3, "c", False), (2, "b", False), (1, "a", False))
    history.listed(6, (3, "c", False), (2, "b", False))
    assert explained(history)


def test_checkpoint_may_be_hidden_while_a_save_replaces_it(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 1, 2)
    history.save(3, "a", 3, 9)
    history.listed(4, (2, "b", False))
    history.listed(10, (3, "a", False), (2, "b", False))
    assert explained(history)


def test_unknown_deletion_may_be_carried_out_later(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 2, 3)
    history.change("delete", "a", 4, "LEDGER_UNAVAILABLE")
    history.listed(5, (2, "b", False), (1, "a", False))
    history.listed(9, (2, "b", False), fresh=True)
    assert explained(history)


def test_deletion_that_was_repeated_after_its_answer_was_lost_may_find_nothing(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 2, 3)
    history.change("delete", "a", 4, "NO_CHECKPOINT", end=6)
    history.listed(7, (2, "b", False), fresh=True)
    assert explained(history)


def test_pin_may_be_made_again_as_long_as_its_answer_is_outstanding(history):
    history.save(1, "a", 0, 1)
    history.change("pin", "a", 2, step=1, end=6)
    history.listed(3, (1, "a", True), fresh=True)
    history.change("unpin", "a", 4, step=1, node="gpu2")
    history.listed(7, (1, "a", True), fresh=True)
    assert explained(history)


def test_checkpoint_that_is_gone_may_be_unpinned(history):
    history.save(1, "a", 0, 1)
    history.save(2, "a", 2, 3)
    history.change("pin", "a", 4, step=2, node="gpu2")
    history.change("unpin", "a", 5, step=1)
    history.listed(6, (2, "a", True), fresh=True)
    assert explained(history)


def test_sealed_save_of_an_older_attempt_may_be_published_before_the_next_one_resumes(history):
    history.save(1, "a", 0, 5, attempt=1)
    history.resume(1, 1, 4, attempt=2)
    assert explained(history)


# ---- what it cannot


def test_lost_checkpoint_is_refused(history):
    history.save(1, "a", 0, 1)
    history.latest(2, 0)
    assert not explained(history)


def test_checkpoint_that_comes_and_goes_is_refused(history):
    history.save(1, "a", 0, None, "unknown unknown")
    history.latest(1, 1, node="gpu3")
    history.latest(2, 0, node="gpu3")
    assert not explained(history)


def test_failed_save_that_becomes_a_checkpoint_is_refused(history):
    history.save(1, "a", 0, 1, "NODE_LOST NODE_LOST")
    history.latest(5, 1)
    assert not explained(history)


def test_ranks_that_hear_different_ends_are_refused(history):
    history.save(1, "a", 0, 1, "ok NODE_LOST")
    assert not explained(history)


def test_ranks_that_resume_from_different_checkpoints_are_refused(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 1.5, 9)
    history.resume(1, 2, 3, attempt=2, other=2)
    assert not explained(history)


def test_resume_from_an_older_checkpoint_than_the_newest_is_refused(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 2, 3)
    history.resume(1, 4, 5, attempt=2)
    assert not explained(history)


def test_save_of_an_attempt_after_the_next_one_has_resumed_is_refused(history):
    history.save(1, "a", 0, 1)
    history.resume(1, 2, 3, attempt=2)
    history.save(2, "b", 4, 5, attempt=1)
    assert not explained(history)


def test_sealed_save_that_is_published_after_the_resume_of_the_next_attempt_is_refused(history):
    history.save(1, "a", 0, None, "unknown unknown", attempt=1)
    history.resume(0, 1, 2, attempt=2)
    history.latest(3, 1)
    assert not explained(history)


def test_checkpoints_in_another_order_than_their_saves_are_refused(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 2, 3)
    history.listed(4, (1, "a", False), (2, "b", False))
    assert not explained(history)


def test_retention_that_leaves_too_few_is_refused(history):
    for step, tag in enumerate("abc", 1):
        history.save(step, tag, step, step + 0.5)
    history.listed(6, (3, "c", False))
    assert not explained(history)


def test_pin_that_comes_and_goes_is_refused(history):
    history.save(1, "a", 0, 1)
    history.change("pin", "a", 2, end=9)
    history.listed(3, (1, "a", True), node="gpu3")
    history.listed(4, (1, "a", False), node="gpu3")
    assert not explained(history)


def test_pin_that_no_operator_made_is_refused(history):
    history.save(1, "a", 0, 1)
    history.listed(2, (1, "a", True))
    assert not explained(history)


def test_removal_of_a_pinned_checkpoint_is_refused(history):
    history.save(1, "a", 0, 1)
    history.change("pin", "a", 2, step=1)
    for step, tag in enumerate("bcd", 2):
        history.save(step, tag, step + 1, step + 1.5)
    history.listed(9, (4, "d", False), (3, "c", False))
    assert not explained(history)


def test_replacement_of_a_pinned_checkpoint_is_refused(history):
    history.save(1, "a", 0, 1)
    history.change("pin", "a", 2, step=1)
    history.save(2, "a", 3, 4)
    assert not explained(history)


def test_pin_that_is_forgotten_is_refused(history):
    history.save(1, "a", 0, 1)
    history.change("pin", "a", 2, step=1)
    history.listed(3, (1, "a", False))
    assert not explained(history)


def test_deleted_checkpoint_that_stays_is_refused(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 2, 3)
    history.change("delete", "a", 4, step=1)
    history.listed(5, (2, "b", False), (1, "a", False))
    assert not explained(history)


def test_deletion_that_finds_nothing_at_once_and_has_deleted_is_refused(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 2, 3)
    history.change("delete", "a", 4, "NO_CHECKPOINT")
    history.listed(7, (2, "b", False), fresh=True)
    assert not explained(history)


def test_deletion_of_the_newest_checkpoint_is_refused(history):
    history.save(1, "a", 0, 1)
    history.change("delete", "a", 2, step=1)
    assert not explained(history)


def test_node_that_still_shows_an_older_state_at_the_end_is_refused(history):
    history.save(1, "a", 0, 1)
    history.latest(2, 0, node="gpu3", fresh=True)
    assert not explained(history)


def test_node_that_goes_back_in_time_is_refused(history):
    history.save(1, "a", 0, 1)
    history.save(2, "b", 2, 3)
    history.latest(4, 2, node="gpu3")
    history.latest(5, 1, node="gpu3")
    assert not explained(history)


def test_damage_is_refused(history):
    history.save(1, "a", 0, 1)
    history.calls.append(Call("rank 0", "gpu1", "resume", 2, 2, end=3, answer="CHECKPOINT_DAMAGED"))
    assert not explained(history)


def test_one_wrong_answer_in_a_recorded_history_is_refused():
    """Changes each answer of a history, one at a time. Few changes leave it possible."""
    history = Recorder()
    test_history_in_order_is_explained(history)
    refused = []
    for call in history.calls:
        if call.name in ("list", "resume", "latest"):
            kept, call.found = call.found, 99 if call.name != "list" else [*call.found, (99, "z", False)]
            refused.append(not explained(history))
            call.found = kept
    assert refused and all(refused)
    assert explained(history)


def test_written_history_is_read_back_and_its_table_has_each_call(history, tmp_path):
    test_history_in_order_is_explained(history)
    recording.write(tmp_path / "history.json", history.calls)
    again = recording.read(tmp_path / "history.json")
    assert not problem_of(again)
    assert recording.table(again) == recording.table(history.calls)
    assert len(recording.table(again).splitlines()) == 1 + len(history.calls)
    assert "save d step 4" in recording.table(again)


def test_many_calls_at_once_are_decided_in_time(history):
    """Twice as many saves as a rank has at a time, and reads that see none of them: the cache keeps the number of orders down."""
    for step in range(1, 5):
        history.save(step, f"t{step}", 0, 100)
    for start in range(30):
        history.latest(start, 0, node=f"gpu{start % 3}")
    assert explained(history)
    history.latest(101, 99)
    assert not explained(history)


# ---- real daemons


def test_histories_of_clients_on_three_nodes_with_faults_are_explained():
    seed = int(os.environ.get("CKPTD_SEED") or int.from_bytes(os.urandom(3), "little"))
    with temporary_folder() as folder, closing(best_places()) as places, closing(Cluster(folder, places)) as cluster:
        rounds = Rounds(cluster)
        for batch in range(ROUNDS // AT_ONCE):
            for history in rounds.run(seed + batch, AT_ONCE):
                again = f"tools/soak history --seed={seed + batch} --rounds={AT_ONCE} --at-once={AT_ONCE}"
                assert not history.problem, f"{history}\n\nagain: {again}\n\n{cluster.logs()}"
