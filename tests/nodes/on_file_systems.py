"""Runs the suites of this folder, and three_nodes.py, with nodes that share a network file system, one after another. For
tools/soak.
"""

from __future__ import annotations

import argparse
import sys
import time

import three_nodes
from shared_file_systems import NETWORK, sandbox

# These start no nodes, or nodes on this host alone.
_IGNORED = ("test_file_systems.py", "test_adapters.py")
_LIMIT_SECONDS = 2 * 3600


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/soak file-systems", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(NETWORK), help="this file system; may be repeated")
    parser.add_argument("--select", default="", help="an expression of pytest -k")
    options = parser.parse_args()
    failed = []
    for name in options.only or NETWORK:
        why_not = sandbox.why_not(name)
        if why_not:
            print(f"{name}: not run: {why_not}", flush=True)
            continue
        began = time.monotonic()
        ignored = [f"--ignore=tests/nodes/{file}" for file in _IGNORED]
        # A test has more time than elsewhere: Linux in user mode is slow.
        arguments = ["-q", "-o", "timeout=1200", "-k", options.select, *ignored, "tests/nodes"]
        finished = sandbox.run_pytest(name, arguments, _LIMIT_SECONDS)
        lines = finished.output.rstrip().splitlines() or [f"status {finished.status}"]
        print("\n".join(lines if finished.status else lines[-1:]), flush=True)
        # Its 30 processes of torch are too many for Linux in user mode.
        status = 0 if name == "nfs" or options.select else three_nodes.tell_on(name)
        passed = finished.status == 0 and status == 0
        print(f"{name}: {'passed' if passed else 'failed'} in {time.monotonic() - began:.0f} s", flush=True)
        failed += [] if passed else [name]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
