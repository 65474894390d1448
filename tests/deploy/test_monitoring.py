"""deploy/monitoring: every metric exists, every alert fires when it should and only then, and each has its line in
docs/operations.md.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest
import yaml
from etcd_members import EtcdMembers
from prometheus_client import Metric
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as open_metrics_parser

import ckptd
from harness import DaemonProgram, closing, temporary_folder, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy/monitoring/alerts.yml"
DASHBOARD = json.loads((ROOT / "deploy/monitoring/dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
PROMTOOL = pathlib.Path(sys.prefix, "debian/prometheus/usr/bin/promtool")  # tools/setup unpacks it.

PROMETHEUS_TEXT = "text/plain; version=0.0.4"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def promtool(*arguments: str) -> str:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dashboard_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def metrics_of(query: str) -> set[str]:
    names = re.findall(r"\b(?:ckptd|etcd)_\w+", re.sub(r'"[^"]*"', "", query))
    return {re.sub(r"_bucket$", "", name) for name in names}


class Scrape(NamedTuple):
    text: str  # Of the daemon.
    open_metrics: str
    later_text: str  # Of the daemon, after open_metrics.
    of_etcd: str


@functools.lru_cache()
def scrape() -> Scrape:
    """Of a daemon with a node's name that has saved and restored, and of its etcd."""
    with temporary_folder() as folder, closing(EtcdMembers(["127.0.0.1"])) as etcd:
        etcd.leader()
        program = DaemonProgram(
            folder,
            "pool { bytes: 67108864 populate_ahead_bytes: 0 huge_pages: PLAIN }\nmetrics { port: 0 }\n"
            f'cluster {{ node_name: "a" etcd_endpoints: "{etcd.endpoints()[0]}"\n'
            f'  shared_folders: "{folder / "shared"}" }}\n',
        )
        (folder / "shared").mkdir()
        (folder / "ckpts").mkdir()
        with closing(program) as daemon:
            assert daemon.launch(), daemon.log()
            client = ckptd.connect(daemon.endpoint)
            run = client.run(str(folder / "ckpts"), num_kept_ckpts=1)
            run.save("s1", step=1, files={"a": b"1234"}).wait("committed", timeout=60)
            assert run.restore(lambda last: last.read("a")) == b"1234"
            until(lambda: daemon.status().cluster.registered, "the registration")
            ports = re.search(r"metrics_port=(\d+)", daemon.log())
            assert ports, daemon.log()
            of_etcd = _get(f"{etcd.endpoints()[0]}/metrics")
            etcd.kill(0)  # Failed requests have no counter before the first.
            url = f"http://127.0.0.1:{ports[1]}/metrics"
            until(lambda: "ckptd_etcd_failed_requests_total" in _get(url), "a failed request to etcd")
            made = Scrape(_get(url), _get(url, OPEN_METRICS), _get(url), of_etcd)
            client.close()
    return made


def scraped() -> set[str]:
    return set(re.findall(r"^# TYPE (\S+) ", scrape().text + scrape().of_etcd, re.MULTILINE))


def _get(url: str, content_type: str = PROMETHEUS_TEXT) -> str:
    request = urllib.request.Request(url, headers={"Accept": content_type})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith(content_type)
        text: str = answer.read().decode()
    return text


def series_of(families: Iterable[Metric]) -> set[tuple[str, ...]]:
    """By name and labels. The bounds of buckets as numbers: `1` and `1.0` are the same."""
    samples = (sample for family in families for sample in family.samples)
    return {
        (sample.name, *sorted(f"{key}={float(text) if key == 'le' else text}" for key, text in sample.labels.items()))
        for sample in samples
    }


