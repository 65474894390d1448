"""A copy of the checkout in which mutants are built, with its own Bazel server.

The copy stays in the cache between runs, so that little is rebuilt. The objects of mutants do not go into the
cache that the tools share.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shutil
import subprocess
import time
from typing import List, Optional

from mutation.table import Mutant

FLAGS = ["--symlink_prefix=/", "--noshow_progress", "--ui_event_filters=-info", "--show_result=0"]
# Per test, by its size: small, medium, large, enormous. The slowest small one takes ten seconds, the simulations a
# minute each when nothing else runs. Detects mutants that make a test hang.
TEST_SECONDS = "120,300,300,300"

# Bazel's exit statuses.
PASSED, NOT_BUILT, TEST_FAILED = 0, 1, 3


class BrokenRun(Exception):
    """The mutant could not be judged: it does not compile, or Bazel failed."""


@dataclasses.dataclass
class Death:
    test: str  # //storage/fs:file_system_test
    case: str  # FileSystemHelpersTest.ReportsAFailedSyncOfTheDirectory
    how: str  # failed, crashed or hung


def cause_of_death(test: str, report: str) -> Death:
    """Returns which test case failed, from gtest's output in the logs that Bazel's report names."""
    logs = re.findall(r"^ +(/\S+\.log)$", report, re.MULTILINE)
    output = "\n".join(pathlib.Path(log).read_text(errors="replace") for log in logs)
    failed = re.search(r"^\[  FAILED  \] ([\w./]+)", output, re.MULTILINE)
    if failed:
        return Death(test, failed[1].rstrip(","), "failed")
    running = re.findall(r"^\[ RUN      \] ([\w./]+)", output, re.MULTILINE)
    return Death(test, running[-1] if running else "", "hung" if "TIMEOUT" in report else "crashed")


class Tree:
    def __init__(self, checkout: pathlib.Path, place: pathlib.Path, config: str) -> None:
        self.checkout = checkout
        self.place = place
        self.config = config

    def refresh(self) -> None:
        """Makes the copy equal to the checkout: tracked and new files, and nothing else."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self.checkout,
            check=True,
            capture_output=True,
        )
        wanted = {name for name in listed.stdout.decode().split("\0") if (self.checkout / name).is_file()}
        wanted.discard("")
        self.place.mkdir(parents=True, exist_ok=True)
        for path in [p for p in self.place.rglob("*") if p.is_file() or p.is_symlink()]:
            if str(path.relative_to(self.place)) not in wanted:
                path.unlink()
        for name in wanted:
            source, copy = self.checkout / name, self.place / name
            if copy.is_file() and copy.read_bytes() == source.read_bytes():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)

    def bazel(self, command: str, *arguments: str) -> subprocess.CompletedProcess:
        script = 'source tools/lib.sh; ckptd_bazel "$@"'
        return subprocess.run(
            ["bash", "-c", script, "tools/mutate", command, *arguments],
            cwd=self.place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def test(self, targets: List[str], *flags: str) -> subprocess.CompletedProcess:
        return self.bazel(
            "test",
            f"--config={self.config}",
            *FLAGS,
            f"--test_timeout={TEST_SECONDS}",
            "--test_arg=--gtest_fail_fast",
            *flags,
            *targets,
        )

    def warm_up(self, targets: List[str]) -> None:
        """Checks that every test passes without a mutant; otherwise a failure would prove nothing."""
        done = self.test(targets)
        if done.returncode != PASSED:
            raise BrokenRun(f"the tests fail without any mutant:\n{done.stdout}")

    def kill(self, mutant: Mutant) -> Optional[Death]:
        """Applies the mutant and runs its tests, one by one. Returns None if all of them pass."""
        source = self.place / mutant.file
        good = source.read_text()
        source.write_text(mutant.apply(good))
        try:
            for asked in mutant.tests:
                test, _, cases = asked.partition("=")
                flags = ["--noremote_upload_local_results", "--nocache_test_results"]
                flags += [f"--test_filter={cases}"] if cases else []
                done = self.test([test], *flags)
                if done.returncode == TEST_FAILED:
                    return cause_of_death(test, done.stdout)
                if done.returncode != PASSED:
                    raise BrokenRun(f"{mutant.name} does not build:\n{done.stdout}")
            return None
        finally:
            source.write_text(good)

    def close(self) -> None:
        """Ends the Bazel server, which would otherwise stay for hours."""
        deadline = time.monotonic() + 60
        while self.bazel("shutdown").returncode != 0 and time.monotonic() < deadline:
            time.sleep(1)
