"""The formulas of docs/operations.md ("Capacity") hold: what they say is enough, and less is not; and the example beneath
them is what they give.
"""

from __future__ import annotations

import math
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from etcd_members import EtcdMembers, _encoded
from test_room import Image, needs_root

import ckptd
from harness import DaemonProgram, closing, temporary_folder, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs/operations.md").read_text().split("### Capacity", 1)[1].split("\n## ", 1)[0]
FORMULAS = re.findall(r"^\| (.+?) \| `(.+)` \|$", SECTION, re.MULTILINE)
MIB = 1 << 20
SEGMENT = 2 * MIB  # The smallest.


def formula(what: str, **values: Any) -> float:
    """The value of the formula whose name begins like this."""
    (text,) = [formula for name, formula in FORMULAS if name.startswith(what)]
    names = {"__builtins__": {}, "ceil": math.ceil, "sum": sum, "max": max, **values}
    result: float = eval(text, names)
    return result


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with temporary_folder() as path:
        yield path


def daemon_of(folder: pathlib.Path, pool_bytes: int, more: str = "") -> DaemonProgram:
    program = DaemonProgram(
        folder,
        f"pool {{ bytes: {pool_bytes} segment_bytes: {SEGMENT} populate_ahead_bytes: 0 resident_bytes: 0"
        f" huge_pages: PLAIN }}\nmetrics {{ port: -1 }}\n{more}",
    )
    assert program.launch(), program.log()
    return program


@pytest.mark.parametrize("segments, fits", [(0, True), (-1, False)])
def test_pool_of_the_formula_is_enough_and_one_segment_less_is_not(
    folder: pathlib.Path, segments: int, fits: bool
) -> None:
    part = 33 * MIB
    pool = int(formula("`pool.bytes`", overlap=1, parts=[part], segment_bytes=SEGMENT)) + segments * SEGMENT
    with closing(daemon_of(folder, pool)) as daemon, ckptd.connect(daemon.endpoint) as client:
        run = client.run(str(folder / "ckpts"))
        if fits:
            run.save("s1", files={"a": bytes(part)}).wait("committed", timeout=60)
            return
        with pytest.raises(ckptd.NoSpace, match="needs 17 segments"):
            run.save("s1", files={"a": bytes(part)})


@needs_root
@pytest.mark.parametrize("enough", [True, False])
def test_disk_of_the_formula_is_enough_and_one_checkpoint_less_is_not(folder: pathlib.Path, enough: bool) -> None:
    checkpoint, kept = 40 * MIB, 2
    need = formula("disk", kept=kept if enough else kept - 1, overlap=1, checkpoint=checkpoint, trash=0)
    with closing(Image(str(folder), int(need) // MIB + 64)) as disk:
        with open(os.path.join(disk.path, "others"), "wb") as others:  # So that what is free is what the formula says.
            os.posix_fallocate(others.fileno(), 0, shutil.disk_usage(disk.path).free - int(need))
        with closing(daemon_of(folder, 64 * MIB)) as daemon, ckptd.connect(daemon.endpoint) as client:
            run = client.run(disk.root, num_kept_ckpts=kept)
            saved = 0
            try:
                for saved in range(5):
                    run.save(f"s{saved}", files={"a": bytes(checkpoint)}, timeout=5).wait("committed", timeout=60)
            except ckptd.NoSpace:
                assert not enough and saved <= kept
            else:
                assert enough


def test_keys_of_etcd_grow_by_no_more_than_the_formula_and_by_no_less_than_a_third(folder: pathlib.Path) -> None:
    saves = 20
    (folder / "shared").mkdir()
    with closing(EtcdMembers(["127.0.0.1"])) as etcd:
        etcd.leader()

        def key_bytes() -> int:
            answer = etcd._call("kv/range", key=_encoded("/ckptd/runs/"), range_end=_encoded("/ckptd/runs0"))
            return sum(len(each["key"]) * 3 // 4 + len(each.get("value", "")) * 3 // 4 for each in answer["kvs"])

        cluster = (
            f'cluster {{ node_name: "a" etcd_endpoints: "{etcd.endpoints()[0]}" '
            f'shared_folders: "{folder / "shared"}" }}'
        )
        with closing(daemon_of(folder, 64 * MIB, cluster)) as daemon:
            until(lambda: daemon.status().cluster.registered, "the registration")
            with ckptd.connect(daemon.endpoint) as client:
                run = client.run(str(folder / "shared" / "gpt"))
                run.save("first", files={"a": b"1"}).wait("committed", timeout=60)
                before = key_bytes()
                for step in range(saves):
                    run.save(f"step_{step:05}", step=step, files={"a": b"1"}).wait("committed", timeout=60)
                grown = (key_bytes() - before) / saves
    most = formula("etcd", nodes=1)
    assert most / 3 < grown <= most


def test_example_beneath_the_formulas_is_what_they_give() -> None:
    parts, nodes, interval = [20e9] * 8, 4, 600
    checkpoint = nodes * sum(parts)
    pool = formula("`pool.bytes`", overlap=1, parts=parts, segment_bytes=256 * MIB)
    disk = formula("disk", kept=3, overlap=1, checkpoint=checkpoint, trash=0)
    network = formula("network", checkpoint=checkpoint, interval=interval)
    etcd = formula("etcd", nodes=nodes) * 3600 / interval
    words = " ".join(SECTION.split())
    said = re.search(r"a pool of (\d+) GB, ([\d.]+) TB on the shared disk, ([\d.]+) GB/s, and (\d+) KB in etcd", words)
    assert said, words
    for number, value in zip(said.groups(), (pool / 1e9, disk / 1e12, network / 1e9, etcd / 1e3)):
        assert float(number) == pytest.approx(value, rel=0.07)
    fastest = formula(
        "shortest", parts=parts, checkpoint=checkpoint, node_disk_rate=2e9, shared_disk_rate=4e9, overlap=1
    )
    assert fastest == 160
