"""The contents of the wheel, and that its programs run on systems without Debian's libraries."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import pathlib
import re
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()
SCRIPTS = f"ckptd-{VERSION}.data/scripts"
INFO = f"ckptd-{VERSION}.dist-info"
PROGRAMS = ["ckptd", "ckptctl"]


@pytest.fixture(scope="module")
def wheel() -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(ROOT / "dist" / f"ckptd-{VERSION}-py3-none-manylinux2014_x86_64.whl") as opened:
        yield opened


def unpack(wheel: zipfile.ZipFile, name: str, folder: pathlib.Path) -> pathlib.Path:
    """Extracts one file with the mode that pip would give it."""
    path = folder / pathlib.PurePosixPath(name).name
    path.write_bytes(wheel.read(name))
    path.chmod(wheel.getinfo(name).external_attr >> 16 & 0o777)
    return path


def run_in_empty_root(program: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the program with its folder as the root directory: without libraries, /proc and /etc."""
    command = ["chroot", str(program.parent), f"/{program.name}", *arguments]
    if os.getuid() != 0:
        command = ["unshare", "--user", "--map-root-user", *command]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_runs_in_an_empty_root_directory(
    wheel: zipfile.ZipFile, program: str, tmp_path: pathlib.Path
) -> None:
    run = run_in_empty_root(unpack(wheel, f"{SCRIPTS}/{program}", tmp_path), "--version")
    assert run.returncode == 0, run.stderr
    assert VERSION in run.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_installed_program_equals_the_one_in_the_wheel(wheel: zipfile.ZipFile, program: str) -> None:
    installed = pathlib.Path(sys.executable).parent / program
    assert installed.read_bytes() == wheel.read(f"{SCRIPTS}/{program}")


def test_installed_package_has_the_same_version(tmp_path: pathlib.Path) -> None:
    program = "import ckptd; print(ckptd.__version__)"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    assert run.stdout.strip() == VERSION


def test_converter_has_the_name_that_users_of_nxd_expect(wheel: zipfile.ZipFile) -> None:
    """Not NxD's own name: both packages can be installed."""
    commands = wheel.read(f"{INFO}/entry_points.txt").decode()
    assert commands.startswith("[console_scripts]\nckptd-nxd-convert = ckptd._nxd_convert:main\n")
    script = pathlib.Path(sys.executable).parent / "ckptd-nxd-convert"
    run = subprocess.run([script, "--help"], check=True, capture_output=True, text=True, timeout=60)
    assert "--convert_to_sharded" in run.stdout and "ckptctl convert nxd-zero" in run.stdout
    refused = subprocess.run([script, "--input_dir=x"], check=False, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2, "the exit status must be the program's"


def test_fsspec_finds_the_protocol_ckptd(wheel: zipfile.ZipFile) -> None:
    entries = wheel.read(f"{INFO}/entry_points.txt").decode()
    assert entries.endswith("[fsspec.specs]\nckptd = ckptd.dcp._fsspec:CkptdFileSystem\n")
    program = "import fsspec; print(fsspec.get_filesystem_class('ckptd').__module__)"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "ckptd.dcp._fsspec"


def test_package_has_version_native_library_and_generated_code(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    generated = {
        f"{proto.relative_to(ROOT / 'proto').with_suffix('')}_pb2{suffix}"
        for folder in ("v1", "storage/v1")
        for proto in (ROOT / "proto/ckptd" / folder).glob("*.proto")
        for suffix in (".py", ".pyi")
    }
    assert generated
    expected = generated | {
        "ckptd/__init__.py",
        "ckptd/py.typed",
        "ckptd/_native.so",
        "ckptd/v1/service_pb2_grpc.py",
    }
    assert expected <= names
    metadata = wheel.read(f"{INFO}/METADATA").decode()
    assert f"\nVersion: {VERSION}\n" in metadata
    assert "\nRequires-Python: >=3.9\n" in metadata


def test_wheel_contains_only_package_programs_and_metadata(wheel: zipfile.ZipFile) -> None:
    strangers = [n for n in wheel.namelist() if not n.startswith(("ckptd/", f"{SCRIPTS}/", f"{INFO}/"))]
    assert strangers == []
    assert [n for n in wheel.namelist() if "__pycache__" in n or "test" in n] == []


def test_wheel_contains_licenses_of_everything_linked(wheel: zipfile.ZipFile) -> None:
    assert "Apache License" in wheel.read(f"{INFO}/licenses/LICENSE").decode()
    names = {pathlib.PurePosixPath(n).name for n in wheel.namelist() if "/licenses/third_party/" in n}
    assert {"libgrpc-dev", "libssl-dev", "liburing-dev", "libc6-dev", "libisal", "prometheus-cpp"} <= names


def test_record_names_every_file_with_its_digest_and_size(wheel: zipfile.ZipFile) -> None:
    rows = list(csv.reader(io.StringIO(wheel.read(f"{INFO}/RECORD").decode())))
    assert sorted(name for name, _, _ in rows) == sorted(wheel.namelist())
    for name, digest, size in rows:
        if name == f"{INFO}/RECORD":
            continue
        data = wheel.read(name)
        expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={expected}", str(len(data))), name


def test_only_programs_and_native_library_are_executable(wheel: zipfile.ZipFile) -> None:
    executable = {i.filename for i in wheel.infolist() if i.external_attr >> 16 & stat.S_IXUSR}
    assert executable == {f"{SCRIPTS}/{program}" for program in PROGRAMS} | {"ckptd/_native.so"}


def test_wheel_contains_no_time_and_no_path_of_the_machine(wheel: zipfile.ZipFile) -> None:
    assert {info.date_time for info in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    for name in wheel.namelist():
        assert str(ROOT).encode() not in wheel.read(name), name


def test_native_library_needs_nothing_newer_than_manylinux2014(
    wheel: zipfile.ZipFile, tmp_path: pathlib.Path
) -> None:
    library = unpack(wheel, "ckptd/_native.so", tmp_path)
    dump = subprocess.run(["objdump", "-Tp", library], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"NEEDED\s+(\S+)", dump))
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    too_new = {v for v in re.findall(r"GLIBC_(2\.\d+)", dump) if int(v.split(".")[1]) > 17}
    assert too_new == set()
