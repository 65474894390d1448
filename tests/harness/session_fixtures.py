"""Fixtures that last for a whole run of pytest: a folder, and a daemon in it. A conftest.py that imports all of this
module has them.
"""

import os

import pytest

from harness import Daemon, temporary_folder


@pytest.fixture(scope="session")
def session_folder():
    with temporary_folder() as path:
        yield str(path)


@pytest.fixture(scope="session")
def daemon(session_folder):
    made = Daemon(os.path.join(session_folder, "d"), pool_bytes=512 << 20)
    yield made
    made.close()
