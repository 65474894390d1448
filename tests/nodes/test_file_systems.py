"""The main flows of two nodes on each network file system, with its default caches (shared_file_systems). The other suites of this
folder run on them by `tools/soak file-systems`, and so does everything on NFS, whose kernel runs as a process and is slow.
"""

import os
import signal
import subprocess
import sys

import pytest
from shared_file_systems import NETWORK, sandbox

from harness.waiting import readable
from harness.workplace import module_path


@pytest.mark.parametrize("name", [name for name in NETWORK if name != "nfs"])
def test_main_flows_of_two_nodes_on_a_network_file_system(name):
    why_not = sandbox.why_not(name)
    if why_not:
        pytest.skip(why_not)
    finished = sandbox.run_pytest(name, ["-q", "tests/nodes/test_main_flows.py", "tests/nodes/test_doctor.py"], 180)
    assert finished.status == 0, finished.output
    assert " skipped" not in finished.output and " passed" in finished.output, finished.output


def test_sandbox_ends_with_the_process_that_has_made_it(tmp_path):
    why_not = sandbox.why_not("glusterfs")
    if why_not:
        pytest.skip(why_not)
    # The process in the sandbox keeps the pipe open for as long as it lives.
    code = "from shared_file_systems import sandbox; sandbox.run_shown('glusterfs', ['sh', '-c', 'echo up; exec sleep 600'])"
    environment = {**os.environ, "PYTHONPATH": module_path()}
    made = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert made.stdout is not None and made.stdout.readline() == b"up\n"
    made.send_signal(signal.SIGKILL)
    made.wait(60)
    assert readable(made.stdout, 30) and made.stdout.read() == b"", "the sandbox has ended"
