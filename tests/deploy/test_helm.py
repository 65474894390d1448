"""deploy/helm: the chart gives the objects of deploy/kubernetes, and with other values valid ones that fit together."""

from __future__ import annotations

import pathlib
import subprocess
from typing import Any, Optional

import helm_python
import kubernetes_validate
import pytest
import yaml

from harness import find_program

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/ckptd"
VERSION = (ROOT / "VERSION").read_text().strip()
MEMBERS = [f"https://etcd-{number}.etcd.ckptd.svc:2379" for number in range(3)]
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "plain-memory": {"pool": {"gibibytes": 8, "hugePages": False}, "memoryGibibytes": 3},
    "several-nodes": {"cluster": {"enabled": True, "etcdEndpoints": MEMBERS, "sharedFolders": ["/data/shared"]}},
    "registry": {
        "image": {"repository": "registry.example/ckptd", "tag": "tested"},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"ckptd": None, "gpu": "true"},
        "tolerations": [],
        "priorityClassName": "",
        "seccompProfile": {"type": "Localhost", "localhostProfile": "ckptd.json"},
        "roots": "/mnt/ckpts",
    },
    "configuration": {"configuration": 'log { format: "json" }\nlimits { roots_per_uid: 8 }\n', "metrics": {"port": -1}},
}


def rendered(values: Optional[dict[str, Any]] = None, namespace: str = "ckptd") -> dict[str, Any]:
    """By kind: the objects that the chart gives."""
    with helm_python.Chart.load(str(CHART)) as chart:
        texts = chart.render(values or {}, name="a-release", namespace=namespace)
    objects = [yaml.safe_load(text) for name, text in texts.items() if name.endswith(".yaml")]
    assert len({each["kind"] for each in objects}) == len(objects)
    return {each["kind"]: each for each in objects}


def without_comments(manifest: dict[str, Any]) -> dict[str, Any]:
    """A ConfigMap's text has lines that only the plain manifests have, for those who edit them."""
    if manifest["kind"] != "ConfigMap":
        return manifest
    lines = manifest["data"]["ckptd.txtpb"].splitlines()
    kept = [line for line in lines if not line.startswith("#")]
    return {**manifest, "data": {"ckptd.txtpb": "\n".join(kept) + "\n"}}


def container(objects: dict[str, Any]) -> Any:
    return objects["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]


def test_default_values_give_the_objects_of_the_plain_manifests() -> None:
    manifests = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/ckptd.yaml").read_text()))
    expected = {each["kind"]: without_comments(each) for each in manifests}
    del expected["Namespace"]  # Helm makes it, with --create-namespace.
    assert rendered() == expected


def test_objects_are_in_the_namespace_of_the_release() -> None:
    assert {each["metadata"]["namespace"] for each in rendered(namespace="other").values()} == {"other"}


@pytest.mark.parametrize("name", VALUES)
def test_lint_finds_nothing(name: str) -> None:
    found = helm_python.lint(str(CHART), VALUES[name], strict=True)
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", ["1.27", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", VALUES)
def test_objects_are_valid_by_the_schema_of_the_api(name: str, version: str) -> None:
    for manifest in rendered(VALUES[name]).values():
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_daemon_accepts_the_configuration(name: str, tmp_path: pathlib.Path) -> None:
    text = rendered(VALUES[name])["ConfigMap"]["data"]["ckptd.txtpb"]
    for file, what in (("ca.crt", "CERTIFICATE"), ("tls.crt", "CERTIFICATE"), ("tls.key", "PRIVATE KEY")):
        (tmp_path / file).write_text(f"-----BEGIN {what}-----\n")
        (tmp_path / file).chmod(0o400)
    (tmp_path / "shared").mkdir()
    text = text.replace("/etc/ckptd-etcd", str(tmp_path)).replace("/data/shared", str(tmp_path / "shared"))
    (tmp_path / "ckptd.txtpb").write_text(text)
    checked = subprocess.run(
        [find_program(), "--check_config", f"--config={tmp_path / 'ckptd.txtpb'}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout) == (0, "ok\n"), checked.stderr


def test_values_reach_the_pod_and_the_configuration() -> None:
    plain = rendered(VALUES["plain-memory"])
    assert "pool { bytes: 8GiB }" in plain["ConfigMap"]["data"]["ckptd.txtpb"]
    assert container(plain)["resources"] == {"requests": {"cpu": "2", "memory": "11Gi"}, "limits": {"memory": "11Gi"}}
    several = rendered(VALUES["several-nodes"])
    text = several["ConfigMap"]["data"]["ckptd.txtpb"]
    assert [line.split('"')[1] for line in text.splitlines() if "etcd_endpoints" in line] == MEMBERS
    assert 'shared_folders: "/data/shared"' in text
    pod = several["DaemonSet"]["spec"]["template"]["spec"]
    (etcd,) = [each for each in pod["volumes"] if each["name"] == "etcd"]
    assert etcd["secret"]["optional"] is False, "the pod waits for it"
    other = rendered(VALUES["registry"])
    pod = other["DaemonSet"]["spec"]["template"]["spec"]
    assert container(other)["image"] == "registry.example/ckptd:tested"
    assert (pod["nodeSelector"], pod["imagePullSecrets"]) == ({"gpu": "true"}, [{"name": "registry"}])
    assert "tolerations" not in pod and "priorityClassName" not in pod
    (roots,) = [each for each in pod["volumes"] if each["name"] == "roots"]
    (mount,) = [each for each in container(other)["volumeMounts"] if each["name"] == "roots"]
    assert roots["hostPath"]["path"] == mount["mountPath"] == "/mnt/ckpts"
    assert container(other)["securityContext"]["seccompProfile"]["localhostProfile"] == "ckptd.json"


@pytest.mark.parametrize(
    "values, named",
    [
        ({"pool": {"gibibyte": 8}}, "gibibyte"),
        ({"pool": {"gibibytes": "8Gi"}}, "gibibytes"),
        ({"roots": "data"}, "roots"),
        ({"cluster": {"enabled": True}}, "etcdEndpoints"),
        ({"replicas": 3}, "replicas"),
    ],
)
def test_values_that_the_chart_does_not_know_are_refused(values: dict[str, Any], named: str) -> None:
    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(VALUES["several-nodes"])
        with pytest.raises(helm_python.HelmError, match=named):
            chart.validate_schema(values)


def test_chart_and_its_image_have_the_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    assert container(rendered())["image"] == f"ckptd:{VERSION}"


def test_notes_name_the_release() -> None:
    with helm_python.Chart.load(str(CHART)) as chart:
        notes = chart.render({"socketsGroup": 77}, name="ckptd", namespace="other")["ckptd/templates/NOTES.txt"]
    assert "kubectl -n other exec ds/ckptd -- ckptctl status" in notes and "group 77" in notes
