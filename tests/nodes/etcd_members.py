"""Debian's etcd: three members, each a process that a test may kill and start again."""

from __future__ import annotations

import base64
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Dict, List, Optional

from certificates import Authority

from harness import TIMEOUT, until

# tools/setup unpacks it, so that no service of the machine runs it.
PROGRAM = pathlib.Path(sys.prefix, "debian/etcd-server/usr/bin/etcd")
# Below the ports that the kernel gives to outgoing connections. Members differ by their addresses.
CLIENT_PORT, PEER_PORT = 12379, 12380
# How large the database may become; what the tests store takes a small part of it.
QUOTA_BYTES = 16 << 20
_FILLER_BYTES = 1 << 20
_VALID_SECONDS = 24 * 3600
# Sends stdin to a URL and prints the answer; what the server says of an error goes to stderr.
_POST = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], sys.stdin.buffer.read(), timeout=float(sys.argv[2])) as answer:
        sys.stdout.buffer.write(answer.read())
except urllib.error.HTTPError as error:
    sys.exit(error.read().decode(errors="replace"))
except OSError as error:
    sys.exit(str(error))
"""


class EtcdMembers:
    """The members, at one address each. Whether they serve is not waited for."""

    def __init__(
        self, addresses: Sequence[str], wrapper: Sequence[str] = (), authority: Optional[Authority] = None
    ) -> None:
        """`wrapper` is the command that runs them, such as one that enters a network namespace. With `authority` they talk to
        clients of its certificates alone.
        """
        assert PROGRAM.exists(), f"no {PROGRAM}; run tools/setup"
        # In memory if possible: a member whose disk is slow loses its leader.
        memory = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-etcd-", dir=memory))
        self.addresses = addresses
        self.wrapper = wrapper
        self._authority = authority
        if authority:
            authority.sign("etcd", _VALID_SECONDS, addresses)
        self.processes: Dict[int, subprocess.Popen[bytes]] = {}
        for member in range(len(addresses)):
            self.start(member)

    def endpoints(self) -> List[str]:
        scheme = "https" if self._authority else "http"
        return [f"{scheme}://{address}:{CLIENT_PORT}" for address in self.addresses]

    def peer(self, member: int) -> str:
        """Its address for the other members."""
        return f"http://{self.addresses[member]}:{PEER_PORT}"

    def data_folder(self, member: int) -> pathlib.Path:
        return self.folder / f"m{member}"

    def start(self, member: int) -> None:
        """Starts a member with the data that it has."""
        client, peer = self.endpoints()[member], self.peer(member)
        members = ",".join(f"m{each}={self.peer(each)}" for each in range(len(self.addresses)))
        arguments = [
            f"--name=m{member}",
            f"--data-dir={self.data_folder(member)}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={members}",
            f"--quota-backend-bytes={QUOTA_BYTES}",
            "--logger=zap",
            "--log-level=warn",
        ]
        if self._authority:
            files = [f"--cert-file={self._authority.certificate('etcd')}", f"--key-file={self._authority.key('etcd')}"]
            arguments += ["--client-cert-auth", f"--trusted-ca-file={self._authority.file}", *files]
        with open(self.folder / f"m{member}.log", "ab") as log:
            self.processes[member] = subprocess.Popen(
                [*self.wrapper, str(PROGRAM), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, member: int) -> None:
        process = self.processes.pop(member)
        process.kill()
        process.wait(TIMEOUT)

    def leader(self) -> int:
        """The member that leads now; waits for an election that is under way."""
        return until(lambda: [member for member in list(self.processes) if self._leads(member)], "a leader of etcd")[0]

    def remove(self, key: str) -> None:
        self._call("kv/deleterange", key=_encoded(key))

    def count(self, prefix: str) -> int:
        """How many keys begin like this. `prefix` ends with a slash."""
        last = chr(ord("/") + 1)
        found = self._call("kv/range", key=_encoded(prefix), range_end=_encoded(prefix[:-1] + last), count_only=True)
        return int(found.get("count", 0))

    def fill(self) -> None:
        """Uses up the quota: from now on etcd takes no writes."""
        for number in range(2 * QUOTA_BYTES // _FILLER_BYTES):
            try:
                self._call("kv/put", key=_encoded(f"filler/{number}"), value=_encoded("x" * _FILLER_BYTES))
            except OSError as error:
                assert "database space exceeded" in str(error), error
                return
        raise AssertionError("etcd has no quota")

    def make_room(self) -> None:
        """What an operator does when the quota is used up."""
        removed = self._call("kv/deleterange", key=_encoded("filler/"), range_end=_encoded("filler0"))
        self._call("kv/compaction", revision=removed["header"]["revision"], physical=True)
        for member in self.processes:
            self._call("maintenance/defragment", member)
        for alarm in self._call("maintenance/alarm", action="GET").get("alarms", []):
            self._call("maintenance/alarm", action="DEACTIVATE", memberID=alarm["memberID"], alarm=alarm["alarm"])

    def lose(self) -> None:
        """All members are killed, and their data is gone."""
        for member in list(self.processes):
            self.kill(member)
            shutil.rmtree(self.data_folder(member))

    def back_up(self) -> None:
        """Keeps what the members have now, for `restore`. All are stopped meanwhile."""
        self._exchange("", ".backup")

    def restore(self) -> None:
        """All members go on from the backup, as if nothing had been written since."""
        self._exchange(".backup", "")

    def _exchange(self, source: str, target: str) -> None:
        members = list(self.processes)
        for member in members:
            self.kill(member)
        for member in members:
            into = self.folder / f"m{member}{target}"
            shutil.rmtree(into, ignore_errors=True)
            shutil.copytree(self.folder / f"m{member}{source}", into)
        for member in members:
            self.start(member)

    def close(self) -> None:
        for member in list(self.processes):
            self.kill(member)
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        return "".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))

    def _leads(self, member: int) -> bool:
        try:
            status = self._call("maintenance/status", member)
        except OSError:
            return False
        return bool(status.get("leader", "0") == status["header"]["member_id"])

    def _call(self, method: str, member: int = 0, **message: Any) -> Dict[str, Any]:
        """A call of etcd's gRPC API, as its gateway for JSON takes it."""
        url = f"{self.endpoints()[member]}/v3/{method}"
        # In a process of its own, because the members may have a network of their own.
        done = subprocess.run(
            [*self.wrapper, sys.executable, "-Sc", _POST, url, str(TIMEOUT)],
            input=json.dumps(message),
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT,
        )
        if done.returncode:
            raise OSError(done.stderr)
        answered: Dict[str, Any] = json.loads(done.stdout)
        return answered


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
