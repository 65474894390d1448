"""The disk's limit, out of several runs of fio."""

from __future__ import annotations

import pathlib

from bench.base.fio import Rates, job


def test_limit_is_the_median_of_the_fastest_combination_and_not_its_luckiest_run() -> None:
    first = {"1 MiB x 32": [2e9, 9e9], "4 MiB x 8": [4e9, 3e9]}
    second = {"1 MiB x 32": [2.5e9], "4 MiB x 8": [3.5e9]}
    rates = Rates("buffers on pages of 2 MiB", [first, second])
    assert rates.best() == 3.5e9
    assert (
        "fresh, fallocated file, buffers on pages of 2 MiB: 3.50 GB/s (4 MiB x 8, median of 3; the most of any: 9.00)"
        in rates.description()
    )


def test_limit_of_one_combination_ignores_the_others() -> None:
    rates = Rates("buffers on pages of 4 KiB", [{"1 MiB x 32": [9e9], "4 MiB x 64": [3e9]}], "4 MiB x 64")
    assert rates.best() == 3e9
    assert "direct read, buffers on pages of 4 KiB: " in rates.description("read")


def test_buffers_are_shared_pages_of_4_kib_without_a_file_system_of_huge_ones(tmp_path: pathlib.Path) -> None:
    plain = job("limit", "write", tmp_path / "file", 1 << 20, 1 << 20, 1, huge=None)
    huge = job("limit", "write", tmp_path / "file", 1 << 20, 1 << 20, 1, huge=tmp_path)
    assert "--iomem=mmapshared" in plain
    assert f"--iomem=mmaphuge:{tmp_path}/limit" in huge and "--iomem=mmapshared" not in huge
