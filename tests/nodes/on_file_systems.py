"""Runs the suites of this folder, and three_nodes.py, with nodes that share a network file system, one after another: each suite in
a sandbox of its own, so that one that hangs costs the others nothing. For tools/soak.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from typing import List

import three_nodes
from shared_file_systems import NETWORK, sandbox

# These start no nodes, or nodes on this host alone, or in a sandbox of their own. The clients of test_run_history.py run
# outside the namespaces of the nodes, whose daemons refuse what another mount shows them.
_IGNORED = ("test_file_systems.py", "test_adapters.py", "test_three_nodes.py", "test_run_history.py")
_SUITE_SECONDS = 3600
_TEST_SECONDS = 1200  # More than elsewhere: Linux in user mode is slow.
_NOTHING_SELECTED = 5  # pytest's status.


def suites() -> List[str]:
    return sorted(path.name for path in pathlib.Path(__file__).parent.glob("test_*.py") if path.name not in _IGNORED)


def run_suite(name: str, suite: str, select: str) -> bool:
    """Whether a suite passes on a file system. Prints how it has ended, and what it has written if it failed."""
    began = time.monotonic()
    arguments = ["-q", "-o", f"timeout={_TEST_SECONDS}", "-k", select, f"tests/nodes/{suite}"]
    finished = sandbox.run_pytest(name, arguments, _SUITE_SECONDS)
    if finished.status == _NOTHING_SELECTED:
        return True
    lines = finished.output.rstrip().splitlines() or [f"status {finished.status}"]
    print("\n".join(lines if finished.status else lines[-1:]), flush=True)
    passed = finished.status == 0
    print(f"{name} {suite}: {'passed' if passed else 'failed'} in {time.monotonic() - began:.0f} s", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/soak file-systems", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(NETWORK), help="this file system; may be repeated")
    parser.add_argument("--suite", action="append", choices=suites(), help="this suite; may be repeated")
    parser.add_argument("--select", default="", help="an expression of pytest -k")
    options = parser.parse_args()
    failed = []
    for name in options.only or NETWORK:
        why_not = sandbox.why_not(name)
        if why_not:
            print(f"{name}: not run: {why_not}", flush=True)
            continue
        began = time.monotonic()
        of_name = [suite for suite in options.suite or suites() if not run_suite(name, suite, options.select)]
        # Its 30 processes of torch are too many for Linux in user mode.
        if name != "nfs" and not options.select and not options.suite and three_nodes.tell_on(name) != 0:
            of_name.append("three_nodes.py")
        failed += of_name
        words = f"failed: {', '.join(of_name)};" if of_name else "passed"
        print(f"{name}: {words} in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
