"""deploy/: the files that an operator copies are correct."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CKPTD = os.environ.get("CKPTD_BIN") or str(pathlib.Path(sys.executable).parent / "ckptd")

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@pytest.fixture
def unit(tmp_path: pathlib.Path) -> pathlib.Path:
    """The unit, with an existing program in place of ours, because systemd-analyze looks for it."""
    text = (DEPLOY / "systemd" / "ckptd.service").read_text()
    text, count = re.subn(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
    assert count == 1
    path = tmp_path / "ckptd.service"
    path.write_text(text)
    return path


def verify(unit: pathlib.Path) -> str:
    """Returns the output of systemd-analyze, which exits with 0 on unknown keys: any output is a finding."""
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    return run.stdout + run.stderr


def keys(name: str) -> dict[str, str]:
    text = (DEPLOY / "systemd" / name).read_text()
    return dict(re.findall(r"^(\w+)=(.*)$", text, flags=re.MULTILINE))


@needs_systemd
def test_unit_passes_systemd_analyze(unit: pathlib.Path) -> None:
    assert verify(unit) == ""


@needs_systemd
def test_mistake_in_unit_is_detected(unit: pathlib.Path) -> None:
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WachdogSec="))
    assert "WachdogSec" in verify(unit)


def exposure(unit: pathlib.Path) -> tuple[float, set[str]]:
    """Returns the result of `systemd-analyze security`: the level, and the settings that add to it."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    run = subprocess.run([*command, str(unit)], capture_output=True, text=True, timeout=60)
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", run.stdout)
    assert level, run.stdout + run.stderr
    run = subprocess.run([*command, "--json=short", str(unit)], capture_output=True, text=True, timeout=60)
    lines = json.loads(run.stdout)
    return float(level[1]), {line["json_field"] for line in lines if line["exposure"] and not line["set"]}


def reasons() -> dict[str, str]:
    """Returns the table of docs/security.md: why each setting stays as it is."""
    text = (ROOT / "docs" / "security.md").read_text()
    text = text[text.index("## The unit") : text.index("## How to report")]
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", text, re.MULTILINE)
    return {name: why for names, why in rows for name in re.findall(r"`(\w+)`", names)}


@needs_systemd
def test_every_exposed_setting_of_unit_has_a_reason(unit: pathlib.Path) -> None:
    level, lines = exposure(unit)
    assert level <= 2.7
    assert lines == set(reasons())


@needs_systemd
def test_unit_without_network_is_hardened(unit: pathlib.Path) -> None:
    drop_in = (DEPLOY / "systemd" / "ckptd.service.d" / "metrics-socket.conf").read_text()
    unit.write_text(unit.read_text().split("[Install]")[0] + drop_in)
    level, lines = exposure(unit)
    assert level <= 2.0
    assert lines < set(reasons())


@needs_systemd
def test_unit_with_network_to_etcd_exposes_nothing_else(unit: pathlib.Path) -> None:
    drop_in = (DEPLOY / "systemd" / "ckptd.service.d" / "cluster.conf").read_text()
    unit.write_text(unit.read_text().split("[Install]")[0] + drop_in)
    assert verify(unit) == ""
    level, lines = exposure(unit)
    assert level <= 2.8
    assert lines == set(reasons())


@needs_systemd
def test_unit_with_network_to_buckets_exposes_nothing_else(unit: pathlib.Path) -> None:
    drop_in = (DEPLOY / "systemd" / "ckptd.service.d" / "upload.conf").read_text()
    unit.write_text(unit.read_text().split("[Install]")[0] + drop_in)
    assert verify(unit) == ""
    level, lines = exposure(unit)
    assert level <= 2.8
    assert lines == set(reasons())


def test_unit_reaches_no_other_machine_without_a_drop_in() -> None:
    assert keys("ckptd.service")["IPAddressDeny"] == "any"
    assert keys("ckptd.service")["IPAddressAllow"] == "localhost"
    assert "AF_INET6" in keys("ckptd.service.d/cluster.conf")["RestrictAddressFamilies"]
    assert "AF_INET6" in keys("ckptd.service.d/upload.conf")["RestrictAddressFamilies"]
    assert keys("ckptd.service.d/upload.conf")["IPAddressAllow"] == "any"


def test_packages_have_every_drop_in_where_the_documents_say() -> None:
    packaged = set(re.findall(r"/examples/([\w./-]+)\"", (ROOT / "tools/packaging/contents.py").read_text()))
    assert {path.name for path in (DEPLOY / "systemd/ckptd.service.d").iterdir()} <= packaged
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    named = set(re.findall(r"/usr/share/doc/ckptd/examples/([\w./-]+)", pages))
    assert {"cluster.conf", "upload.conf"} <= named <= packaged | {"cpp/train.cc"}


def test_unit_stop_timeout_exceeds_drain_timeout() -> None:
    config = (DEPLOY / "config" / "ckptd.txtpb").read_text()
    drain = int(re.findall(r"^drain_timeout_seconds: (\d+)", config, flags=re.MULTILINE)[0])
    assert int(keys("ckptd.service")["TimeoutStopSec"].rstrip("s")) >= drain + 20


def test_daemon_is_last_to_be_killed_when_memory_is_out() -> None:
    assert keys("ckptd.service")["OOMScoreAdjust"] == "-900"
    assert "MemoryMax" not in keys("ckptd.service")


def test_sample_configuration_is_valid() -> None:
    run = subprocess.run(
        [CKPTD, "--check_config", f"--config={DEPLOY / 'config' / 'ckptd.txtpb'}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "ok\n", "")


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_group_can_be_created() -> None:
    path = DEPLOY / "systemd" / "sysusers.d" / "ckptd.conf"
    assert re.search(r"^g ckptd -", path.read_text(), flags=re.MULTILINE)
    run = subprocess.run(["systemd-sysusers", "--dry-run", str(path)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_huge_pages_are_set_up() -> None:
    lines = (DEPLOY / "systemd" / "tmpfiles.d" / "ckptd.conf").read_text().splitlines()
    assert "w- /sys/kernel/mm/transparent_hugepage/shmem_enabled - - - - advise" in lines
    for line in lines:
        assert not line or line.startswith("#") or len(line.split()) == 7, line
