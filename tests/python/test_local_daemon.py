"""Starting a private daemon: finding the program, what it is told, and what is said when it does not start.
The program is a script here.
"""

from __future__ import annotations

import os
import pathlib
import stat
import sys
import tempfile
from typing import Any, Callable

import ckptd
import pytest
from ckptd import local_daemon
from ckptd.local_daemon import find_program

Script = Callable[[str], pathlib.Path]


@pytest.fixture
def program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Makes $CKPTD_BIN a shell script."""

    def make(text: str) -> pathlib.Path:
        path = tmp_path / "bin/ckptd"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CKPTD_BIN", str(path))
        return path

    return make


def test_the_program_is_where_the_environment_says_else_beside_this_python_else_on_the_path(
    program: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    path = program("true")
    assert find_program() == str(path)
    with pytest.raises(ckptd.NotFound, match="CKPTD_BIN"):
        find_program("ckptctl")
    beside = path.with_name("ckptctl")
    beside.write_text("")
    beside.chmod(0o755)
    assert find_program("ckptctl") == str(beside)

    # The programs beside a folder of that name are not meant.
    beside.with_name("folder").mkdir()
    monkeypatch.setenv("CKPTD_BIN", str(beside.with_name("folder")))
    for name in ("ckptd", "ckptctl"):
        with pytest.raises(ckptd.NotFound, match='/folder", which is not a program; set it to the path of ckptd'):
            find_program(name)

    monkeypatch.delenv("CKPTD_BIN")
    monkeypatch.setattr(local_daemon.sysconfig, "get_path", lambda *_: str(tmp_path / "nowhere"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "other/python"))
    monkeypatch.setenv("PATH", str(path.parent))
    assert find_program() == str(path)
    monkeypatch.setattr(sys, "executable", str(path.with_name("python")))
    monkeypatch.setenv("PATH", "")
    assert find_program() == str(path)
    path.unlink()
    with pytest.raises(ckptd.NotFound, match="pip install ckptd") as caught:
        find_program()
    assert caught.value.reason == "NO_PROGRAM"


def test_a_program_that_ends_is_reported_with_its_code_and_the_end_of_its_log(
    program: Script, tmp_path: pathlib.Path
) -> None:
    path = program("echo from before")
    daemon = ckptd.LocalDaemon(tmp_path / "d")
    with pytest.raises(ckptd.Unavailable):
        daemon.start()
    program('echo "pool.bytes is too large" >&2; exit 3')
    with pytest.raises(ckptd.Unavailable) as caught:
        daemon.start()
    text = str(caught.value)
    assert (
        "ended with 3" in text
        and "pool.bytes is too large" in text
        and daemon.log_path in text
        and str(path) in text
    )
    assert "from before" not in text
    daemon.stop()


def test_looking_for_a_daemon_that_does_not_run_sets_up_no_grpc(
    program: Script, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = []
    monkeypatch.setattr("grpc.insecure_channel", lambda *arguments, **_: channels.append(arguments))
    program("exit 3")
    with pytest.raises(ckptd.Unavailable, match="ended with 3"):
        ckptd.LocalDaemon(tmp_path / "d").start()
    assert channels == []


def test_daemon_that_is_never_ready_is_killed(
    program: Script, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_daemon, "_START_SECONDS", 0.5)
    program(f"echo $$ > {tmp_path}/pid; exec sleep 100")
    with pytest.raises(ckptd.Unavailable, match="was not ready"):
        ckptd.LocalDaemon(tmp_path / "d").start()
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")


def test_daemon_is_started_with_the_configuration_of_the_arguments(program: Script, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/manager")
    monkeypatch.setenv("KEPT", "1")
    program(
        f'echo "$@" > {tmp_path}/arguments; env > {tmp_path}/environment; ps -o sid= -p $$ > {tmp_path}/session; pwd'
    )
    folder = tmp_path / 'a "quoted" folder'
    daemon = ckptd.LocalDaemon(
        folder, pool_bytes=64 << 20, idle_timeout=7, io_backend="threads", log_level="debug"
    )
    with pytest.raises(ckptd.Unavailable):
        daemon.start()
    arguments = (tmp_path / "arguments").read_text()
    assert "--private" in arguments and "--idle_timeout=7" in arguments and "--ready_fd=" in arguments
    environment = (tmp_path / "environment").read_text().split("\n")
    assert "KEPT=1" in environment and not [line for line in environment if line.startswith("NOTIFY_SOCKET")]
    assert int((tmp_path / "session").read_text()) != os.getsid(0)
    config = (folder / "ckptd.txtpb").read_text()
    for line in (
        f'socket_path: "{tmp_path}/a \\"quoted\\" folder/ckptd.sock"',
        'socket_mode: "0600"',
        "pool { bytes: 67108864 idle_seconds: 3600 }",
        "io { backend: BACKEND_THREADS }",
        "metrics { port: -1 }",
        'log { level: "debug" }',
    ):
        assert line in config
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "options, named",
    [
        ({"pool_bytes": 1 << 20}, "pool_bytes"),
        ({"pool_bytes": "8 gigabytes"}, "pool_bytes"),
        ({"pool_bytes": "4MiB"}, "pool_bytes"),
        ({"io_backend": "aio"}, "io_backend"),
        ({"idle_timeout": -1}, "idle_timeout"),
    ],
)
def test_invalid_options_are_refused_at_once(options: Any, named: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=named):
        ckptd.LocalDaemon(tmp_path, **options)


def test_a_folder_with_a_long_name_has_its_sockets_elsewhere(tmp_path: pathlib.Path) -> None:
    short, long = ckptd.LocalDaemon("/tmp/x"), ckptd.LocalDaemon(tmp_path / ("l" * 150))
    assert short.endpoint == "unix:/tmp/x/ckptd.sock"
    assert len(long.socket_path) < 100 and long.socket_path.startswith(tempfile.gettempdir())
    assert long.endpoint == ckptd.LocalDaemon(tmp_path / ("l" * 150)).endpoint
    assert long.endpoint != ckptd.LocalDaemon(tmp_path / ("m" * 150)).endpoint


def test_socket_folder_of_another_user_is_refused(tmp_path: pathlib.Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(ckptd.Refused, match="is a link and not a directory"):
        local_daemon._make_private(str(tmp_path / "link"))
    if os.getuid() == 0:
        os.chown(real, 12345, 12345)
        with pytest.raises(ckptd.Refused, match="belongs to uid 12345"):
            local_daemon._make_private(str(real))


@pytest.mark.parametrize("name", ["short", "l" * 150])
def test_folder_where_others_may_write_is_refused_before_anything_is_written(
    name: str, program: Script, tmp_path: pathlib.Path
) -> None:
    program("exit 3")
    folder = tmp_path / name
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ckptd.Refused, match="mode 0777, so that others may write there: chmod go-w"):
        ckptd.LocalDaemon(folder).start()
    folder.chmod(0o775)
    with pytest.raises(ckptd.Refused, match="mode 0775"):
        ckptd.LocalDaemon(folder).start()
    assert list(folder.iterdir()) == []


def test_long_folder_of_another_user_is_refused(program: Script, tmp_path: pathlib.Path) -> None:
    program("exit 3")
    other = tmp_path / "other"
    other.mkdir()
    folder = tmp_path / ("l" * 150)
    folder.symlink_to(other)
    with pytest.raises(ckptd.Refused, match="is a link and not a directory"):
        ckptd.LocalDaemon(folder).start()
    assert list(other.iterdir()) == []
    if os.getuid() == 0:
        folder.unlink()
        folder.mkdir()
        os.chown(folder, 12345, 12345)
        with pytest.raises(ckptd.Refused, match="belongs to uid 12345"):
            ckptd.LocalDaemon(folder).start()
        assert list(folder.iterdir()) == []


def test_configuration_lock_and_log_are_for_their_owner_alone(program: Script, tmp_path: pathlib.Path) -> None:
    program("exit 3")
    folder = tmp_path / "d"
    folder.mkdir(mode=0o755)
    names = ("ckptd.txtpb", "start.lock", "ckptd.log")
    (folder / "start.lock").touch(mode=0o644)  # As ckptd 0.1.0 made it.
    with pytest.raises(ckptd.Unavailable):
        ckptd.LocalDaemon(folder).start()
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in names} == {0o600}
    (folder / "ckptd.log").unlink()
    (folder / "ckptd.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        ckptd.LocalDaemon(folder).start()
    assert not (tmp_path / "elsewhere").exists()


def test_the_version_is_that_of_the_tree() -> None:
    import subprocess

    version = (pathlib.Path(__file__).resolve().parents[2] / "VERSION").read_text().strip()
    assert ckptd.__version__ == version
    done = subprocess.run(
        [sys.executable, "-m", "ckptd", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"ckptd {version}\n"
