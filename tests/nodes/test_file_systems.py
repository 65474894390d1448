"""The main flows of two nodes on each network file system, with its default caches (shared_file_systems). The other suites of this
folder run on them by `tools/soak file-systems`, and so does everything on NFS, whose kernel runs as a process and is slow.
"""

import pytest
from shared_file_systems import NETWORK, sandbox



@pytest.mark.parametrize("name", [name for name in NETWORK if name != "nfs"])
def test_main_flows_of_two_nodes_on_a_network_file_system(name):
    why_not = sandbox.why_not(name)
    if why_not:
        pytest.skip(why_not)
    finished = sandbox.run_pytest(name, ["-q", "tests/nodes/test_main_flows.py"], 150)
    assert finished.status == 0, finished.output
    assert " skipped" not in finished.output and " passed" in finished.output, finished.output
