"""The machine that stands beside the figures."""

from __future__ import annotations

import json
import os
import pathlib
import platform

from bench.base import hardware, result
from bench.base.result import Result


def make(place: pathlib.Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text + "\n")


def test_machine_has_processor_cores_caches_memory_disk_and_kernel(tmp_path: pathlib.Path) -> None:
    described = hardware.describe(tmp_path)
    assert {"processor", "cores", "caches", "memory", "huge pages", "disk", "kernel"} <= set(described)
    assert all(described.values())
    assert described["cores"] == f"{os.cpu_count()} cores"
    assert described["kernel"] == f"Linux {platform.release()}"


def test_caches_are_those_of_one_core_without_that_of_instructions(tmp_path: pathlib.Path) -> None:
    caches = [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "2048K"), ("Unified", "3", "491520K")]
    for number, values in enumerate(caches):
        for name, value in zip(("type", "level", "size"), values):
            make(tmp_path / f"devices/system/cpu/cpu0/cache/index{number}/{name}", value)
    assert hardware.caches(tmp_path) == "L1d 48 KiB, L2 2 MiB, L3 480 MiB"


def test_disk_of_a_partition_is_the_whole_disk_with_its_model(tmp_path: pathlib.Path) -> None:
    disk = tmp_path / "devices/nvme0n1"
    make(disk / "device/model", "Fast NVMe 2")
    make(disk / "size", "2000000000")
    make(disk / "nvme0n1p1/partition", "1")
    number = os.stat(tmp_path).st_dev
    place = tmp_path / f"dev/block/{os.major(number)}:{os.minor(number)}"
    place.parent.mkdir(parents=True)
    place.symlink_to(disk / "nvme0n1p1")
    assert hardware.disk(tmp_path, tmp_path).startswith("Fast NVMe 2 of 1024 GB with ")


def test_folder_on_no_block_device_says_so(tmp_path: pathlib.Path) -> None:
    assert hardware.disk(tmp_path, tmp_path).endswith(", which is on no block device")


def test_json_has_the_machine_the_rounds_and_what_was_not_run() -> None:
    first, second = ([Result("save.stall", value, "x", f"limit {value}", 3)] for value in (1.0, 4.0))
    third = [Result("save.stall", 2.0, "x", "limit 2", 3)]
    printed = json.loads(
        result.as_json(
            result.combined([first, second, third]), {"kernel": "Linux 6"}, {"nodes": "not run: time"}, quick=True
        )
    )
    assert printed["machine"] == {"kernel": "Linux 6"} and printed["quick"]
    assert printed["not_run"] == [{"case": "nodes", "why": "not run: time"}]
    assert printed["figures"] == [
        {
            "name": "save.stall", "value": 2.0, "unit": "x", "rounds": 3, "least": 1.0, "most": 4.0,
            "limit": "limit 2", "goal": 3, "ok": True,
        }
    ]  # fmt: skip


def test_worst_of_all_rounds_counts_where_a_median_would_hide_it() -> None:
    rounds = [[Result("hostile.longest_stall_s", value, "s", combine=max)] for value in (1.0, 30.0, 2.0)]
    assert result.combined(rounds)[0].value == 30.0


def test_table_has_the_rounds_of_each_figure() -> None:
    (figure,) = result.combined([[Result("save.stall", value, "x", "a copy", 3)] for value in (1.0, 2.0)])
    header, _, row = result.as_table([figure]).splitlines()
    assert header.index("rounds") + len("rounds") == row.index("2  ") + 1
    assert "1.000 to 2.000; a copy" in row
