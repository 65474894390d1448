"""A service manager with a descriptor store, as far as ckptd needs systemd's (sd_notify(3),
sd_listen_fds(3)).
"""

import array
import collections
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

from harness import until

from ckptd.local_daemon import find_program

# Runs in the child, whose process id $LISTEN_PID must name: moves the descriptors to 3, 4, ..., then executes
# the program.
EXEC = """
import contextlib, ctypes, fcntl, os, resource, sys
with contextlib.suppress(ValueError, OSError):
    resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))  # As LimitNOFILE of the unit.
count = int(sys.argv[1])
given = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 1000) for fd in sys.argv[2:2 + count]]
for place, fd in enumerate(given):
    os.dup2(fd, 3 + place)
    os.close(fd)
os.closerange(3 + count, 1000)
kept = os.environ.pop("CAPABILITIES")
for capability in range(64) if kept else ():
    if capability not in map(int, kept.split(",")):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP.
if count:
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count))
os.execv(sys.argv[2 + count], sys.argv[2 + count:])
"""


class ServiceManager:
    """One service, ckptd, and its store.

    It behaves like systemd in these points: it listens to its main process alone; handles messages in the
    order in which they were sent, also those that a killed process left in the queue; stores a file once;
    silently drops descriptors when the store is full; passes duplicates to each start and keeps its own;
    closes a barrier's descriptor when it reaches it.
    """

    def __init__(
        self,
        folder,
        most=100,
        config="",
        pool_bytes=128 << 20,
        # One small write at a time, so that even a fast disk has work left when the daemon is killed.
        io="chunk_bytes: 65536 depth: 1",
        metrics="port: -1",
        capabilities=None,
    ):
        """capabilities: numbers of those that the service may have; None: all that this process has."""
        self.folder = folder
        self.capabilities = "" if capabilities is None else ",".join(map(str, capabilities))
        self.most = most
        self.store = collections.OrderedDict()  # (device, inode) -> (name, descriptor)
        self.process = None
        self.ready = threading.Event()
        self.changed = threading.Lock()
        self.socket_path = os.path.join(folder, "s")
        self.endpoint = f"unix:{self.socket_path}"
        self.config = os.path.join(folder, "ckptd.txtpb")
        with open(self.config, "w") as file:
            file.write(
                f'socket_path: "{self.socket_path}"\nstate_directory: "{folder}/state"\n'
                f"pool {{ bytes: {pool_bytes} segment_bytes: {8 << 20} huge_pages: PLAIN }}\n"
                f"io {{ {io} }}\nmetrics {{ {metrics} }}\n{config}\n"
            )
        self.notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notices.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.notices.bind("")  # The kernel chooses an abstract name.
        self.thread = threading.Thread(target=self.hear, daemon=True)
        self.thread.start()

    # ---- The service

    def start(self):
        with self.changed:
            names = [name for name, _ in self.store.values()]
            descriptors = [os.dup(fd) for _, fd in self.store.values()]
        self.ready.clear()
        program = [find_program(), f"--config={self.config}"]
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": "@" + self.notices.getsockname()[1:].decode(),
            "FDSTORE": str(self.most),
            "LISTEN_FDNAMES": ":".join(names),
            "CAPABILITIES": self.capabilities,
        }
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", EXEC, str(len(names)), *map(str, descriptors), *program],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env=environment,
            )
        for fd in descriptors:
            os.close(fd)
        return self

    def await_ready(self):
        until(lambda: self.ready.is_set() or self.process.poll() is not None, "the daemon's start")
        assert self.process.poll() is None, self.log()
        return self

    @property
    def pid(self):
        return self.process.pid

    def kill(self):
        self.end(signal.SIGKILL)

    def end(self, number):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(60)

    @property
    def log_path(self):
        return os.path.join(self.folder, "log")

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def close(self):
        if self.process is not None:
            self.kill()
        self.notices.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        self.notices.close()
        self.drop()

    # ---- The store

    def drop(self):
        """Drops the store, as `systemctl stop` does."""
        with self.changed:
            while self.store:
                os.close(self.store.popitem()[1][1])

    def hear(self):
        while True:
            room = socket.CMSG_SPACE(253 * 4) + socket.CMSG_SPACE(12)
            text, control, _, _ = self.notices.recvmsg(4096, room, socket.MSG_CMSG_CLOEXEC)
            descriptors, sender = array.array("i"), 0
            for level, kind, data in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors.frombytes(data)
                elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    sender = struct.unpack("3i", data)[0]
            if not text and not control:
                return  # Closed.
            if self.process is not None and sender == self.process.pid:
                self.obey(text.decode(), descriptors)
            for fd in descriptors:
                os.close(fd)

    def obey(self, text, descriptors):
        fields = dict(line.split("=", 1) for line in text.splitlines())
        if "BARRIER" in fields:
            assert text == "BARRIER=1" and len(descriptors) == 1, text
            return  # Closed by our caller.
        if "READY" in fields:
            self.ready.set()
        with self.changed:
            if fields.get("FDSTOREREMOVE") == "1":
                for file, (name, fd) in list(self.store.items()):
                    if name == fields["FDNAME"]:
                        del self.store[file]
                        os.close(fd)
            elif fields.get("FDSTORE") == "1":
                for fd in descriptors:
                    info = os.fstat(fd)
                    file = (info.st_dev, info.st_ino)
                    if file not in self.store and len(self.store) < self.most:
                        self.store[file] = (fields["FDNAME"], os.dup(fd))

    def names(self):
        with self.changed:
            return sorted(name for name, _ in self.store.values())

    def descriptor(self, name):
        with self.changed:
            return next(fd for known, fd in self.store.values() if known == name)

    def kept_bytes(self):
        """Returns the bytes of memory in the store."""
        with self.changed:
            return sum(os.fstat(fd).st_blocks * 512 for _, fd in self.store.values())
