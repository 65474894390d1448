"""Peers in other user and mount namespaces, as containers have, with a daemon that has only the unit's
rights.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from harness import TESTS, TIMEOUT, DaemonProgram, find_program, module_path

PEER = pathlib.Path(__file__).with_name("namespaces.py")
UNIT = TESTS.parent / "deploy" / "systemd" / "ckptd.service"
USER = 4321
NO_NAMESPACES = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0
pytestmark = pytest.mark.skipif(os.geteuid() != 0 or NO_NAMESPACES, reason="needs root, and new namespaces")

# The commands that run the peers. The mount namespaces are private: their mounts are not visible elsewhere.
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
HOST_ROOT: "list[str]" = []
CONTAINER_ROOT = ["unshare", "--mount"]
CONTAINER_USER = [*CONTAINER_ROOT, *AS_USER]
# Without most capabilities, as container runtimes start a root user.
WEAK_ROOT = ["unshare", "--mount", "setpriv", "--bounding-set=-all,+setuid,+setgid", "--no-new-privs"]
MAPPED_ROOT = ["unshare", "--user", "--map-root-user"]
MAPPED_USER = [*AS_USER, *MAPPED_ROOT]


def unit_rights():
    """Returns the command that gives a program the unit's capabilities, and its own mount namespace as
    ProtectSystem= does.
    """
    text = UNIT.read_text()
    names = re.findall(r"^CapabilityBoundingSet=(.*)$", text, re.MULTILINE)[-1].split()
    assert "NoNewPrivileges=yes" in text and names
    bounding = ",".join(["-all", *("+" + name[len("CAP_") :].lower() for name in names)])
    return ["unshare", "--mount", "setpriv", f"--bounding-set={bounding}", "--inh-caps=-all", "--no-new-privs"]


class UnitDaemon(DaemonProgram):
    """Runs with the unit's capabilities; everyone may connect."""

    def __init__(self, folder, security=""):
        folder.mkdir()
        configuration = 'socket_mode: "0666" pool { bytes: 67108864 } metrics { port: -1 }\n'
        super().__init__(folder, configuration + (f"security {{ {security} }}\n" if security else ""))
        assert self.launch(wrapper=unit_rights()), self.log()

    def close(self):
        self.end()


@pytest.fixture
def make_unit_daemon(folder):
    made = []

    def make(security=""):
        os.chmod(folder, 0o755)
        made.append(UnitDaemon(pathlib.Path(folder, f"d{len(made)}"), security))
        return made[-1]

    yield make
    for daemon in made:
        daemon.close()


