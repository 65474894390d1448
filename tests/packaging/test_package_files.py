"""The contents of the packages: the same bytes from the same inputs, nothing forgotten, and everything declared."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from typing import Dict

import pytest
from harness import packages

needs_rpmbuild = pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild is not installed")
DEBS = ("deb", "development", "library")
KINDS = (*DEBS, "image", "tarball", pytest.param("rpm", marks=needs_rpmbuild))


class Built(Dict[str, pathlib.Path]):
    """By kind: a package, built when it is first asked for."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def __missing__(self, kind: str) -> pathlib.Path:
        self[kind] = packages.build_package(kind, self.folder)
        return self[kind]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def tarball(built: Built) -> dict[str, bytes]:
    """What is in the tarball, by the path in its folder."""
    found = {}
    with tarfile.open(built["tarball"]) as archive:
        for member in archive:
            if member.issym():
                continue
            file = archive.extractfile(member)
            assert file
            found[member.name.partition("/")[2]] = file.read()
    return found


@pytest.fixture(scope="module")
def programs(tarball: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("bin")
    for name in ("ckptd", "ckptctl"):
        (folder / name).write_bytes(tarball[f"bin/{name}"])
        (folder / name).chmod(0o755)
    return folder


def members_of(deb: pathlib.Path) -> list[tarfile.TarInfo]:
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True, timeout=60)
    packed = deb.with_suffix(".tar")
    packed.write_bytes(data.stdout)
    with tarfile.open(packed) as archive:
        return archive.getmembers()


@pytest.fixture(scope="module")
def deb(built: Built) -> list[tarfile.TarInfo]:
    return members_of(built["deb"])


@pytest.fixture(scope="module")
def client_debs(built: Built) -> list[tarfile.TarInfo]:
    return members_of(built["library"]) + members_of(built["development"])


