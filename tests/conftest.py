"""With pytest-xdist, one process runs the tests of a folder: they share daemons and nodes, which need much memory."""

import os

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class LoadFolders(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return os.path.dirname(nodeid.partition("::")[0])

    return LoadFolders(config, log)