def peer(by, daemon, action, path, *more):
    """Returns the answer of namespaces.py: a value, or [reason, message]."""
    done = subprocess.run(
        [*by, sys.executable, str(PEER), daemon.endpoint, action, path, *more],
        env={**os.environ, "PYTHONPATH": module_path()},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def owned(folder, name, uid):
    path = os.path.join(folder, name)
    os.mkdir(path)
    os.chown(path, uid, uid)
    return path


def test_peers_of_host_open_roots_by_path(make_unit_daemon, folder):
    daemon = make_unit_daemon()
    assert peer(HOST_ROOT, daemon, "open", owned(folder, "a", 0)) == "ok"
    assert peer(AS_USER, daemon, "open", owned(folder, "b", USER)) == "ok"


@pytest.mark.parametrize("by", [CONTAINER_ROOT, CONTAINER_USER, WEAK_ROOT, MAPPED_ROOT, MAPPED_USER])
def test_container_cannot_open_root_by_path(by, make_unit_daemon, folder):
    daemon = make_unit_daemon()
    root = owned(folder, "a", USER if by in (CONTAINER_USER, MAPPED_USER) else 0)
    reason, message = peer(by, daemon, "open", root)
    assert reason == "FOREIGN_NAMESPACE", message
    assert "AttachRoot" in message and "security.container_roots" in message
    assert os.listdir(root) == []


@pytest.mark.parametrize("by", [CONTAINER_ROOT, CONTAINER_USER, WEAK_ROOT, MAPPED_ROOT, MAPPED_USER])
def test_container_saves_into_root_it_attaches(by, make_unit_daemon, folder):
    daemon = make_unit_daemon()
    root = owned(folder, "a", USER if by in (CONTAINER_USER, MAPPED_USER) else 0)
    assert peer(by, daemon, "attach", root) == "ok"
    assert os.path.exists(os.path.join(root, "one", "f0"))


def test_root_user_of_container_has_no_rights_over_other_runs(make_unit_daemon, folder):
    daemon = make_unit_daemon()
    root = owned(folder, "a", USER)
    assert peer(AS_USER, daemon, "attach", root) == "ok"
    assert peer(HOST_ROOT, daemon, "runs", "") == [root]
    run = subprocess.run(
        [find_program("ckptctl"), f"--endpoint={daemon.endpoint}", "status", "--output=json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    name = json.loads(run.stdout)["runs"][0]["name"]
    for by in (CONTAINER_ROOT, WEAK_ROOT, MAPPED_ROOT):
        assert peer(by, daemon, "runs", "") == []
        assert peer(by, daemon, "pin", "", name)[0] == "WRONG_UID"
    assert peer(HOST_ROOT, daemon, "pin", "", name) == "ok"


def test_equal_uids_of_two_containers_are_separate_tenants(make_unit_daemon, folder):
    daemon = make_unit_daemon()
    root = owned(folder, "a", USER)
    assert peer(AS_USER, daemon, "attach", root) == "ok"
    assert peer(CONTAINER_USER, daemon, "runs", "") == []
    assert peer(AS_USER, daemon, "runs", "") == [root]


def test_container_opens_paths_in_configured_directories(make_unit_daemon, folder):
    shared, other = owned(folder, "shared", 0), owned(folder, "other", USER)
    daemon = make_unit_daemon(f'container_roots: "{shared}"')
    root = owned(folder, "shared/job", USER)
    os.symlink(other, os.path.join(shared, "link"))
    assert peer(CONTAINER_USER, daemon, "open", root) == "ok"
    assert peer(CONTAINER_USER, daemon, "open", other)[0] == "FOREIGN_NAMESPACE"
    assert peer(CONTAINER_USER, daemon, "open", f"{shared}/../other")[0] == "FOREIGN_NAMESPACE"
    assert peer(CONTAINER_USER, daemon, "open", f"{shared}/link")[0] == "ELOOP"
    assert peer(CONTAINER_USER, daemon, "open", owned(folder, "shared/roots", 0))[0] != "ok"


def test_all_namespaces_are_trusted_when_configured(make_unit_daemon, folder):
    daemon = make_unit_daemon("trust_all_namespaces: true")
    assert peer(CONTAINER_ROOT, daemon, "open", owned(folder, "a", 0)) == "ok"


def test_container_files_have_the_umask_of_the_trainer(make_unit_daemon, folder):
    daemon = make_unit_daemon()
    modes = {}
    for umask in ("077", "027", "002"):
        root = owned(folder, f"u{umask}", USER)
        by = [*AS_USER, "sh", "-c", f'umask {umask}; exec "$@"', "sh"]
        assert peer(by, daemon, "attach", root) == "ok"
        names = ("one", "one/f0", "one/.ckptd/manifest", ".ckptd")
        modes[umask] = [oct(os.stat(os.path.join(root, name)).st_mode & 0o777) for name in names]
    assert modes == {
        "077": ["0o700", "0o600", "0o600", "0o700"],
        "027": ["0o750", "0o640", "0o640", "0o750"],
        "002": ["0o775", "0o664", "0o664", "0o775"],
    }


def test_process_with_read_only_access_cannot_take_lock_of_root(make_unit_daemon, folder):
    daemon = make_unit_daemon()
    root = owned(folder, "a", USER)
    assert peer(AS_USER, daemon, "attach", root) == "ok"
    daemon.close()
    lock = os.path.join(root, ".ckptd/nodes/local/lock")
    assert os.stat(lock).st_mode & 0o777 == 0o600
    os.chmod(lock, 0o644)  # As ckptd 0.1.0 created it.
    assert peer(AS_USER, make_unit_daemon(), "attach", root) == "ok"
    reader = ["setpriv", "--reuid=4322", "--regid=4322", "--clear-groups"]
    squat = subprocess.run([*reader, "flock", "--nonblock", lock, "true"], capture_output=True, text=True, timeout=TIMEOUT)
    assert squat.returncode != 0 and "Permission denied" in squat.stderr
