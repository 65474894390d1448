"""A node with a real systemd: a minimal Debian booted by systemd-nspawn, on which ckptd is installed as an
operator does it.

Everything that a node writes is in memory and disappears with it, except /data: a temporary folder of this
machine, so that checkpoints are on a real file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest

import ckptd
import harness
from harness import TIMEOUT, find_program

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("systemd", "systemd-sysv", "dbus", "procps", "python3")
# Runs in new namespaces and ends with this process: it leaves no mounts and no processes behind.
MMDEBSTRAP = (
    *("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
)
BUILD_TIMEOUT = 300.0
# A systemd on this machine gives the container its own unit. Without systemd that is neither possible nor
# needed.
HAS_SYSTEMD = pathlib.Path("/run/systemd/system").exists()

PROGRAMS = ("ckptd", "ckptctl")
# What `cp` copies: from the checkout, to the node.
INSTALLED = {
    "deploy/systemd/ckptd.service": "etc/systemd/system/ckptd.service",
    "deploy/systemd/sysusers.d/ckptd.conf": "etc/sysusers.d/ckptd.conf",
    "deploy/systemd/tmpfiles.d/ckptd.conf": "etc/tmpfiles.d/ckptd.conf",
    "deploy/config/ckptd.txtpb": "etc/ckptd/ckptd.txtpb",
}
POOL_BYTES = 256 << 20
DROP_INS = "run/systemd/system/ckptd.service.d"
PYTHON_MODULES = "/opt/python"
TRAINER = "/opt/trainer.py"


def package_sources() -> list[str]:
    """Returns the package sources of this machine's apt."""
    folder = pathlib.Path("/etc/apt")
    files = [folder / "sources.list", *folder.glob("sources.list.d/*.list"), *folder.glob("sources.list.d/*.sources")]
    return sorted(str(file) for file in files if file.exists())


