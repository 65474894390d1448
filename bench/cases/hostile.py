"""Saves of a well-behaved job beside a hostile user of the same daemon."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import Any, Dict, List

from bench.base.context import MIB, BenchContext, describe_milliseconds
from bench.base.daemon import Daemon
from bench.base.result import Result
from bench.cases import clients

HOSTILE = 20_002  # A user. Only root can be two users; else the job's own user is hostile, which shares its limits.
BUSY_SECONDS = 10  # The job's busy policy: how long a save waits for room.
GRACE_SECONDS = 2  # Within which a save above its user's share must be sealed.
STATE = 16 * MIB


def run(context: BenchContext) -> None:
    """Measures the same saves alone, beside the hostile user, and alone again."""
    rounds = 3 if context.quick else 100
    config = f'socket_mode: "0666"\nlimits {{ over_share_grace_seconds: {GRACE_SECONDS} }}'
    with context.daemon(8 * STATE, config=config) as daemon:
        daemon.wait_for_pool()
        daemon.folder.chmod(0o711)  # The hostile user must reach the socket.
        alone = [_job(context, daemon, rounds)]
        with _hostile(daemon):
            beside = _job(context, daemon, rounds)
        alone.append(_job(context, daemon, rounds))
    quiet = [seconds for job in alone for seconds in job["stalls"]]
    words = f"of {rounds}, beside a user who holds memory, opens sessions and lists; alone {sum(job['failed'] for job in alone)}"
    context.report(Result("hostile.failed_saves", beside["failed"], "", words, combine=sum))
    words = f"a save waits at most {BUSY_SECONDS} s for room; alone {max(quiet) * 1e3:.0f} ms"
    context.report(Result("hostile.longest_stall_s", max(beside["stalls"]), "s", words, combine=max))
    words = f"stalls alone {describe_milliseconds(quiet)}; beside the hostile user {describe_milliseconds(beside['stalls'])}"
    value = statistics.median(beside["stalls"]) / statistics.median(quiet)
    context.report(Result("hostile.stall", value, "x", words))


def _job(context: BenchContext, daemon: Daemon, rounds: int) -> Dict[str, Any]:
    return clients.run_python(context, daemon, "beside", rounds, size=STATE, busy=BUSY_SECONDS)


class _hostile:
    """The hostile user's process, for a `with` block that begins when each of its attacks has begun."""

    def __init__(self, daemon: Daemon) -> None:
        root = daemon.folder / "hostile"
        root.mkdir()
        self._command: List[str] = [sys.executable, "-m", "bench.cases.programs.hostile_process"]
        self._command += [f"--endpoint={daemon.endpoint}", f"--root={root}", f"--memory={8 * STATE}"]
        if os.geteuid() == 0:
            os.chown(root, HOSTILE, HOSTILE)
            self._command.append(f"--uid={HOSTILE}")

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout
        if not self._process.stdout.readline():
            raise SystemExit(f"'{' '.join(self._command)}' ended with status {self._process.wait()}")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