def test_open_metrics_have_the_series_of_prometheus_text_and_their_starts() -> None:
    families = list(open_metrics_parser.text_string_to_metric_families(scrape().open_metrics))
    served = series_of(families)
    starts = {one for one in served if one[0].endswith("_created")}
    before = series_of(text_parser.text_string_to_metric_families(scrape().text))
    after = series_of(text_parser.text_string_to_metric_families(scrape().later_text))
    assert ("ckptd_etcd_request_seconds_bucket", "le=inf") in before
    assert before <= served - starts <= after, "a series may begin meanwhile"
    types = {family.name: (family.type, family.unit) for family in families}
    assert types["ckptd_written_bytes"] == ("counter", "bytes")
    assert types["ckptd_save_stall_seconds"] == ("histogram", "seconds")
    assert types["ckptd_build"] == ("info", "")
    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert "ckptd_written_bytes_created" in values
    assert {values[name] for name, *_ in starts} == {values["ckptd_start_time_seconds"]}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_metrics_of_the_alert_exist(rule: dict[str, Any]) -> None:
    named = metrics_of(rule["expr"])
    assert named or rule["expr"].startswith("up{"), "it looks at something"
    assert named <= scraped()


def test_metrics_of_the_dashboard_exist() -> None:
    assert metrics_of("sum(ckptd_no_such_thing)") - scraped() == {"ckptd_no_such_thing"}, "this test can fail"
    missing = {name for query in dashboard_queries() for name in metrics_of(query)} - scraped()
    assert not missing


def test_dashboard_queries_are_valid_and_each_panel_has_its_place(tmp_path: pathlib.Path) -> None:
    filled = (query.replace("$__rate_interval", "5m").replace("$__interval", "5m") for query in dashboard_queries())
    rules = [{"record": f"query{number}", "expr": query} for number, query in enumerate(filled)]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(tmp_path / "queries.yml"))
    places = set()
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        box = panel["gridPos"]
        cells = {(x, y) for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])}
        assert not cells & places and box["x"] + box["w"] <= 24
        places |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_alert_rules_pass_promtool() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", str(ALERTS))