def obstacle() -> str | None:
    """Returns why a node cannot run on this machine, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if pathlib.Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        return "needs root, and not that of a user namespace"
    programs = ("mmdebstrap", "systemd-nspawn", "nsenter", "unshare", "setpriv", "apt-config")
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if not package_sources():
        return "apt has no sources from which to install a node"
    namespaces = subprocess.run(
        ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--fork", "true"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    if namespaces.returncode != 0:
        return f"no new namespaces here: {namespaces.stderr.strip()}"
    # Unified, hybrid and legacy hierarchies. os.access detects a read-only mount.
    if not any(os.access(f"/sys/fs/cgroup/{place}cgroup.procs", os.W_OK) for place in ("", "unified/", "systemd/")):
        return "no control group that a systemd can work with is writable"
    return None


# ---- The Debian of the node


def remove_tree(path: pathlib.Path) -> None:
    """Removes a tree, but nothing that is mounted in it."""
    subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=True, timeout=TIMEOUT)


def build_debian(path: pathlib.Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as acquire:
        # The node reaches the packages as this machine does: through its proxy, with its certificate.
        acquire.write(subprocess.check_output(["apt-config", "dump", "Acquire"], text=True, timeout=TIMEOUT))
        acquire.flush()
        command = [*MMDEBSTRAP, f"--aptopt={acquire.name}", "", str(path), *package_sources()]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=BUILD_TIMEOUT
        )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stderr[-3000:]}"


@contextlib.contextmanager
def only_one(lock: pathlib.Path) -> Iterator[None]:
    """systemd-nspawn boots a root only once at a time: waits for another test run that uses it."""

    def taken() -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    with open(lock, "w") as file:
        harness.until(taken, f"the end of the test run that has {lock}", BUILD_TIMEOUT)
        yield


@pytest.fixture(scope="module")
def debian() -> Iterator[pathlib.Path]:
    """Returns the root of a minimal Debian, for one test run at a time; kept between runs."""
    reason = obstacle()
    if reason:
        pytest.skip(reason)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ckptd"
    cache.mkdir(parents=True, exist_ok=True)
    with only_one(cache / "node.lock"):
        recipe = "\n".join([*MMDEBSTRAP, *(pathlib.Path(file).read_text() for file in package_sources())])
        root = cache / f"node-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
        if not root.exists():
            # Left by other recipes, and by an interrupted build.
            for old in cache.glob("node-*"):
                remove_tree(old)
            unfinished = root.with_suffix(".new")
            build_debian(unfinished)
            unfinished.rename(root)
        yield root


# ---- The node


class Node:
    """A booted Debian."""

    def __init__(self, debian: pathlib.Path, data: pathlib.Path, console: IO[bytes]) -> None:
        self.console = console
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
            notices.bind("")  # The kernel chooses an abstract name.
            notices.setblocking(False)
            self.process = subprocess.Popen(
                self.nspawn(debian, data),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "NOTIFY_SOCKET": "@" + notices.getsockname()[1:].decode()},
                start_new_session=True,
            )
            try:
                self.leader = self.await_boot(notices)
            except BaseException:
                self.close()
                raise
        self.root = pathlib.Path(f"/proc/{self.leader}/root")

    @staticmethod
    def nspawn(debian: pathlib.Path, data: pathlib.Path) -> list[str]:
        return [
            # Shuts the node down even if this process is killed.
            *("setpriv", "--pdeathsig=TERM"),
            *("systemd-nspawn", f"--directory={debian}", "--volatile=overlay", "--machine=ckptd-test"),
            *("--register=no", *([] if HAS_SYSTEMD else ["--keep-unit"])),
            *("--private-network", "--capability=CAP_IPC_LOCK", f"--bind={data}:/data"),
            f"--bind-ro={pathlib.Path(ckptd.__file__).parents[1]}:{PYTHON_MODULES}",
            f"--bind-ro={harness.TRAINER_PROGRAM}:{TRAINER}",
            *("--notify-ready=yes", "--boot"),
        ]

    def await_boot(self, notices: socket.socket) -> int:
        """Returns the process id of the node's systemd, after it has started everything."""
        heard: dict[str, str] = {}

        def booted() -> bool:
            assert self.process.poll() is None, f"systemd-nspawn ended:\n{self.said()}"
            with contextlib.suppress(BlockingIOError):
                heard.update(line.split("=", 1) for line in notices.recv(4096).decode().splitlines())
            return "READY" in heard

        harness.until(booted, "the end of the boot", TIMEOUT)
        return int(heard["X_NSPAWN_LEADER_PID"])

    def said(self) -> str:
        self.console.seek(0)
        return self.console.read().decode(errors="replace")

    def close(self) -> None:
        """On the first SIGTERM systemd-nspawn shuts its node down; on the second it kills it."""
        self.process.terminate()
        try:
            self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(TIMEOUT)
            raise

    def command(self, *words: str, user: str = "root") -> list[str]:
        """Returns the command that runs `words` on the node."""
        become = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin", f"PYTHONPATH={PYTHON_MODULES}"]
        return ["nsenter", f"--target={self.leader}", "--all", "--", *environment, *become, *words]

    def run(self, *words: str, user: str = "root", check: bool = True) -> subprocess.CompletedProcess[str]:
        command = self.command(*words, user=user)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def install(self) -> None:
        """Installs like an operator: copies the files, and then runs the commands that activate them."""
        for program in PROGRAMS:
            shutil.copy(find_program(program), self.root / "usr/bin")
        for source, target in INSTALLED.items():
            (self.root / target).parent.mkdir(exist_ok=True)
            shutil.copyfile(REPOSITORY / source, self.root / target)
        self.run("systemd-sysusers")
        # A node's /sys is read-only: the huge pages of this machine stay unchanged.
        self.run("systemd-tmpfiles", "--create")
        self.run("systemctl", "daemon-reload")
        self.run("systemctl", "enable", "ckptd")


