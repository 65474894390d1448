"""The C++ library of the packages: the example is compiled against the installed files, and saves and resumes."""

from __future__ import annotations

import io
import os
import pathlib
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from typing import Dict, List

import pytest
import sdk_programs
from harness import Daemon, packages, tags, temporary_folder

MULTIARCH = "lib/x86_64-linux-gnu"
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
needs_rpmbuild = pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def debian(folder: pathlib.Path) -> pathlib.Path:
    """The folder /usr of a system on which both packages of Debian are unpacked."""
    for kind in ("library", "development"):
        deb = packages.build_package(kind, folder)
        subprocess.run(["dpkg-deb", "--extract", deb, folder / "debian"], check=True, timeout=60)
    return folder / "debian/usr"


@pytest.fixture(scope="module")
def tarball(folder: pathlib.Path) -> pathlib.Path:
    """Where the tarball is unpacked."""
    with tarfile.open(packages.build_package("tarball", folder)) as archive:
        archive.extractall(folder)
    return folder / f"ckptd-{packages.VERSION}"


@pytest.fixture(scope="module")
def fedora(folder: pathlib.Path) -> pathlib.Path:
    """The folder /usr of a system on which the RPMs of the library are unpacked."""
    for rpm in packages.build_packages("rpm", folder)[1:]:
        with rpm.open("rb") as file:
            unpacked = subprocess.run(
                ["rpm2archive", "-"], stdin=file, check=True, capture_output=True, timeout=60
            )
        with tarfile.open(fileobj=io.BytesIO(unpacked.stdout)) as archive:
            archive.extractall(folder / "fedora")
    return folder / "fedora/usr"


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with temporary_folder() as path:
        os.mkdir(f"{path}/ckpts")
        made = Daemon(f"{path}/d")
        yield made
        made.close()


def train_twice(program: str, libraries: pathlib.Path, daemon: Daemon) -> None:
    environment = {**sdk_programs.environment(), "LD_LIBRARY_PATH": str(libraries)}
    root = os.path.join(os.path.dirname(daemon.folder), "ckpts")
    for steps in ("1", "2"):
        out = sdk_programs.run(program, daemon.endpoint, root, steps, env=environment).splitlines()
    assert out[0] == "resumed from step_1"
    assert tags(root) == ["step_2", "step_1"]


def flags(pkg_config: pathlib.Path) -> List[str]:
    environment: Dict[str, str] = {**os.environ, "PKG_CONFIG_PATH": str(pkg_config)}
    return sdk_programs.run("pkg-config", "--cflags", "--libs", "ckptd", env=environment).split()


def test_example_of_the_debian_package_is_compiled_with_its_files(
    debian: pathlib.Path, tmp_path: pathlib.Path, daemon: Daemon
) -> None:
    source = debian / "share/doc/libckptd-dev/examples/cpp/train.cc"
    words = flags(debian / MULTIARCH / "pkgconfig")
    assert str(debian.parent) in " ".join(words)  # The files name no folder: they find each other.
    sdk_programs.run("g++", "-std=c++20", str(source), "-o", str(tmp_path / "train"), *words)
    train_twice(str(tmp_path / "train"), debian / MULTIARCH, daemon)


@needs_cmake
def test_cmake_finds_the_files_of_the_debian_package(
    debian: pathlib.Path, tmp_path: pathlib.Path, daemon: Daemon
) -> None:
    program = sdk_programs.compile_with_cmake(tmp_path / "example", debian)
    train_twice(program, debian / MULTIARCH, daemon)


@needs_rpmbuild
def test_example_of_the_rpms_is_compiled_with_their_files(
    fedora: pathlib.Path, tmp_path: pathlib.Path, daemon: Daemon
) -> None:
    """In the command of docs/install.md, where the RPMs are unpacked."""
    install, compile_it = packages.install_commands("rpm_cpp")
    names = {pathlib.PurePath(word).name for word in install.split() if word.endswith(".rpm")}
    assert names == {path.name for path in fedora.parents[1].glob("ckptd-[a-z]*.rpm")}
    command = compile_it.replace("/usr/share/", f"{fedora}/share/")
    assert command != compile_it
    environment = {**os.environ, "PKG_CONFIG_PATH": str(fedora / "lib64/pkgconfig")}
    sdk_programs.run("bash", "-ec", command, cwd=tmp_path, env=environment)
    train_twice(str(tmp_path / "train"), fedora / "lib64", daemon)


@needs_cmake
@needs_rpmbuild
def test_cmake_finds_the_files_of_the_rpms(
    fedora: pathlib.Path, tmp_path: pathlib.Path, daemon: Daemon
) -> None:
    """Debian's CMake looks for no lib64, Fedora's does."""
    place = f"-Dckptd_DIR={fedora / 'lib64/cmake/ckptd'}"
    program = sdk_programs.compile_with_cmake(tmp_path / "example", fedora, [place])
    train_twice(program, fedora / "lib64", daemon)


def test_example_of_the_tarball_is_compiled_with_its_files(
    tarball: pathlib.Path, tmp_path: pathlib.Path, daemon: Daemon
) -> None:
    """In the commands of docs/install.md, where the tarball is unpacked."""
    commands = packages.install_commands("tarball_cpp")
    assert len(commands) <= 5
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)],
        cwd=tarball,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    train_twice(str(tarball / "train"), tarball / "lib", daemon)


@needs_cmake
def test_cmake_finds_the_files_of_the_tarball(
    tarball: pathlib.Path, tmp_path: pathlib.Path, daemon: Daemon
) -> None:
    program = sdk_programs.compile_with_cmake(tmp_path / "example", tarball)
    train_twice(program, tarball / "lib", daemon)


def test_debian_package_depends_on_the_versions_that_the_library_needs(
    debian: pathlib.Path, folder: pathlib.Path
) -> None:
    """libstdc++6 of GCC 12 is the first with GLIBCXX_3.4.30."""
    needs = sdk_programs.run(
        "readelf", "--version-info", "--wide", str(debian / MULTIARCH / "libckptd_client.so.0")
    )
    deb = folder / f"libckptd-client0_{packages.VERSION}_amd64.deb"
    depends = sdk_programs.run("dpkg-deb", "--field", str(deb), "Depends")
    assert "libc6 (>= 2.34)" in depends and "GLIBC_2.34" in needs and "GLIBC_2.35" not in needs
    assert "libstdc++6 (>= 12)" in depends and "GLIBCXX_3.4.30" in needs and "GLIBCXX_3.4.31" not in needs


def test_development_package_needs_the_library_of_its_version(
    debian: pathlib.Path, folder: pathlib.Path
) -> None:
    deb = folder / f"libckptd-dev_{packages.VERSION}_amd64.deb"
    assert sdk_programs.run("dpkg-deb", "--field", str(deb), "Depends").strip() == (
        f"libckptd-client0 (= {packages.VERSION})"
    )
    link = debian / MULTIARCH / "libckptd_client.so"
    assert os.readlink(link) == "libckptd_client.so.0" and link.exists()