RUN = '{instance="n",run="runs/1"}'
# For each alert: the series that make it fire, at one value a minute, and the same in good times.
CASES = {
    "CkptdDown": ([('up{job="ckptd",instance="n"}', "0x60")], [('up{job="ckptd",instance="n"}', "1x60")]),
    "CkptdRestarts": (
        [('ckptd_start_time_seconds{instance="n"}', "1x10 2x10 3x10 4x30")],
        [('ckptd_start_time_seconds{instance="n"}', "1x30 2x30")],
    ),
    "CkptdNoCheckpoint": (
        [
            (f"ckptd_last_committed_timestamp_seconds{RUN}", "0x100"),
            (f"ckptd_last_committed_sequence{RUN}", "1x30 2x70"),
            ('ckptd_sessions{instance="n"}', "2x100"),
        ],
        [
            (f"ckptd_last_committed_timestamp_seconds{RUN}", "0x100"),
            (f"ckptd_last_committed_sequence{RUN}", "1x30 2x70"),
            ('ckptd_sessions{instance="n"}', "0x100"),  # The job has ended.
        ],
    ),
    "CkptdSavesFail": (
        [('ckptd_run_saves_total{instance="n",run="runs/1",outcome="failed"}', "0x50 1x10")],
        [('ckptd_run_saves_total{instance="n",run="runs/1",outcome="committed"}', "0x50 1x10")],
    ),
    "CkptdEverySaveFails": (
        [
            ('ckptd_run_saves_total{instance="n",run="runs/1",outcome="failed"}', "0+1x60"),
            ('ckptd_run_saves_total{instance="n",run="runs/1",outcome="committed"}', "9x60"),
        ],
        [
            ('ckptd_run_saves_total{instance="n",run="runs/1",outcome="failed"}', "0+1x60"),
            ('ckptd_run_saves_total{instance="n",run="runs/1",outcome="committed"}', "0+1x60"),
        ],
    ),
    "CkptdSavesSkipped": (
        [
            ('ckptd_saves_total{instance="n",outcome="skipped",reason="SKIPPED"}', "0+1x200"),
            ('ckptd_saves_total{instance="n",outcome="committed",reason=""}', "0+2x200"),
        ],
        [
            ('ckptd_saves_total{instance="n",outcome="skipped",reason="SKIPPED"}', "0+1x200"),
            ('ckptd_saves_total{instance="n",outcome="committed",reason=""}', "0+9x200"),
        ],
    ),
    "CkptdSaveStuck": (
        [(f"ckptd_oldest_save_in_flight_age_seconds{RUN}", "1900x60")],
        [(f"ckptd_oldest_save_in_flight_age_seconds{RUN}", "900x60")],
    ),
    "CkptdStallsAreLong": (
        [
            ('ckptd_save_stall_seconds_bucket{instance="n",le="10"}', "0x200"),
            ('ckptd_save_stall_seconds_bucket{instance="n",le="30"}', "0+1x200"),
            ('ckptd_save_stall_seconds_bucket{instance="n",le="+Inf"}', "0+1x200"),
        ],
        [
            ('ckptd_save_stall_seconds_bucket{instance="n",le="10"}', "0+1x200"),
            ('ckptd_save_stall_seconds_bucket{instance="n",le="30"}', "0+1x200"),
            ('ckptd_save_stall_seconds_bucket{instance="n",le="+Inf"}', "0+1x200"),
        ],
    ),
    "CkptdCheckpointDamaged": (
        [(f"ckptd_damaged_checkpoints{RUN}", "1x60")],
        [(f"ckptd_damaged_checkpoints{RUN}", "0x60")],
    ),
    "CkptdRestoreFails": (
        [('ckptd_run_restores_total{instance="n",run="runs/1",outcome="failed"}', "0x50 1x10")],
        [('ckptd_run_restores_total{instance="n",run="runs/1",outcome="read"}', "0x50 1x10")],
    ),
    "CkptdRootHangs": ([(f"ckptd_root_degraded{RUN}", "1x60")], [(f"ckptd_root_degraded{RUN}", "0x60")]),
    "CkptdRootReadOnly": ([(f"ckptd_root_read_only{RUN}", "1x60")], [(f"ckptd_root_read_only{RUN}", "0x59 1x1")]),
    "CkptdDiskNearlyFull": (
        [(f"ckptd_root_free_bytes{RUN}", "150x60"), (f"ckptd_last_committed_bytes{RUN}", "100x60")],
        [(f"ckptd_root_free_bytes{RUN}", "250x60"), (f"ckptd_last_committed_bytes{RUN}", "100x60")],
    ),
    "CkptdPoolTooSmall": (
        [('ckptd_saves_total{instance="n",outcome="failed",reason="ADMISSION_TIMEOUT"}', "0x50 1x10")],
        [('ckptd_saves_total{instance="n",outcome="failed",reason="RANKS_MISSING"}', "0x50 1x10")],
    ),
    "CkptdWritesByThreads": (
        [('ckptd_root_io_backend_info{instance="n",run="runs/1",backend="threads"}', "1x90")],
        [('ckptd_root_io_backend_info{instance="n",run="runs/1",backend="io_uring"}', "1x90")],
    ),
    "CkptdUploadsLag": (
        [("ckptd_oldest_upload_waiting_age_seconds" + RUN, "3660+60x80")],
        [("ckptd_oldest_upload_waiting_age_seconds" + RUN, "0+30x80")],
    ),
    "CkptdHistoryIncomplete": (
        [('ckptd_history_dropped_entries_total{instance="n"}', "0x50 3x10")],
        [('ckptd_history_dropped_entries_total{instance="n"}', "3x60")],
    ),
    "CkptdNotRegistered": (
        [('ckptd_node_registered{instance="n",node="a"}', "0x60")],
        [('ckptd_node_registered{instance="n",node="a"}', "1x60")],
    ),
    "CkptdRegistrationLost": (
        [('ckptd_node_lost_leases_total{instance="n",node="a"}', "0x20 4x40")],
        [('ckptd_node_lost_leases_total{instance="n",node="a"}', "0x20 1x40")],
    ),
    "CkptdNoCoordinator": (
        [('ckptd_shared_runs_without_coordinator{instance="n"}', "1x60")],
        [('ckptd_shared_runs_without_coordinator{instance="n"}', "0x60")],
    ),
    "CkptdEtcdMemberAway": (
        [('ckptd_etcd_member_answers{instance="n",endpoint="e"}', "0x60")],
        [('ckptd_etcd_member_answers{instance="n",endpoint="e"}', "1x60")],
    ),
    "CkptdEtcdSlow": (
        [
            ('ckptd_etcd_request_seconds_bucket{instance="n",le="1"}', "0x60"),
            ('ckptd_etcd_request_seconds_bucket{instance="n",le="2.5"}', "0+10x60"),
            ('ckptd_etcd_request_seconds_bucket{instance="n",le="+Inf"}', "0+10x60"),
        ],
        [
            ('ckptd_etcd_request_seconds_bucket{instance="n",le="1"}', "0+10x60"),
            ('ckptd_etcd_request_seconds_bucket{instance="n",le="2.5"}', "0+10x60"),
            ('ckptd_etcd_request_seconds_bucket{instance="n",le="+Inf"}', "0+10x60"),
        ],
    ),
    "CkptdEtcdRefuses": (
        [('ckptd_etcd_failed_requests_total{instance="n",reason="LEDGER_UNAVAILABLE"}', "0+3x60")],
        [('ckptd_etcd_failed_requests_total{instance="n",reason="LEDGER_UNAVAILABLE"}', "0x59 1x1")],
    ),
    "CkptdEtcdNearlyFull": (
        [
            ('etcd_mvcc_db_total_size_in_bytes{instance="n"}', "90x60"),
            ('etcd_server_quota_backend_bytes{instance="n"}', "100x60"),
        ],
        [
            ('etcd_mvcc_db_total_size_in_bytes{instance="n"}', "50x60"),
            ('etcd_server_quota_backend_bytes{instance="n"}', "100x60"),
        ],
    ),
}


