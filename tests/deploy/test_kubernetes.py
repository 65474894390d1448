"""deploy/kubernetes: valid by the API's schema, and consistent with the daemon, its unit and with one another."""

from __future__ import annotations

import pathlib
import re
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml
from etcd_members import PROGRAM as ETCD

from harness import DaemonProgram, closing, find_program, temporary_folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
MANIFESTS = {path.stem: list(yaml.safe_load_all(path.read_text())) for path in sorted(FOLDER.glob("*.yaml"))}
OBJECTS = [(name, each) for name, objects in MANIFESTS.items() for each in objects]
VERSION = (ROOT / "VERSION").read_text().strip()


def of_kind(name: str, kind: str) -> Any:
    (found,) = [each for each in MANIFESTS[name] if each["kind"] == kind]
    return found


def configuration() -> str:
    text: str = of_kind("ckptd", "ConfigMap")["data"]["ckptd.txtpb"]
    return text


POD = of_kind("ckptd", "DaemonSet")["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
TRAINER = of_kind("trainer", "Job")["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", ["1.27", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name, manifest", OBJECTS, ids=lambda value: value if isinstance(value, str) else value["kind"])
def test_manifest_is_valid_by_the_schema_of_the_api(name: str, manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_schema_is_checked_for_unknown_fields_and_wrong_types() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(of_kind("ckptd", "DaemonSet")))
    wrong["spec"]["template"]["spec"]["containers"][0]["resourcs"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("cluster", [False, True])
def test_configuration_is_accepted_also_with_the_block_for_several_nodes(tmp_path: pathlib.Path, cluster: bool) -> None:
    text = configuration()
    if cluster:
        assert "# cluster {" in text
        text = re.sub(r"^# (?=cluster|}|  )", "", text, flags=re.MULTILINE)
        for name, what in (("ca.crt", "CERTIFICATE"), ("tls.crt", "CERTIFICATE"), ("tls.key", "PRIVATE KEY")):
            (tmp_path / name).write_text(f"-----BEGIN {what}-----\n")
            (tmp_path / name).chmod(0o400)
        (tmp_path / "shared").mkdir()
        text = text.replace("/etc/ckptd-etcd", str(tmp_path)).replace("/data/shared", str(tmp_path / "shared"))
        assert "shared_folders" in text and "#   " not in text
    (tmp_path / "ckptd.txtpb").write_text(text)
    checked = subprocess.run(
        [find_program(), "--check_config", f"--config={tmp_path / 'ckptd.txtpb'}"], capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout) == (0, "ok\n"), checked.stderr


def test_pool_is_what_the_pod_may_take_of_huge_pages() -> None:
    pool = re.search(r"pool { bytes: (\d+)GiB }", configuration())
    assert pool
    for kind in ("requests", "limits"):
        assert CONTAINER["resources"][kind]["hugepages-2Mi"] == f"{pool[1]}Gi"
    assert CONTAINER["resources"]["requests"]["memory"] == CONTAINER["resources"]["limits"]["memory"]


def test_trainer_finds_the_sockets_and_may_connect() -> None:
    socket = re.search(r'socket_path: "(.+)"', configuration())
    assert socket
    environment = {each["name"]: each["value"] for each in TRAINER["containers"][0]["env"]}
    assert environment["CKPTD_ENDPOINT"] == f"unix:{socket[1]}"
    folder = str(pathlib.PurePath(socket[1]).parent)
    for pod in (POD, TRAINER):
        volumes = {each["name"]: each for each in pod["volumes"]}
        (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == folder]
        assert volumes[mount["name"]]["hostPath"]["path"] == folder
    assert TRAINER["securityContext"]["supplementalGroups"] == [CONTAINER["securityContext"]["runAsGroup"]]
    assert TRAINER["securityContext"]["runAsUser"] != 0


def test_daemon_has_the_rights_of_its_unit_and_no_more() -> None:
    unit = (ROOT / "deploy/systemd/ckptd.service").read_text()
    (capabilities,) = re.findall(r"^CapabilityBoundingSet=(.+)$", unit, re.MULTILINE)
    rights = CONTAINER["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": [each[4:] for each in capabilities.split()]}
    assert rights["allowPrivilegeEscalation"] is False and rights["readOnlyRootFilesystem"] is True
    assert rights["seccompProfile"]["type"] == "RuntimeDefault" and "privileged" not in rights
    for name, manifest in OBJECTS:
        if manifest["kind"] in ("DaemonSet", "StatefulSet"):
            assert manifest["spec"]["template"]["spec"]["automountServiceAccountToken"] is False, name
    assert POD["serviceAccountName"] == of_kind("ckptd", "ServiceAccount")["metadata"]["name"]


def test_every_folder_that_the_daemon_writes_to_is_mounted() -> None:
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in CONTAINER["volumeMounts"]}
    volumes = {each["name"] for each in POD["volumes"]}
    assert {each["name"] for each in CONTAINER["volumeMounts"]} == volumes, "no volume is unused or missing"
    for path in re.findall(r'^(?:socket_path|state_directory): "(.+)"', configuration(), re.MULTILINE):
        above = [mount for mount in mounts if pathlib.PurePath(path).is_relative_to(mount)]
        assert above and not mounts[above[0]], path
    assert CONTAINER["args"] == ["--config=/etc/ckptd/ckptd.txtpb"] and "/etc/ckptd" in mounts


def test_pod_gets_the_time_that_a_drain_takes() -> None:
    unit = (ROOT / "deploy/systemd/ckptd.service").read_text()
    assert f"TimeoutStopSec={POD['terminationGracePeriodSeconds']}s" in unit


def test_images_have_the_version() -> None:
    assert CONTAINER["image"] == f"ckptd:{VERSION}"


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probe_succeeds_beside_a_daemon_and_fails_without(probe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *arguments = CONTAINER[probe]["exec"]["command"]
    seconds = int(re.search(r"--timeout=(\d+)", " ".join(arguments))[1])  # type: ignore[index]
    assert seconds < CONTAINER[probe]["timeoutSeconds"], "it says why before it is killed"
    with temporary_folder() as folder:
        program = DaemonProgram(folder, "pool { bytes: 64MiB populate_ahead_bytes: 0 }\nmetrics { port: -1 }\n")
        monkeypatch.setenv("CKPTD_ENDPOINT", program.endpoint)
        with closing(program) as daemon:
            assert daemon.launch(), daemon.log()
            assert subprocess.run([find_program(name), *arguments], capture_output=True).returncode == 0
        assert subprocess.run([find_program(name), *arguments], capture_output=True).returncode == 3


def test_etcd_knows_its_options_and_its_members_are_those_of_the_daemons() -> None:
    stateful = of_kind("etcd", "StatefulSet")["spec"]
    command = stateful["template"]["spec"]["containers"][0]["command"]
    text = subprocess.run([str(ETCD), "--help"], capture_output=True, text=True).stdout
    for option in command[1:]:
        assert f"{option.split('=')[0]} " in text, option
    members = [f"https://etcd-{number}.etcd.ckptd.svc" for number in range(stateful["replicas"])]
    named = re.findall(r'etcd_endpoints: "(.+):2379"', configuration())
    assert named == members
    (initial,) = [each for each in command if each.startswith("--initial-cluster=")]
    assert re.findall(r"=(https://[^,=]+):2380", initial) == members
    service = of_kind("etcd", "Service")
    assert stateful["serviceName"] == service["metadata"]["name"] == "etcd"
    assert service["spec"]["selector"] == stateful["selector"]["matchLabels"]
