"""How long a private daemon lives, who starts it again, and how much memory it takes."""

from __future__ import annotations

import os
import pathlib
import select
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any, Dict

import pytest
from harness import alive, stop, tags, until

import ckptd
from ckptd import local_daemon


def run_program(code: str, folder: str, **environment: str) -> str:
    """Runs a program without a daemon of its own or a launcher; returns what it printed."""
    kept: Dict[str, str] = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTD_", "RANK", "WORLD_"))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**kept, **environment, "TMPDIR": folder, **{name: os.environ[name] for name in ("CKPTD_BIN",) if name in os.environ}},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "the daemon's end")


def test_daemon_stays_when_the_object_that_started_it_is_dropped(folder: str, root: str) -> None:
    pid = run_program(
        f"""
        import gc, ckptd
        def start():
            daemon = ckptd.LocalDaemon({folder!r} + "/p", pool_bytes=64 << 20).start()
            return daemon.endpoint, daemon.pid
        endpoint, pid = start()
        gc.collect()
        with ckptd.connect(endpoint) as client:
            client.run({root!r}, rank=0, world_size=1).save("t", files={{"a.bin": b"x" * 1000}}).wait("committed", 60)
        print(pid)
        """,
        folder,
    )
    assert tags(root) == ["t"]
    until(lambda: not alive(int(pid)), "the daemon's end, because its last user has ended")


def test_connected_run_keeps_the_daemon_that_another_process_started(folder: str, root: str, trainers: Any) -> None:
    started = ckptd.LocalDaemon(folder + "/p", pool_bytes=64 << 20).start()
    pid = started.pid
    trainer = trainers("a", 1, join=False)[0]
    trainer.do(f"run = ckptd.connect({started.endpoint!r}).run({root!r}, rank=0, world_size=1)")
    started.stop()
    trainer.do("run.save('t', files={'a.bin': b'x' * (1 << 20)}).wait('committed', 60)")
    assert alive(pid) and tags(root) == ["t"]
    trainer.close()
    until(lambda: not alive(pid), "the daemon's end, because nobody is connected any more")


