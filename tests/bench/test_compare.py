"""tools/bench compare measures every contender, and reports it in all of its forms."""

from __future__ import annotations

import json
import math
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from bench.base import hardware
from bench.compare import documents, report
from bench.compare.figures import FIGURES, Comparison, Figures
from bench.compare.setup import contenders
from bench.compare.workloads import LlamaState, llama_shapes
from bench.contenders import catalog
from bench.base.tensors import total_bytes

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("compare") / "picture.svg"


@pytest.fixture(scope="module")
def measured(picture: pathlib.Path) -> List[Dict[str, Any]]:
    command = [sys.executable, "-m", "bench", "compare", "--quick", "--json", f"--plot={picture}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows: List[Dict[str, Any]] = json.loads(done.stdout)["figures"]
    return rows


def test_compare_measures_every_figure_of_every_contender(measured: List[Dict[str, Any]]) -> None:
    values = {row["name"]: row["value"] for row in measured}
    assert len(values) == len(measured)
    for contender in catalog.NAMES:
        names = [name for name in FIGURES if name != "one"]  # Which not every library can.
        of = {name: values[f"compare.gpt.{report.slug(contender)}.{name}"] for name in names}
        assert all(math.isfinite(value) for value in of.values())
        assert 0 < of["stall"] <= of["done"] <= of["durable"], contender
        assert min(of["first"], of["cold"], of["warm"]) > 0, contender
    assert values[f"compare.gpt.{report.slug(catalog.DCP)}.one"] > 0


def test_compare_counts_the_daemon_and_its_pool(measured: List[Dict[str, Any]]) -> None:
    values = {row["name"]: row["value"] for row in measured}
    assert values["compare.gpt.ckptd.shared"] > 0.9, "the pool holds a checkpoint"
    assert values["compare.gpt.ckptd.cpu"] > 0


def test_compare_holds_lost_training_time_against_its_goal(measured: List[Dict[str, Any]]) -> None:
    (lost,) = (row for row in measured if row["name"] == "save.lost.vs_copy")
    assert set(lost) == {"name", "value", "unit", "rounds", "least", "most", "limit", "goal", "ok"}
    assert lost["goal"] == report.LOST_GOAL and lost["ok"] == (lost["value"] <= lost["goal"])


def test_plot_names_every_contender(measured: List[Dict[str, Any]], picture: pathlib.Path) -> None:
    text = picture.read_text()
    assert not [name for name in catalog.NAMES if name not in text]


def test_llama_workload_has_the_parameter_count_and_file_sizes_of_llama3_8b() -> None:
    assert sum(math.prod(shape) for shape in llama_shapes(1).values()) == 8_030_261_248
    model, optimizer = LlamaState(rank=0, quick=True).files().values()
    assert total_bytes(optimizer) == 6 * total_bytes(model)


def test_only_names_contenders_as_their_figures_do_and_refuses_others() -> None:
    assert contenders(dcp=False, only="") == catalog.NAMES
    assert contenders(dcp=False, only="dcp_save,ckptd") == (catalog.CKPTD, catalog.DCP)
    assert contenders(dcp=True, only="dcp_save_ckptd") == (catalog.CKPTD_DCP,)
    with pytest.raises(ValueError, match="no contender tensorstore; there are ckptd, torch_save_fsync, torch_save"):
        contenders(dcp=False, only="ckptd,tensorstore")


def figures(seconds: float) -> Figures:
    rank = {
        "unsynced": "",
        "bytes": 1000,
        "copies": [{"memcpy": 0.5}],
        "saves": [{key: seconds for key in ("stall", "done", "durable", "lost")}] * 2,
        "restores": [seconds, seconds],
        "one": None,
        "cpu": [seconds],
    }
    made = Figures()
    made.add([rank, rank], private=100, shared=2000)
    return made


def test_table_marks_the_lowest_value_of_a_column() -> None:
    compared = Comparison("gpt", 2, {catalog.CKPTD: figures(2.0), catalog.DCP: figures(1.0)}, {"1 MiB x 32": [1000.0]}, "pages")
    ours, theirs = report.markdown(compared, {"stall": "stall"}).splitlines()[2:]
    assert ours.startswith("| ckptd | 2.00 (4.0) |")
    assert theirs.startswith("| `dcp.save` | **1.00** (2.0) |")


def test_rounds_are_added_up() -> None:
    first, second = (
        Comparison("gpt", 2, {catalog.CKPTD: figures(seconds)}, {"1 MiB x 32": [rate]}, "buffers")
        for seconds, rate in ((1.0, 1000.0), (3.0, 3000.0))
    )
    first.add(second)
    assert first.figures[catalog.CKPTD]["stall"] == 2.0 and first.figures[catalog.CKPTD].rounds == 2
    assert first.fio == 2000.0 and "buffers" in first.fio_description
    assert {result.rounds for result in report.results([first])} == {2}


def test_described_machine_has_processor_caches_disk_and_kernel(tmp_path: pathlib.Path) -> None:
    described = report.describe_machine(tmp_path)
    for words in hardware.describe(tmp_path).values():
        assert words in described
    assert platform.release() in described and "ckptd 0." in described


def test_replacing_figures_keeps_the_rest_of_a_document_and_refuses_one_without_marks(
    tmp_path: pathlib.Path,
) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n{documents.BEGIN}\nold\n{documents.END}\nafter\n")
    documents.replace_figures(document, "new")
    assert document.read_text() == f"before\n{documents.BEGIN}\nnew\n{documents.END}\nafter\n"
    document.write_text("nothing marked")
    with pytest.raises(SystemExit):
        documents.replace_figures(document, "new")


def test_page_has_a_row_for_every_contender() -> None:
    table = (ROOT / documents.PERFORMANCE).read_text().partition(documents.BEGIN)[2].partition(documents.END)[0]
    assert not [
        contender for contender in catalog.NAMES if f"| {report.markdown_name(contender)} |" not in table
    ]
