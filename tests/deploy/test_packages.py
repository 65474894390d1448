"""The packages on a bare Debian: installed as docs/install.md says, used, upgraded, removed."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import packages, until

# The first run installs the node's Debian.
pytestmark = pytest.mark.timeout(900)

OLD_VERSION = "0.1.0"
CONFIGURATION = "/etc/ckptd/ckptd.txtpb"
# The machine that runs the tests lends the pool, of which the default is a quarter of the memory.
SMALL_POOL = "[Service]\nExecStart=\nExecStart=/usr/bin/ckptd --pool_bytes=256MiB\n"
MINUTE = 60.0
# One save is in flight at every moment: whenever the daemon is restarted, it is in the middle of one.
SAVE_WITHOUT_A_PAUSE = """
tags, errors, stop = [], [], threading.Event()
def save():
    try:
        while not stop.is_set():
            run.save(f"s{len(tags)}", files={"model.bin": bytes(1 << 20)}).wait("committed", 60)
            tags.append(f"s{len(tags)}")
    except Exception as error:
        errors.append(repr(error))
thread = threading.Thread(target=save, daemon=True)
thread.start()
"""


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """By version: the package, and an earlier one with another sample of a configuration."""
    folder = tmp_path_factory.mktemp("debs")
    earlier = folder / "earlier"
    shutil.copytree(packages.REPOSITORY / "deploy", earlier / "deploy")
    for name in ("LICENSE", "CHANGELOG.md"):
        shutil.copy(packages.REPOSITORY / name, earlier)
    sample = earlier / "deploy/config/ckptd.txtpb"
    sample.write_text(sample.read_text().replace("drain_timeout_seconds: 30", "drain_timeout_seconds: 31"))
    return {
        packages.VERSION: packages.build_package("deb", folder),
        OLD_VERSION: packages.build_package("deb", folder, OLD_VERSION, earlier),
    }


@pytest.fixture(scope="module")
def node(bare_node: Any) -> Any:
    """Shadows the node on which ckptd is installed by hand. It has a user ada."""
    bare_node.run("useradd", "--create-home", "ada")
    drop_in = bare_node.root / "etc/systemd/system/ckptd.service.d"
    drop_in.mkdir(parents=True)
    (drop_in / "pool.conf").write_text(SMALL_POOL)
    return bare_node


@pytest.fixture
def install(node: Any, debs: dict[str, pathlib.Path]) -> Iterator[Callable[..., None]]:
    """Installs a version of the package; in the end nothing of it is there."""

    def install(version: str = packages.VERSION) -> None:
        shutil.copy(debs[version], node.root / "data")
        node.run("dpkg", "--install", "--force-confold", f"/data/{debs[version].name}")
        node.run("usermod", "--append", "--groups=ckptd", "ada")

    yield install
    node.run("dpkg", "--purge", "ckptd")


def bash(node: Any, line: str, user: str = "root") -> str:
    """Runs a line of docs/install.md in /data."""
    home = "/root" if user == "root" else f"/home/{user}"
    return node.run("env", f"HOME={home}", "bash", "-c", f"cd /data && {line}", user=user).stdout


def committed(node: Any, root: str) -> list[str]:
    """The undamaged checkpoints, newest first. This needs no daemon."""
    verified = json.loads(node.run("ckptctl", "verify", "--output=json", root, check=False).stdout)
    return [checkpoint["tag"] for checkpoint in verified["checkpoints"] if checkpoint["ok"]]


def show(node: Any, property: str) -> str:
    return node.run("systemctl", "show", "--value", f"--property={property}", "ckptd").stdout.strip()


def test_debian_package_leads_to_a_checkpoint_in_two_commands_and_a_minute(
    node: Any, debs: dict[str, pathlib.Path]
) -> None:
    commands = packages.install_commands("deb")
    assert len(commands) == 2 and all(command.startswith("sudo ") for command in commands)
    deb = str(shutil.copy(debs[packages.VERSION], node.root / "data"))
    try:
        begin = time.monotonic()
        outputs = [bash(node, command.removeprefix("sudo ")) for command in commands]
        assert time.monotonic() - begin < MINUTE
        assert outputs[-1].startswith("first is COMMITTED")
        assert committed(node, "/data/ckpts") == ["first"]
        assert [show(node, name) for name in ("ActiveState", "UnitFileState")] == ["active", "enabled"]
        # All files are those of the package, and the user that owns the socket is in place.
        assert node.run("dpkg", "--verify", "ckptd").stdout == ""
        assert node.run("stat", "--format=%G", "/run/ckptd/ckptd.sock").stdout == "ckptd\n"
    finally:
        node.run("dpkg", "--purge", "ckptd")
        node.run("rm", "-rf", deb.removeprefix(str(node.root)), "/data/ckpts")


def test_upgrade_loses_no_save_in_flight(
    node: Any, root: str, install: Callable[..., None], trainer: Callable[[str], Any]
) -> None:
    install(OLD_VERSION)
    before = show(node, "MainPID")
    ada = trainer("ada")
    ada.do(f"run = ckptd.connect().run({root!r}, rank=0, world_size=1)")
    ada.do("part = run.begin('open', files={'a.bin': b'a' * 1000})")
    ada.do(SAVE_WITHOUT_A_PAUSE)
    until(lambda: ada.do("len(tags)") > 2, "some saves")
    install()
    assert show(node, "MainPID") not in ("0", before)
    so_far = ada.do("len(tags)")
    until(lambda: ada.do("len(tags)") > so_far + 2, "saves by the new daemon")
    ada.do("part.add('b.bin', b'b' * 1000); part.seal().wait('committed', 60)")
    ada.do("stop.set(); thread.join()")
    assert ada.do("errors") == []
    assert set(committed(node, root)) == {"open", *ada.do("tags")}


def test_upgrade_keeps_changed_configuration(node: Any, install: Callable[..., None]) -> None:
    install(OLD_VERSION)
    configuration = node.root / CONFIGURATION[1:]
    assert "drain_timeout_seconds: 31" in configuration.read_text()
    install()
    # Nobody had changed it: it is the new one.
    assert "drain_timeout_seconds: 30" in configuration.read_text()
    changed = configuration.read_text().replace("max_sessions: 1024", "max_sessions: 77")
    configuration.write_text(changed)
    install(OLD_VERSION)
    assert configuration.read_text() == changed
    assert "drain_timeout_seconds: 31" in configuration.with_name("ckptd.txtpb.dpkg-dist").read_text()


def test_upgrade_leaves_a_stopped_service_stopped(node: Any, install: Callable[..., None]) -> None:
    install(OLD_VERSION)
    assert show(node, "ActiveState") == "active"
    node.run("systemctl", "disable", "--now", "ckptd")
    install()
    assert [show(node, name) for name in ("ActiveState", "UnitFileState")] == ["inactive", "disabled"]


def test_purge_leaves_checkpoints_alone_and_reinstallation_serves_them(
    node: Any, root: str, install: Callable[..., None], trainer: Callable[[str], Any]
) -> None:
    install()
    ada = trainer("ada")
    ada.do(f"run = ckptd.connect().run({root!r}, rank=0, world_size=1)")
    ada.do("run.save('one', files={'model.bin': b'x' * 5000}).wait('committed', 60)")
    ada.close()
    before = node.run("find", root, "-type", "f", "-not", "-path", "*/.ckptd/*").stdout
    node.run("dpkg", "--remove", "ckptd")
    assert (node.root / CONFIGURATION[1:]).exists()
    node.run("dpkg", "--purge", "ckptd")
    left = node.run("find", "/etc/ckptd", "/var/lib/ckptd", "/usr/bin/ckptd", "/etc/sysctl.d/ckptd.conf", check=False)
    assert left.stdout == ""
    assert node.run("find", root, "-type", "f", "-not", "-path", "*/.ckptd/*").stdout == before
    assert "model.bin" in before
    assert show(node, "LoadState") in ("not-found", "masked") or show(node, "ActiveState") == "inactive"

    install()
    until(lambda: show(node, "ActiveState") == "active", "the service")
    again = trainer("ada")
    again.do(f"run = ckptd.connect().run({root!r}, rank=0, world_size=1)")
    assert again.do("run.latest().tag") == "one"


def test_tarball_leads_to_a_checkpoint_in_two_commands_and_a_minute_without_root(
    node: Any, tmp_path: pathlib.Path
) -> None:
    commands = packages.install_commands("tarball")
    assert len(commands) == 2
    built = packages.build_package("tarball", tmp_path)
    home = node.root / "home/ada"
    shutil.copy(built, home)
    # The second line starts a daemon in the background, which its shell ends here.
    script = "\n".join(["cd", *commands, "status=$?", "kill $!", "wait $!", "exit $status"])
    script = script.replace("--local ~/ckptd", "--local ~/ckptd --pool_bytes 64MiB")
    begin = time.monotonic()
    done = node.run("env", "HOME=/home/ada", "bash", "-c", script, user="ada")
    assert time.monotonic() - begin < MINUTE
    assert "first is COMMITTED" in done.stdout
    verify = ["/home/ada/ckptd-" + packages.VERSION + "/bin/ckptctl", "verify", "/home/ada/ckpts"]
    assert "1 checkpoint, " in node.run(*verify, user="ada").stdout


def rpm(*words: str) -> str:
    done = subprocess.run(["rpm", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild is not installed")
def test_rpm_leads_to_a_checkpoint_and_leaves_it_at_its_removal(node: Any, tmp_path: pathlib.Path) -> None:
    """rpm of this machine installs into an empty root; the node gets these files and runs the package's scripts."""
    built = packages.build_package("rpm", tmp_path)
    commands = [command.removeprefix("sudo ") for command in packages.install_commands("rpm")]
    assert commands[0] == f"dnf install --assumeyes ./{built.name}" and len(commands) == 3
    assert rpm("-qp", "--configfiles", str(built)).split() == ["/etc/ckptd/ckptd.txtpb", "/etc/sysctl.d/ckptd.conf"]
    empty = tmp_path / "root"
    empty.mkdir()
    rpm("--root", str(empty), "--install", "--noscripts", "--nodeps", str(built))
    assert rpm("--root", str(empty), "--verify", "--nodeps", "ckptd") == ""
    files = [path for path in rpm("-qlp", str(built)).split() if (empty / path[1:]).is_file()]

    def run_script(tag: str, installed: int) -> None:
        node.run("sh", "-ec", rpm("-qp", "--queryformat", f"%{{{tag}}}", str(built)), "script", str(installed))

    for path in files:
        (node.root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(empty / path[1:], node.root / path[1:])
    try:
        run_script("POSTIN", 1)
        outputs = [bash(node, command) for command in commands[1:]]
        assert outputs[-1].startswith("first is COMMITTED")
        before = show(node, "MainPID")
        run_script("POSTUN", 1)  # As an upgrade does.
        assert show(node, "MainPID") not in ("0", before)
        assert committed(node, "/data/ckpts") == ["first"]
        run_script("PREUN", 0)
        assert [show(node, name) for name in ("ActiveState", "UnitFileState")] == ["inactive", "disabled"]
    finally:
        node.run("systemctl", "stop", "ckptd", check=False)
        node.run("rm", "-f", *files)
        run_script("POSTUN", 0)
        node.run("rm", "-rf", "/data/ckpts")


def child_of(pid: int) -> int | None:
    """The process that systemd-nspawn runs for its container."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[-1]) if children else None


@pytest.mark.skipif(shutil.which("umoci") is None, reason="umoci is not installed")
def test_image_leads_to_a_checkpoint(debian: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """umoci unpacks the image, and systemd-nspawn runs its entry point with the rights that podman gives."""
    built = packages.build_package("image", tmp_path)
    shutil.unpack_archive(built, tmp_path / "layout", "tar")
    name = f"localhost/ckptd:{packages.VERSION}"
    unpack = ["umoci", "unpack", "--image", f"{tmp_path}/layout:{name}", str(tmp_path / "bundle")]
    subprocess.run(unpack, check=True, capture_output=True, timeout=120)
    process = json.loads((tmp_path / "bundle/config.json").read_text())["process"]
    commands = packages.install_commands("image")
    assert commands[0] == f"podman load --input {built.name}"
    assert "--volume /run/ckptd:/run/ckptd --volume /data:/data" in commands[1]
    (tmp_path / "data").mkdir()
    with (tmp_path / "console").open("wb") as console:
        container = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig=TERM", "systemd-nspawn", "--quiet", "--register=no", "--keep-unit"),
                *(f"--directory={tmp_path}/bundle/rootfs", "--machine=ckptd-image", "--console=pipe"),
                *(f"--bind={tmp_path}/data:/data", "--tmpfs=/run/ckptd", "--private-network"),
                *("--drop-capability=all", "--capability=CAP_SETUID,CAP_SETGID", "--kill-signal=SIGTERM"),
                *(f"--setenv={variable}" for variable in process["env"]),
                *(*process["args"], "--pool_bytes=64MiB"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )
    try:
        until(lambda: "serving" in (tmp_path / "console").read_text(), "the daemon in the container")
        pid = child_of(container.pid)
        words = commands[2].removeprefix("podman exec ckptd ").split()
        enter = ["nsenter", f"--target={pid}", "--all", f"/usr/bin/{words[0]}", *words[1:]]
        saved = subprocess.run(enter, capture_output=True, text=True, timeout=60)
        assert saved.stdout.startswith("first is COMMITTED"), saved.stderr
        assert (tmp_path / "data/ckpts/first/ckptd.txtpb").exists()
    finally:
        container.terminate()
        container.wait(60)
    assert " info ended\n" in (tmp_path / "console").read_text()
