"""tools/release: what it refuses, and what its checks find in packages that are wrong."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from typing import List

import pytest
from harness import packages

CHECK = packages.REPOSITORY / "tools/packaging/check_release.py"
needs_rpmbuild = pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild is not installed")
CLOSED = """# Changelog

## [Unreleased]

## [{version}] - 2026-11-28

### Upgrade

- Nothing to do.
"""


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "checkout"
    (folder / "docs").mkdir(parents=True)
    (folder / "tests/compat/data/1.2.3").mkdir(parents=True)
    (folder / "CHANGELOG.md").write_text(CLOSED.format(version="1.2.3"))
    (folder / "docs/install.md").write_text("apt-get install ./ckptd_1.2.3_amd64.deb\n")
    return folder


def mistakes(checkout: pathlib.Path, version: str, *arguments: object) -> List[str]:
    command = [str(word) for word in (CHECK, f"--checkout={checkout}", f"--version={version}", *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = [line.removeprefix("check_release.py: ") for line in done.stderr.splitlines()]
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def test_checkout_with_a_closed_section_is_a_release(checkout: pathlib.Path) -> None:
    assert mistakes(checkout, "1.2.3") == []


def test_commit_that_is_no_release_is_refused_with_what_to_do(checkout: pathlib.Path) -> None:
    assert mistakes(checkout, "1.2") == [
        'VERSION is "1.2"; a release is called MAJOR.MINOR.PATCH',
        "CHANGELOG.md has no section [1.2] - YYYY-MM-DD",
        "tests/compat/data/1.2 is missing, which later versions are tested with; make it with the release's wheel:"
        " tests/compat/record.py tests/compat/data/1.2",
        "docs/install.md names the versions 1.2.3; it is 1.2",
    ]
    log = checkout / "CHANGELOG.md"
    log.write_text(log.read_text().replace("## [Unreleased]\n", "## [Unreleased]\n\n- New.\n").replace("-11-28", "-13-28"))
    assert mistakes(checkout, "1.2.3") == [
        "CHANGELOG.md has lines under Unreleased; move them to a section [1.2.3] - YYYY-MM-DD",
        'CHANGELOG.md: the date of 1.2.3 is "2026-13-28"; it is written YYYY-MM-DD',
    ]
    log.write_text(CLOSED.format(version="1.2.3").replace("Upgrade", "Fixed"))
    assert mistakes(checkout, "1.2.3") == [
        "CHANGELOG.md: the section of 1.2.3 has no part Upgrade, which says what to do"
    ]


@needs_rpmbuild
def test_all_packages_of_a_version_have_it_and_the_programs_of_the_wheel(
    tmp_path: pathlib.Path, checkout: pathlib.Path
) -> None:
    (checkout / "CHANGELOG.md").write_text(CLOSED.format(version=packages.VERSION))
    (checkout / "docs/install.md").write_text("")
    (checkout / "tests/compat/data" / packages.VERSION).mkdir()
    made = tmp_path / "made"
    for kind in ("deb", "development", "image", "library", "rpm", "tarball"):
        packages.build_package(kind, made)
    shutil.copy(packages.WHEEL, made)
    assert mistakes(checkout, packages.VERSION, f"--packages={made}") == []

    (made / f"ckptd-{packages.VERSION}-oci.tar").unlink()
    shutil.copy(made / f"ckptd_{packages.VERSION}_amd64.deb", made / "ckptd_0.0.1_amd64.deb")
    other = packages.build_package("tarball", tmp_path, version="0.0.1")
    shutil.copy(other, made / f"ckptd-{packages.VERSION}-linux-x86_64.tar.gz")
    assert mistakes(checkout, packages.VERSION, f"--packages={made}") == [
        f'ckptd-{packages.VERSION}-linux-x86_64.tar.gz says that it has the version "0.0.1"; it is {packages.VERSION}',
        f"ckptd-{packages.VERSION}-oci.tar is missing",
        f"ckptd_0.0.1_amd64.deb is no package of {packages.VERSION}",
    ]


def test_checkout_with_changes_and_a_folder_that_is_not_empty_are_refused(tmp_path: pathlib.Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(packages.REPOSITORY / "tools", clone / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "VERSION").write_text("1.2.3\n")
    (clone / "CHANGELOG.md").write_text(CLOSED.format(version="1.2.3"))
    release = clone / "tools/release"
    git = ["git", "-C", str(clone), "-c", "user.name=ckptd", "-c", "user.email=ckptd@localhost"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=test"]):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    full = subprocess.run([release, tmp_path / "full"], capture_output=True, text=True, timeout=60)
    assert full.returncode == 1 and "full is not empty; move it away" in full.stderr
    (clone / "VERSION").write_text("9.9.9\n")
    changed = subprocess.run([release], capture_output=True, text=True, timeout=60)
    assert changed.returncode == 1 and "the checkout has changes that are in no commit:  M VERSION" in changed.stderr
