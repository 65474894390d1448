"""The rounds of all cases interleave and end in the time that is given, and no case is left out without a word."""

from __future__ import annotations

import io
from typing import Callable, Dict, List, Tuple

from bench.run import rounds
from bench.run.progress import ProgressLine
from bench.run.round_process import RoundFailed, RoundTooLong
from bench.run.rounds import Budget, Observer, Progress


class Clock:
    """A time that only rounds spend."""

    def __init__(self, seconds: Dict[str, List[float]]) -> None:
        """seconds: what the rounds of each case take; the last one is that of all further rounds."""
        self.now = 1000.0
        self.ran: List[Tuple[str, int]] = []
        self._seconds = seconds

    def measure(self, case: Progress, number: int, limit: float) -> int:
        self.ran.append((case.name, number))
        of_case = self._seconds[case.name]
        takes = of_case[min(number, len(of_case)) - 1]
        self.now += min(takes, limit)
        if takes > limit:
            raise RoundTooLong(f"not ended after {limit:.0f} s")
        return number


def run(seconds: Dict[str, List[float]], minutes: "float | None", wanted: int = 1) -> Tuple[Clock, List[Progress]]:
    clock = Clock(seconds)
    cases = [Progress(name, wanted) for name in seconds]
    rounds.run(cases, Budget(minutes, lambda: clock.now), clock.measure, Observer())
    return clock, cases


def test_rounds_of_all_cases_interleave_until_each_has_enough() -> None:
    clock, cases = run({"a": [1], "b": [2]}, minutes=None, wanted=2)
    assert clock.ran == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert all(case.is_complete for case in cases) and not rounds.not_run(cases)


def test_run_ends_in_the_time_that_is_given_and_rounds_differ_by_one_at_most() -> None:
    clock, cases = run({"short": [1], "long": [20]}, minutes=1)
    assert clock.now - 1000 <= 60
    assert [len(case.values) for case in cases] == [3, 2]
    assert not rounds.not_run(cases)


def test_a_round_is_expected_to_take_as_long_as_the_longest_before() -> None:
    clock, _ = run({"a": [10, 30, 10]}, minutes=1)
    assert clock.ran == [("a", 1), ("a", 2)], "20 s are left, which are not enough for another 30"


def test_case_without_time_for_its_first_round_is_named() -> None:
    clock, cases = run({"a": [57], "b": [10], "c": [1]}, minutes=1)
    assert [len(case.values) for case in cases] == [1, 0, 0]
    assert rounds.not_run(cases) == {
        "b": "not run: the time was over before its first round",
        "c": "not run: the time was over before its first round",
    }
    assert not cases[1].is_complete


def test_first_round_that_outlasts_the_time_ends_with_its_name() -> None:
    clock, cases = run({"quick": [1], "stuck": [10_000]}, minutes=1)
    assert clock.now - 1000 <= 60
    assert rounds.not_run(cases) == {"stuck": "not run: the time was over in round 1, not ended after 56 s"}
    assert cases[0].is_complete and not cases[1].is_complete


def test_later_round_that_hangs_ends_before_the_time_and_leaves_the_rest_to_the_others() -> None:
    clock, cases = run({"stuck": [1, 10_000], "other": [5]}, minutes=60)
    stuck, other = cases
    limit = rounds.HANG_FACTOR * 1 + rounds.HANG_SECONDS
    assert rounds.not_run(cases) == {"stuck": f"1 round only: round 2 hangs: not ended after {limit:.0f} s"}
    assert stuck.values == [1] and not stuck.is_complete
    assert len(other.values) > 100 and other.is_complete


def test_failed_case_is_named_and_the_others_go_on() -> None:
    clock = Clock({"bad": [1], "good": [1]})

    def measure(case: Progress, number: int, limit: float) -> int:
        if case.name == "bad":
            raise RoundFailed("fio ended with 1")
        return clock.measure(case, number, limit)

    cases = [Progress("bad", 2), Progress("good", 2)]
    rounds.run(cases, Budget(None, lambda: clock.now), measure, Observer())
    assert rounds.not_run(cases) == {"bad": "not run: round 1 has failed: fio ended with 1"}
    assert cases[1].is_complete and len(cases[1].values) == 2


def test_imports_before_the_first_round_count() -> None:
    clock = Clock({"a": [1]})
    budget = Budget(1, lambda: clock.now, start=clock.now - 50)
    assert budget.elapsed() == 50 and 0 < budget.left() < 10


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress_of(stream: io.StringIO, minutes: "float | None") -> "Tuple[Clock, ProgressLine, List[Progress], Callable[[], None]]":
    clock = Clock({"save": [30], "copy": [10]})
    cases = [Progress("save", 3), Progress("copy", 3)]
    budget = Budget(minutes, lambda: clock.now)
    line = ProgressLine(stream, cases, {"save": "stalls", "copy": "loops"}, budget)
    return clock, line, cases, lambda: rounds.run(cases, budget, clock.measure, line)


def test_progress_on_a_terminal_names_case_round_elapsed_and_what_is_left() -> None:
    clock, line, (save, copy), _ = progress_of(Terminal(), minutes=None)
    line.begins(save)
    assert line.text() == "save: round 1 of 3, 0:00 elapsed, 2 cases not measured yet"
    clock.now += 30
    save.values.append(1)
    save.longest = 30
    line.begins(copy)
    assert line.text() == "copy: round 1 of 3, 0:30 elapsed, at least 1:00 left, 1 case not measured yet"
    copy.values.append(1)
    copy.longest = 10
    line.begins(save)
    assert line.text() == "save: round 2 of 3, 0:30 elapsed, about 1:20 left"


def test_progress_with_a_given_time_tells_how_much_of_it_is_left() -> None:
    clock, line, (save, _), _ = progress_of(Terminal(), minutes=10)
    clock.now += 95
    line.begins(save)
    assert line.text() == "save: round 1, 1:35 elapsed, 8:20 left"


def test_terminal_line_is_empty_at_the_end() -> None:
    terminal = Terminal()
    _, line, _, run_all = progress_of(terminal, minutes=None)
    run_all()
    line.clear()
    assert "copy: round 3 of 3" in terminal.getvalue() and terminal.getvalue().endswith("\r\x1b[K")
    assert "\n" not in terminal.getvalue()


def test_progress_elsewhere_is_one_line_for_each_case_and_one_for_what_goes_wrong() -> None:
    file = io.StringIO()
    _, line, (save, _), run_all = progress_of(file, minutes=None)
    run_all()
    line.ticks()
    line.clear()
    assert file.getvalue() == "save: stalls\ncopy: loops\n"
    save.why = "round 4 hangs"
    line.ended(save)
    assert file.getvalue().endswith("save: round 4 hangs\n")
