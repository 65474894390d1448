"""How a client opens a root that ranks on other nodes make at the same time, on a file system that shows that late."""

import errno
import os

import pytest
from ckptd._membership import membership
from ckptd._membership.membership import RootDirectory


def failing_once(monkeypatch, name, error):
    """The first call of this function of os ends with an error, after it has done its work."""
    real = getattr(os, name)
    left = [error]

    def call(*arguments, **options):
        result = real(*arguments, **options)
        if left:
            raise left.pop()
        return result

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize(
    "name, error",
    [
        ("makedirs", FileExistsError(errno.EEXIST, "File exists")),  # As if another node's directory were not seen yet.
        ("makedirs", OSError(errno.ESTALE, "Stale file handle")),
    ],
)
def test_root_that_another_node_makes_at_the_same_time_is_opened(monkeypatch, tmp_path, name, error):
    failing_once(monkeypatch, name, error)
    opened = RootDirectory(str(tmp_path / "root"))
    assert opened.descriptor is not None and opened.error == ""


def test_root_that_stays_stale_is_an_error_after_a_bounded_time(monkeypatch, tmp_path):
    def stale(*arguments, **options):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "makedirs", stale)
    monkeypatch.setattr(membership, "STALE_SECONDS", 0.2)
    opened = RootDirectory(str(tmp_path / "root"))
    assert opened.descriptor is None and opened.error == "Stale file handle"


def test_root_that_is_a_file_is_refused_at_once(monkeypatch, tmp_path):
    (tmp_path / "root").touch()
    monkeypatch.setattr(membership.time, "sleep", lambda seconds: pytest.fail("waits"))
    assert "is a file and no directory" in RootDirectory(str(tmp_path / "root")).error
    assert "is a file and no directory" in RootDirectory(str(tmp_path / "root/run")).error
