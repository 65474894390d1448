"""The disk's limit, out of several runs of fio."""

from __future__ import annotations

from bench.base.fio import Rates


def test_limit_is_the_median_of_the_fastest_combination_and_not_its_luckiest_run() -> None:
    first = {"1 MiB x 32": [2e9, 9e9], "4 MiB x 8": [4e9, 3e9]}
    second = {"1 MiB x 32": [2.5e9], "4 MiB x 8": [3.5e9]}
    rates = Rates(True, [first, second])
    assert rates.best() == 3.5e9
    assert (
        "fresh, fallocated file, huge-page buffers: 3.50 GB/s (4 MiB x 8, median of 3; the most of any: 9.00)"
        in rates.description()
    )


def test_limit_of_one_combination_ignores_the_others() -> None:
    rates = Rates(False, [{"1 MiB x 32": [9e9], "4 MiB x 64": [3e9]}], "4 MiB x 64")
    assert rates.best() == 3e9
    assert "ordinary buffers" in rates.description("read")