@pytest.mark.parametrize("kind", KINDS)
def test_two_builds_give_the_same_bytes(
    built: Built, kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user would build it elsewhere: with another umask, folder, time zone and language."""
    (tmp_path / "temporary").mkdir()
    for name, value in {"TMPDIR": str(tmp_path / "temporary"), "TZ": "Asia/Tokyo", "LC_ALL": "C", "USER": "eve"}.items():
        monkeypatch.setenv(name, value)
    umask = os.umask(0o077)
    try:
        again = packages.build_packages(kind, tmp_path / "out")
    finally:
        os.umask(umask)
    assert built[kind].name == again[0].name
    assert [path.name for path in again if path.read_bytes() != (built.folder / path.name).read_bytes()] == []


@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed")
@pytest.mark.parametrize("kind", DEBS)
def test_lintian_finds_nothing_in_the_debian_packages(built: Built, kind: str) -> None:
    run = subprocess.run(["lintian", built[kind]], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "")


def test_files_of_packages_belong_to_root_and_have_one_date(
    built: Built, deb: list[tarfile.TarInfo], client_debs: list[tarfile.TarInfo]
) -> None:
    with tarfile.open(built["tarball"]) as archive:
        members = [*archive.getmembers(), *deb, *client_debs]
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, packages.DATE)}
    assert {member.mode for member in members if not member.issym()} == {0o644, 0o755}
    executable = {pathlib.PurePath(member.name).name for member in members if member.isfile() and member.mode & 0o111}
    assert executable == {"ckptd", "ckptctl"}


def test_debian_package_installs_what_deploy_has(deb: list[tarfile.TarInfo]) -> None:
    names = {member.name.removeprefix("./") for member in deb}
    assert {
        "etc/ckptd/ckptd.txtpb",
        "etc/sysctl.d/ckptd.conf",
        "lib/systemd/system/ckptd.service",
        "usr/lib/sysusers.d/ckptd.conf",
        "usr/lib/tmpfiles.d/ckptd.conf",
    } <= names


def test_configuration_is_a_conffile_and_nothing_else(built: Built) -> None:
    command = ["dpkg-deb", "--info", built["deb"], "conffiles"]
    conffiles = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert conffiles.split() == ["/etc/ckptd/ckptd.txtpb", "/etc/sysctl.d/ckptd.conf"]


def test_tarball_has_the_files_of_the_debian_packages(
    tarball: dict[str, bytes], deb: list[tarfile.TarInfo], client_debs: list[tarfile.TarInfo]
) -> None:
    paths = [member.name.removesuffix(".gz") for member in [*deb, *client_debs] if member.isfile()]
    installed = {re.sub(r"^\./(usr/)?|x86_64-linux-gnu/", "", path) for path in paths}
    installed = {re.sub("share/doc/libckptd-(dev|client0)/", "share/doc/ckptd/", path) for path in installed}
    overrides = {"share/lintian/overrides/ckptd", "share/lintian/overrides/libckptd-client0"}
    assert installed - set(tarball) == {"share/doc/ckptd/changelog", "share/doc/ckptd/copyright", *overrides}
    assert set(tarball) - installed == {"share/doc/ckptd/LICENSE"}


def of_rpm(built: Built, name: str, query: str) -> set[str]:
    path = built["rpm"].with_name(f"{name}-{packages.VERSION}-1.x86_64.rpm")
    done = subprocess.run(["rpm", "-qp", query, path], check=True, capture_output=True, text=True, timeout=60)
    return set(done.stdout.splitlines())


@needs_rpmbuild
@pytest.mark.parametrize("rpm, deb", [("ckptd-libs", "libckptd-client0"), ("ckptd-devel", "libckptd-dev")])
def test_rpms_of_the_library_have_the_files_of_the_debian_packages(
    built: Built, rpm: str, deb: str
) -> None:
    """Each where its distribution wants it. The licence of ckptd itself is among Debian's common ones."""
    kind = {"libckptd-client0": "library", "libckptd-dev": "development"}[deb]
    paths = {member.name.removeprefix(".") for member in members_of(built[kind]) if not member.isdir()}
    placed = {path.replace("/lib/x86_64-linux-gnu/", "/lib64/").replace(f"/doc/{deb}/", f"/doc/{rpm}/") for path in paths}
    own = {f"/usr/share/doc/{rpm}/copyright", f"/usr/share/doc/{rpm}/changelog.gz", f"/usr/share/lintian/overrides/{deb}"}
    files = of_rpm(built, rpm, "--list")
    folders = {path for path in files if any(other.startswith(f"{path}/") for other in files)}
    assert files - folders - {f"/usr/share/doc/{rpm}/LICENSE"} == placed - own


@needs_rpmbuild
@pytest.mark.parametrize("rpm", ["ckptd", "ckptd-libs", "ckptd-devel"])
def test_rpm_has_the_folders_that_its_removal_removes_and_no_others(built: Built, rpm: str) -> None:
    """Those of ckptd. What is above them is of the distribution's own packages."""
    files = of_rpm(built, rpm, "--list")
    folders = {path for path in files if any(other.startswith(f"{path}/") for other in files)}
    above = {str(folder) for path in files for folder in pathlib.PurePath(path).parents}
    assert folders == {path for path in above if "ckptd" in path} != set()


@needs_rpmbuild
def test_rpms_say_what_the_library_needs_and_provides(built: Built) -> None:
    """libc and libstdc++ by the versions of their symbols, which rpmbuild has read from the library."""
    needs, provides = of_rpm(built, "ckptd-libs", "--requires"), of_rpm(built, "ckptd-libs", "--provides")
    assert {"libc.so.6(GLIBC_2.34)(64bit)", "libstdc++.so.6(GLIBCXX_3.4.30)(64bit)"} <= needs
    assert not {"libc.so.6(GLIBC_2.35)(64bit)", "libstdc++.so.6(GLIBCXX_3.4.31)(64bit)"} & needs
    assert "libckptd_client.so.0()(64bit)" in provides
    of_devel = {each for each in of_rpm(built, "ckptd-devel", "--requires") if not each.startswith("rpmlib(")}
    assert of_devel == {f"ckptd-libs(x86-64) = {packages.VERSION}-1"} <= provides
    assert f"pkgconfig(ckptd) = {packages.VERSION}" in of_rpm(built, "ckptd-devel", "--provides")


def test_bill_of_materials_names_each_linked_library_with_its_licence(
    tarball: dict[str, bytes], programs: pathlib.Path
) -> None:
    bill = json.loads(tarball["share/doc/ckptd/ckptd.spdx.json"])
    libraries = {entry["name"]: entry for entry in bill["packages"] if entry["name"] != "ckptd"}
    # One that only the linker's command line names, one of headers alone, one built from source, the compiler's own.
    assert {"libc-ares-dev", "nlohmann-json3-dev", "libisal", "libstdc++-12-dev", "libgcc-12-dev"} <= set(libraries)
    assert not {"libgtest-dev", "libbenchmark-dev"} & set(libraries)
    texts = {entry["licenseId"]: entry["extractedText"] for entry in bill["hasExtractedLicensingInfos"]}
    files = {name.rpartition("/")[2] for name in tarball if name.startswith("share/doc/ckptd/third_party/")}
    assert files == set(libraries)
    for name, entry in libraries.items():
        assert texts[entry["licenseDeclared"]].strip(), name
        assert tarball[f"share/doc/ckptd/third_party/{name}"].decode(errors="replace") == texts[entry["licenseDeclared"]]
    linked = {r["relatedSpdxElement"] for r in bill["relationships"] if r["relationshipType"] == "STATIC_LINK"}
    assert linked == {entry["SPDXID"] for entry in libraries.values()}
    # The version is that of the code in the program.
    zlib = re.search(rb" inflate ([\d.]+) Copyright", (programs / "ckptd").read_bytes())
    assert zlib and libraries["zlib1g-dev"]["versionInfo"].partition(":")[2].startswith(zlib[1].decode())


def test_wheel_has_the_same_bill_of_materials(tarball: dict[str, bytes]) -> None:
    bill = json.loads(tarball["share/doc/ckptd/ckptd.spdx.json"])
    with zipfile.ZipFile(packages.WHEEL) as wheel:
        own = json.loads(wheel.read(f"ckptd-{packages.VERSION}.dist-info/sboms/ckptd.spdx.json"))
    assert own.pop("creationInfo") != bill.pop("creationInfo")
    assert own == bill


def manual(tarball: dict[str, bytes], name: str) -> str:
    """A manual page as text; fails where the formatter warns."""
    command = ["groff", "-mandoc", "-Tutf8", "-K", "utf8", "-ww", "-rLL=200n", "-P-cbou"]
    done = subprocess.run(command, input=tarball[f"share/man/{name}"], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().replace("−", "-").replace("‐", "-")


needs_groff = pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")


def commands_of(program: pathlib.Path, *path: str) -> list[tuple[str, ...]]:
    text = subprocess.run([program, *path, "--help"], check=True, capture_output=True, text=True, timeout=60).stdout
    names = re.findall(r"^  ([\w-]+)  ", text.partition("\nSubcommands:\n")[2], re.MULTILINE)
    return [command for name in names for command in [(*path, name), *commands_of(program, *path, name)]]


@needs_groff
def test_manual_page_of_ckptctl_has_every_command_and_option(tarball: dict[str, bytes], programs: pathlib.Path) -> None:
    text = manual(tarball, "man1/ckptctl.1")
    commands = commands_of(programs / "ckptctl")
    assert ("convert", "nxd-zero") in commands and ("completion",) in commands
    sections = re.split(r"^   (\S.*)\n", text, flags=re.MULTILINE)
    by_command = {tuple(name.split()): body for name, body in zip(sections[1::2], sections[2::2])}
    assert list(by_command) == commands
    for command, body in by_command.items():
        shown = subprocess.run(
            [programs / "ckptctl", *command, "--help"], check=True, capture_output=True, text=True, timeout=60
        ).stdout
        options = set(re.findall(r"(?<=[ ,])--[\w-]+", "\n".join(re.findall(r"^ +(-\S+)", shown, re.MULTILINE))))
        assert all(option in body for option in options - {"--help"}), command


@needs_groff
def test_manual_page_of_ckptd_has_every_option(tarball: dict[str, bytes], programs: pathlib.Path) -> None:
    shown = subprocess.run([programs / "ckptd", "--help"], check=True, capture_output=True, text=True, timeout=60).stdout
    options = re.findall(r"^  (--\w+)", shown, re.MULTILINE)
    assert len(options) > 10
    text = manual(tarball, "man8/ckptd.8")
    assert [option for option in options if not re.search(rf"^ +{option}\b", text, re.MULTILINE)] == []


@needs_groff
def test_manual_page_of_the_configuration_has_every_field(tarball: dict[str, bytes]) -> None:
    proto = (packages.REPOSITORY / "proto/ckptd/config/v1/config.proto").read_text()
    fields = re.findall(r"^  (?:optional |repeated )?\w+ (\w+) = \d+;", proto, re.MULTILINE)
    text = manual(tarball, "man5/ckptd.config.5")
    assert len(fields) > 50
    assert [field for field in fields if not re.search(rf"^[ #]+{field}(:| {{)", text, re.MULTILINE)] == []


def test_wheel_leads_to_a_checkpoint_in_two_commands(tmp_path: pathlib.Path) -> None:
    """In a virtual environment of its own; what the wheel requires is that of this one."""
    commands = packages.install_commands("wheel")
    assert len(commands) == 2
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join(ours))
    shutil.copy(packages.WHEEL, tmp_path)
    pip = f"{sys.executable} -m pip --python venv/bin/python install --quiet --no-index --no-deps --force-reinstall"
    first = commands[0].replace("pip install", pip)
    second = commands[1].replace("--local ~/ckptd", "--local ~/ckptd --pool_bytes 64MiB")
    script = "\n".join(["set -e", first, "set +e", second, "status=$?", "kill $!", "wait $!", "exit $status"])
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/venv/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "first is COMMITTED" in done.stdout
    assert (tmp_path / "ckpts/first/os-release").read_bytes() == pathlib.Path("/etc/os-release").read_bytes()


def test_install_page_has_a_way_for_every_package() -> None:
    kinds = subprocess.run(
        [sys.executable, packages.REPOSITORY / "tools/packaging/build_packages.py", "--help"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    listed = re.search(r"KIND +of ([\w, ]+); default: all", " ".join(kinds.split()))
    page = (packages.REPOSITORY / "docs/install.md").read_text()
    assert listed and set(re.findall(r"<!-- install: (\w+) -->", page)) == {
        *(*listed[1].split(", "), "wheel"),
        *("tarball_cpp", "rpm_cpp"),
    }
    assert set(re.findall(r"ckptd(?:-[a-z]+\d?)?[-_](\d[\d.]*\d)[-_]", page)) == {packages.VERSION}
