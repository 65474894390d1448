"""Every fault at every kind of request, and the daemon killed at every request, of uploads, removals and resumes. For tools/soak."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import pathlib
import sys
import time
import traceback
from typing import Callable, Iterator, List, Tuple

from bucket_servers import BucketServer, start_moto
from fault_cases import (
    KINDS_OF_FETCH,
    KINDS_OF_LIST,
    KINDS_OF_REMOVAL,
    KINDS_OF_UPLOAD,
    Cases,
    Shared,
    ToolCases,
)
from fault_plan import PASSING, Fault, can_meet
from swift_server import start_swift

from harness import temporary_folder

MOST_REQUESTS = 50  # Of an operation.
Case = Tuple[str, Callable[[], object]]


@contextlib.contextmanager
def server_of(name: str) -> Iterator[BucketServer]:
    with temporary_folder() as folder:
        yield from start_moto() if name == "moto" else start_swift(pathlib.Path(folder))


def single_faults(job: Shared[Cases], tool: Shared[ToolCases]) -> Iterator[Case]:
    for fault in [*PASSING, Fault.NO_BUCKET]:
        for kind in kinds(KINDS_OF_UPLOAD, fault):
            yield f"upload {fault.name} {kind}", lambda f=fault, k=kind: job.get().upload(f, k)
        for kind in kinds(KINDS_OF_REMOVAL, fault):
            yield f"removal {fault.name} {kind}", lambda f=fault, k=kind: job.get().removal(f, k)
        for kind in kinds(KINDS_OF_FETCH, fault):
            yield f"resume {fault.name} {kind}", lambda f=fault, k=kind: job.get().resume(f, k)
            yield f"ckptctl fetch {fault.name} {kind}", lambda f=fault, k=kind: tool.get().fetch(f, k)
        for kind in kinds(KINDS_OF_UPLOAD, fault):
            if kind != "PUT marker":
                yield f"ckptctl upload {fault.name} {kind}", lambda f=fault, k=kind: tool.get().upload(f, k)
        for command, kind in itertools.product(("list", "verify"), kinds(KINDS_OF_LIST, fault)):
            yield (
                f"ckptctl {command} {fault.name} {kind}",
                lambda f=fault, k=kind, c=command: tool.get().listing(c, f, k),
            )


def kinds(of: List[str], fault: Fault) -> List[str]:
    return [kind for kind in of if can_meet(fault, kind)]


def outages(job: Shared[Cases], tool: Shared[ToolCases]) -> Iterator[Case]:
    for fault in [*PASSING, Fault.NO_BUCKET, Fault.HANG]:
        if fault not in (Fault.SLOW, Fault.TWICE):  # No outages.
            yield f"outage {fault.name}", lambda f=fault: job.get().outage(f)


def kills(job: Shared[Cases], tool: Shared[ToolCases]) -> Iterator[Case]:
    for what in ("upload", "removal", "resume"):
        for fault in (Fault.FREEZE_BEFORE, Fault.FREEZE_AFTER):
            is_over: List[bool] = []

            def kill(nth: int, what: str = what, fault: Fault = fault, is_over: List[bool] = is_over) -> None:
                if not getattr(job.get(), f"kill_in_{what}")(fault, nth):
                    is_over.append(True)

            for nth in range(1, MOST_REQUESTS):
                if not is_over:
                    yield f"kill in {what} {fault.name} {nth}", functools.partial(kill, nth)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/soak buckets", description=__doc__)
    parser.add_argument("--server", choices=("moto", "swift"), help="only with this server")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    options = parser.parse_args()
    failed = done = 0
    os.environ["CKPTD_LAUNCH_ID"] = ""
    for name in [options.server] if options.server else ["moto", "swift"]:
        with server_of(name) as server:
            job, tool = Shared(server, Cases), Shared(server, ToolCases)
            for group in (single_faults, outages, kills):
                for what, run in group(job, tool):
                    if options.only not in what:
                        continue
                    begun = time.monotonic()
                    done += 1
                    try:
                        run()
                        outcome = "ok"
                    except Exception:
                        failed += 1
                        outcome = f"FAILED\n{traceback.format_exc()}"
                    print(f"{name}: {what}: {time.monotonic() - begun:.1f} s: {outcome}", flush=True)
            job.close()
            tool.close()
    print(f"buckets: {failed} of {done} failed" if failed else f"buckets: clean, {done} cases")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
