"""How the demo judges what it has measured."""

from __future__ import annotations

from typing import List

import pytest

from examples.demo import save_costs


@pytest.mark.parametrize(
    ("ours", "rival", "is_equal"),
    [
        # On a disk of 100 MB/s with other work on the machine, which made the rival's cost negative.
        ([0.374, 1.172, 2.270], [-0.743, -0.608, 4.133], True),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.2], False),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], True),
    ],
)
def test_costs_that_differ_by_less_than_their_scatter_count_as_equal(ours: List[float], rival: List[float], is_equal: bool) -> None:
    assert (ours[1] <= rival[1] + save_costs.measurement_error(ours, rival)) == is_equal


def test_comparison_on_a_disk_of_100_megabytes_a_second_is_expected_to_take_four_minutes() -> None:
    assert 180 < save_costs.expected_seconds(7.3, rounds=4) < 300