def minutes(values: str) -> int:
    """The length of a series such as `0x50 1x10`."""
    return sum(int(each.rsplit("x", 1)[1]) for each in values.split())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_fires_on_its_series_and_not_in_good_times(rule: dict[str, Any], tmp_path: pathlib.Path) -> None:
    bad, good = CASES[rule["alert"]]
    alone = tmp_path / "alone.yml"
    alone.write_text(json.dumps({"groups": [{"name": "one", "rules": [rule]}]}))
    for series, fires in ((bad, True), (good, False)):
        at = f"{min(minutes(values) for _, values in series)}m"
        # As a query, because promtool would compare the text of the annotations, too.
        query = {"expr": f'count(ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}})', "eval_time": at}
        query["exp_samples"] = [{"labels": "{}", "value": 1}] if fires else []
        test = {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series],
            "promql_expr_test": [query],
        }
        case = tmp_path / f"{fires}.yml"
        case.write_text(json.dumps({"rule_files": [str(alone)], "evaluation_interval": "1m", "tests": [test]}))
        promtool("test", "rules", str(case))


def test_every_alert_has_its_line_in_operations_md() -> None:
    operations = (ROOT / "docs/operations.md").read_text()
    section = operations.split("### Alerts", 1)[1].split("\n### ", 1)[0]
    rows = re.findall(r"^- `(Ckptd\w+)`: (.+(?:\n  .+)*)$", section, re.MULTILINE)
    assert [name for name, _ in rows] == [rule["alert"] for rule in RULES]
    assert all(len(what.split()) >= 3 for _, what in rows)
    assert all(rule["labels"]["severity"] in ("critical", "warning", "info") for rule in RULES)
    assert all(rule["annotations"]["summary"] for rule in RULES)
