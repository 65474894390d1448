"""The daemon is killed at requests of an upload, of a removal and of a resume. `tools/soak buckets` has every request."""

from __future__ import annotations

import pytest
from bucket_servers import with_moto
from fault_cases import Cases
from fault_plan import Fault

BEFORE, AFTER = Fault.FREEZE_BEFORE, Fault.FREEZE_AFTER


@with_moto
@pytest.mark.parametrize(
    ("fault", "nth"),
    [(AFTER, 1), (BEFORE, 5), (AFTER, 8), (BEFORE, 10), (AFTER, 12), (AFTER, 14), (AFTER, 17)],
)
def test_killed_upload_goes_on_and_nothing_torn_is_listed(cases: Cases, fault: Fault, nth: int) -> None:
    assert cases.kill_in_upload(fault, nth)


@with_moto
@pytest.mark.parametrize(("fault", "nth"), [(AFTER, 3), (AFTER, 4), (BEFORE, 7), (AFTER, 9)])
def test_killed_removal_goes_on_and_nothing_torn_is_listed(cases: Cases, fault: Fault, nth: int) -> None:
    assert cases.kill_in_removal(fault, nth)


@with_moto
@pytest.mark.parametrize(("fault", "nth"), [(BEFORE, 1), (BEFORE, 4), (AFTER, 7)])
def test_killed_resume_lists_nothing_torn_and_the_next_one_fetches(
    cases: Cases, fault: Fault, nth: int
) -> None:
    assert cases.kill_in_resume(fault, nth)


def test_multipart_upload_of_a_killed_daemon_is_aborted_when_nobody_goes_on_with_it(cases: Cases) -> None:
    cases.abandon()