class Service:
    """The ckptd service on the node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def configure(self, text: str) -> None:
        (self.node.root / "etc/ckptd/ckptd.txtpb").write_text(text)

    def configure_sample(self, **values: int | str) -> None:
        """Writes the sample configuration with some values changed, always with a pool that fits into any
        machine.
        """
        text = (REPOSITORY / "deploy/config/ckptd.txtpb").read_text()
        for field, value in {"bytes": POOL_BYTES, **values}.items():
            text, count = re.subn(rf"^( *)(?:# )?{field}: .*$", rf"\1{field}: {value}", text, flags=re.MULTILINE)
            assert count == 1, f"the sample has {count} lines with {field}"
        self.configure(text)

    def start(self) -> None:
        """Returns once systemd reports the service as active."""
        done = self.systemctl("start", check=False)
        assert done.returncode == 0, f"{done.stderr}\n{self.log()}"

    def systemctl(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.node.run("systemctl", *words, "ckptd", check=check)

    def show(self, property: str) -> str:
        return self.systemctl("show", "--value", f"--property={property}").stdout.strip()

    @property
    def pid(self) -> int:
        """The process id on the node; 0 if nothing runs."""
        return int(self.show("MainPID"))

    def override(self, text: str) -> None:
        """Works like `systemctl edit`."""
        folder = self.node.root / DROP_INS
        folder.mkdir(parents=True)
        (folder / "test.conf").write_text(f"[Service]\n{text}\n")
        self.node.run("systemctl", "daemon-reload")

    def log(self, life: str | None = None) -> str:
        """Returns the log of the service and of systemd about it, from one life (an InvocationID), by default
        the latest. What a process has just written may still be missing: journald reads it later.
        """
        self.node.run("journalctl", "--sync")
        life = life or self.show("InvocationID")
        # journald may not learn the InvocationID of a process that ends at once.
        process = ("_SYSTEMD_UNIT=ckptd.service", f"_PID={self.show('ExecMainPID')}")
        fields = (f"_SYSTEMD_INVOCATION_ID={life}", "+", f"INVOCATION_ID={life}", "+", *process)
        return self.node.run("journalctl", "--output=cat", *fields).stdout

    def await_logged(self, pattern: str, life: str | None = None) -> re.Match[str]:
        """Waits until the log of a life has the pattern (of lines: "^" and "$" are a line's), and returns it."""

        def logged() -> re.Match[str] | None:
            return re.search(pattern, self.log(life), re.MULTILINE)

        try:
            match = harness.until(logged, f"{pattern!r} in the log of the service")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.log(life)}") from None
        assert match is not None
        return match

    def forget(self) -> None:
        """Resets the service as if it had never been started."""
        self.systemctl("stop", check=False)
        self.systemctl("reset-failed", check=False)
        self.systemctl("clean", "--what=state")
        shutil.rmtree(self.node.root / DROP_INS, ignore_errors=True)
        self.node.run("systemctl", "daemon-reload")


class Trainer(harness.Trainer):
    """A trainer that runs on the node."""

    def __init__(self, node: Node, user: str) -> None:
        self.process = subprocess.Popen(
            node.command("python3", TRAINER, user=user), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def close(self) -> None:
        """Kills the process that nsenter waits for; a killed nsenter would leave it running."""
        if self.process.poll() is None:
            for child in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            self.process.wait(TIMEOUT)
        super().close()


# ---- Fixtures


@contextlib.contextmanager
def booted(debian: pathlib.Path) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="ckptd-node-") as data, tempfile.TemporaryFile() as console:
        os.chmod(data, 0o755)
        made = Node(debian, pathlib.Path(data), console)
        try:
            tag = made.run("python3", "-c", "import sys; print(sys.implementation.cache_tag)").stdout.strip()
            if tag != sys.implementation.cache_tag:
                pytest.skip(f"the client is installed for {sys.implementation.cache_tag}, Debian's Python is {tag}")
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def bare_node(debian: pathlib.Path) -> Iterator[Node]:
    """A node without ckptd, and without users."""
    with booted(debian) as made:
        yield made


@pytest.fixture(scope="module")
def node(debian: pathlib.Path) -> Iterator[Node]:
    """A node with ckptd, not running yet, and three users: ada and ben may connect to it, eve may not."""
    with booted(debian) as made:
        made.install()
        for user in ("ada", "ben", "eve"):
            made.run("useradd", user)
        for user in ("ada", "ben"):
            made.run("usermod", "--append", "--groups=ckptd", user)
        yield made


@pytest.fixture
def service(node: Node) -> Iterator[Service]:
    """The service, configured with the sample, not started yet."""
    made = Service(node)
    made.configure_sample()
    yield made
    made.forget()


@pytest.fixture
def root(node: Node) -> Iterator[str]:
    """A folder of user ada that nobody else may read."""
    path = "/data/ckpts"
    node.run("install", "--directory", "--owner=ada", "--group=ada", "--mode=0700", path)
    yield path
    node.run("rm", "-r", path)


@pytest.fixture
def trainer(node: Node) -> Iterator[Callable[[str], Any]]:
    """Starts a trainer: trainer("ada")."""
    made: list[Trainer] = []

    def make(user: str) -> Trainer:
        made.append(Trainer(node, user))
        return made[-1]

    yield make
    for one in made:
        one.close()