def test_joining_warns_of_another_pool_only_if_it_is_not_what_was_asked_in_whole_segments(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = (200 << 20) + 12345  # A quarter of a machine's memory is no whole number of segments either.
    with ckptd.LocalDaemon(folder + "/p", pool_bytes=asked), ckptd.LocalDaemon(folder + "/p", pool_bytes=asked) as joined:
        assert joined.pool_bytes == 200 << 20
        assert not caplog.records
        ckptd.LocalDaemon(folder + "/p", pool_bytes=400 << 20).start().stop()
    assert [record.getMessage().partition(" runs with ")[2] for record in caplog.records] == [
        f"pool_bytes={200 << 20}, as its first user asked; pool_bytes={400 << 20} counts when it is started anew"
    ]


def test_job_that_finds_no_daemon_is_told_how_to_have_one_without_root(folder: str) -> None:
    with pytest.raises(ckptd.Unavailable) as refused:
        ckptd.connect(f"unix:{folder}/none.sock")
    assert "ckptd --local DIR" in str(refused.value) and "$CKPTD_ENDPOINT" in str(refused.value)


def test_killed_daemon_is_started_again_by_who_needs_it(folder: str, root: str) -> None:
    with ckptd.LocalDaemon(folder + "/p", pool_bytes=64 << 20) as daemon, ckptd.connect(daemon.endpoint) as client:
        run = client.run(root, rank=0, world_size=1)
        run.save("one", files={"a.bin": b"x" * 1000}).wait("committed", 60)
        first = daemon.pid
        kill(first)
        run.save("two", files={"a.bin": b"x" * 1000}).wait("committed", 60)
        assert daemon.pid != first and alive(daemon.pid)
        last = daemon.pid
    assert tags(root) == ["two", "one"]
    until(lambda: not alive(last), "the daemon's end, because its last user has left")


def test_save_that_is_in_flight_when_the_daemon_is_killed_is_committed_by_the_next(folder: str, root: str) -> None:
    with ckptd.LocalDaemon(folder + "/p", pool_bytes=256 << 20) as daemon, ckptd.connect(daemon.endpoint) as client:
        run = client.run(root, rank=0, world_size=1)
        part = run.begin("one", step=1)
        part.add("a.bin", bytes(100 << 20))
        pid = daemon.pid
        save = part.seal()
        kill(pid)
        save.wait("committed", 120)
    assert tags(root) == ["one"]


def test_daemon_that_cannot_be_started_again_is_an_error_at_once(
    folder: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ckptd.LocalDaemon(folder + "/p", pool_bytes=64 << 20) as daemon, ckptd.connect(daemon.endpoint) as client:
        run = client.run(root, rank=0, world_size=1)
        monkeypatch.setenv("CKPTD_BIN", folder + "/nothing")
        kill(daemon.pid)
        with pytest.raises(ckptd.NotFound, match="CKPTD_BIN"):
            # A watcher may just have tried, and then this call waits for a moment.
            run.save("one", files={"a.bin": b"x"}, timeout=60)


def test_daemon_that_ends_again_and_again_is_not_started_without_a_pause(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ckptd.LocalDaemon(folder + "/p", pool_bytes=64 << 20) as daemon:
        kill(daemon.pid)
        ckptd.connect(daemon.endpoint).close()
        until(lambda: daemon._keeper is not None, "the keeper")
        kill(daemon.pid)
        with pytest.raises(ckptd.Unavailable, match="a moment ago; its log .*ckptd.log says why"):
            ckptd.connect(daemon.endpoint)
        monkeypatch.setattr(local_daemon, "_RESTART_PAUSE_SECONDS", 0.0)
        ckptd.connect(daemon.endpoint).close()


def test_adapters_share_one_private_daemon_that_takes_memory_when_a_save_needs_it(folder: str, root: str) -> None:
    printed = run_program(
        f"""
        import os, pathlib, torch
        import torch.distributed.checkpoint as dcp
        import ckptd.dcp, ckptd.dcp._process
        from ckptd._adapters.node_process import Process
        ckptd.dcp.install()
        ckptd.dcp.configure(timeout=60)
        other = Process("deepspeed")
        one, two = ckptd.dcp._process.process, other
        clients = [each._client.connected() for each in (one, two)]
        assert clients[0].endpoint == clients[1].endpoint
        pool = clients[0].status().pool
        print(pool.ready_bytes + pool.lent_bytes + pool.used_bytes, pool.total_bytes)
        dcp.save({{"w": torch.ones(5_000_000)}}, checkpoint_id={root!r} + "/step-1")
        pool = clients[0].status().pool
        print(pool.ready_bytes + pool.lent_bytes + pool.used_bytes + pool.resident_bytes)
        print(one._client._private.pid)
        """,
        folder,
    )
    before, after, pid = printed.splitlines()
    idle, total = map(int, before.split())
    assert idle == 0 and total >= 1 << 30
    assert 20_000_000 <= int(after) < total // 2
    assert tags(root) == ["step-1"]
    assert pathlib.Path(folder, f"ckptd-{os.getuid()}", "ckptd.log").exists()
    until(lambda: not alive(int(pid)), "the daemon's end")


def test_private_daemon_gives_memory_back_that_nothing_has_used_for_a_while(folder: str, root: str) -> None:
    with ckptd.LocalDaemon(folder + "/p", pool_bytes=64 << 20, populate_bytes=0, memory_idle_timeout=1) as daemon:
        with ckptd.connect(daemon.endpoint) as client:

            def held() -> int:
                pool = client.status().pool
                return int(pool.ready_bytes + pool.lent_bytes + pool.used_bytes + pool.resident_bytes)

            run = client.run(root, rank=0, world_size=1)
            for tag in ("one", "two"):  # The second save takes its memory anew.
                run.save(tag, files={"a.bin": tag.encode() * 1_000_000}).wait("committed", 60)
                until(lambda: held() == 0, "the memory going back")
            assert run.latest().tag == "two"
            with run.open("two") as checkpoint:
                assert bytes(checkpoint.read("a.bin")) == b"two" * 1_000_000


def test_private_daemon_that_is_killed_is_started_again_under_an_adapter(folder: str, root: str) -> None:
    run_program(
        f"""
        import os, signal, torch
        import torch.distributed.checkpoint as dcp
        import ckptd.dcp
        from ckptd.dcp._process import process
        ckptd.dcp.install(timeout=60)
        ckptd.dcp.configure(pool_bytes=256 << 20, timeout=120)
        dcp.save({{"w": torch.ones(10)}}, checkpoint_id={root!r} + "/step-1")
        dcp.async_save({{"w": torch.ones(10_000_000)}}, checkpoint_id={root!r} + "/step-2")
        os.kill(process._client._private.pid, signal.SIGKILL)
        dcp.save({{"w": torch.ones(10)}}, checkpoint_id={root!r} + "/step-3")
        """,
        folder,
    )
    assert sorted(tags(root)) == ["step-1", "step-2", "step-3"]


def test_save_to_a_stopped_daemon_ends_at_its_timeout(folder: str, root: str) -> None:
    with ckptd.LocalDaemon(folder + "/p", pool_bytes=64 << 20) as daemon, ckptd.connect(daemon.endpoint) as client:
        run = client.run(root, rank=0, world_size=1)
        run.save("one", files={"a.bin": b"x" * 1000}).wait("committed", 60)
        stop(daemon.pid)
        try:
            begin = time.monotonic()
            with pytest.raises(ckptd.Unavailable):
                run.save("two", files={"a.bin": b"x" * 1000}, timeout=2.0)
            waited = time.monotonic() - begin
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert waited < 10  # It has 3 s; with a timeout for each request it took 14.
        run.save("three", files={"a.bin": b"x" * 1000}).wait("committed", 60)
        assert {"one", "three"} <= set(tags(root))


def test_program_joins_the_daemon_that_a_terminal_serves(folder: str, root: str) -> None:
    arguments = [local_daemon.find_program(), "--local", folder + "/p", "--pool_bytes=64MiB"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as terminal:
        try:
            assert terminal.stdout is not None and select.select([terminal.stdout], [], [], 60)[0]
            assert terminal.stdout.readline().startswith(b"export CKPTD_ENDPOINT=")
            with ckptd.LocalDaemon(folder + "/p", pool_bytes=64 << 20) as daemon, ckptd.connect(daemon.endpoint) as client:
                assert daemon.pid == terminal.pid
                run = client.run(root, rank=0, world_size=1)
                run.save("t", files={"a.bin": b"x" * 1000}).wait("committed", 60)
            assert terminal.poll() is None  # It serves until Ctrl-C.
        finally:
            terminal.send_signal(signal.SIGINT)
        assert terminal.wait(60) == 0
    assert tags(root) == ["t"]
