"""With pytest-xdist, one process runs the tests of a folder: they share daemons and nodes, which need much memory."""

import os
import signal

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class LoadFolders(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return os.path.dirname(nodeid.partition("::")[0])

    return LoadFolders(config, log)


# The folders that take the longest, first: the last process to end is then not far behind the others. By number of tests, as
# pytest-xdist orders them, the nodes would come last. (Needs --no-loadscope-reorder.)
SLOW_FOLDERS = ["nodes", "object", "dcp", "bench", "e2e", "conformance"]


def pytest_collection_modifyitems(items):
    def place(item):
        folder = item.path.relative_to(os.path.dirname(__file__)).parts[0]
        return SLOW_FOLDERS.index(folder) if folder in SLOW_FOLDERS else len(SLOW_FOLDERS)

    items.sort(key=place)  # Stable.


@pytest.fixture
def interrupt_handler():
    """Python's own handler of SIGINT. A shell starts what it runs in the background without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)
