"""What a hostile user does to the daemon that it shares with others. Runs in a trainer process (harness) of that user.

Each function begins an attack and returns what it saw; what it holds on to is released by release().
"""

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import grpc
from attacker import Attacker, reason_of
from harness import HandoffConnection

import ckptd
from ckptd.v1 import handoff_pb2 as handoff
from ckptd.v1 import messages_pb2 as messages



class _Daemon:
    """The trainer's daemon. Imports come before the trainer has its environment."""

    @property
    def endpoint(self):
        return os.environ["CKPTD_ENDPOINT"]


DAEMON = _Daemon()
MIB = 1 << 20
HELD = []  # Functions that release what an attack holds.


def hold(made):
    HELD.append(made.close)
    return made


def release():
    while HELD:
        with contextlib.suppress(Exception):
            HELD.pop()()


def session(**more):
    return hold(Attacker(DAEMON, **more))


def opens(root):
    """Opens a root. Returns "" or the reason of the refusal."""
    os.makedirs(root, exist_ok=True)
    one = Attacker(DAEMON)
    try:
        return tried(one.call, "OpenRoot", messages.OpenRootRequest(path=root))
    finally:
        one.close()


def attach(wire, directory, path):
    """Attaches `directory` under the name `path`. Returns the root, or the reason of the refusal."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        answer, _ = wire.ask([descriptor], attach_root=handoff.AttachRoot(path=path))
    finally:
        os.close(descriptor)
    return answer.attach_root.root or answer.error.reason


def tried(call, *args, **named):
    """Returns "" or the reason of the refusal."""
    try:
        call(*args, **named)
    except grpc.RpcError as error:
        return reason_of(error) or error.code().name
    return ""


def saved(root, tag="own"):
    """Creates `root` with one committed checkpoint."""
    os.makedirs(root, exist_ok=True)
    made = Attacker(DAEMON).join(root, launch=f"{tag}{time.monotonic()}")
    made.save(tag)
    made.close()


# ---- The directories of a root


def nest(folder, depth):
    """Creates nested directories, each named d."""
    here = os.open(".", os.O_RDONLY)
    os.makedirs(folder)
    os.chdir(folder)
    try:
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.fchdir(here)
        os.close(here)


def remove(root):
    """Removes a tree of any depth. shutil.rmtree and os.walk recurse, and the daemon may have been stopped while it
    took the tree of nest() apart, so that parts of it lie anywhere in the trash.
    """
    subprocess.run(["rm", "-rf", root], check=True, timeout=120)


def copy_root(root, other):
    """Copies a root without the record that its daemon may be writing, which is gone before it could be copied."""
    shutil.copytree(root, other, ignore=shutil.ignore_patterns(".run.tmp"))


def copy_with_deep_trash(root, other, depth):
    """A root like `root`, whose trash contains a tree of this depth; attached."""
    saved(root)
    copy_root(root, other)
    nest(f"{other}/.ckptd/nodes/local/trash/x.1.0123456789abcdef", depth)
    nest(f"{other}/.ckptd/nodes/local/inflight/x.2.0123456789abcdef", depth)
    return tried(session().call, "OpenRoot", messages.OpenRootRequest(path=other), timeout=60)


def copy_with_special_files(root, other, victim):
    """A root with pipes, sockets and links wherever the daemon opens its own files."""
    saved(root)
    copy_root(root, other)
    for at, name in enumerate((".ckptd/pins", ".ckptd/damaged", ".ckptd/nodes/local/run", "own/.ckptd/manifest", "own/f0")):
        copy = f"{other}{at}"
        copy_root(root, copy)
        with contextlib.suppress(FileNotFoundError):
            os.remove(f"{copy}/{name}")
        os.mkfifo(f"{copy}/{name}")
    os.mkfifo(f"{other}/.ckptd/nodes/local/trash/p.1.0123456789abcdef")
    os.symlink(victim, f"{other}/.ckptd/nodes/local/trash/v.2.0123456789abcdef")
    os.symlink(victim, f"{other}/.ckptd/nodes/local/inflight/v.3.0123456789abcdef")
    os.makedirs(f"{other}/tag/.ckptd")
    os.symlink("/dev/zero", f"{other}/tag/.ckptd/manifest")
    listening = hold(socket.socket(socket.AF_UNIX))
    listening.bind(f"{other}/.ckptd/nodes/local/trash/s")
    one = session()
    return [
        tried(one.call, "OpenRoot", messages.OpenRootRequest(path=path), timeout=60)
        for path in (other, *(f"{other}{at}" for at in range(5)))
    ]


def copy_with_many_tags(root, other, count):
    """A root with this many checkpoints of one small file."""
    saved(root)
    copy_root(root, other)
    with open(f"{root}/own/.ckptd/manifest", "rb") as file:
        manifest = file.read()
    for number in range(count):
        os.makedirs(f"{other}/t{number}/.ckptd")
        with open(f"{other}/t{number}/.ckptd/manifest", "wb") as file:
            file.write(manifest)  # Its manifest names another tag: the daemon must check and report that.
    return tried(session().call, "OpenRoot", messages.OpenRootRequest(path=other), timeout=60)


def copy_with_huge_files(root, other):
    """Manifests and records of a terabyte, without blocks on disk."""
    saved(root)
    reasons = []
    for at, name in enumerate((".ckptd/pins", ".ckptd/damaged", ".ckptd/nodes/local/run", "own/.ckptd/manifest", "own/f0")):
        copy = f"{other}{at}"
        copy_root(root, copy)
        with open(f"{copy}/{name}", "ab") as file:
            file.truncate(1 << 40)
        one = session()
        reasons.append(tried(one.call, "OpenRoot", messages.OpenRootRequest(path=copy), timeout=60))
    return reasons


def swap_directories(root, victim, seconds):
    """Saves while the save's directories are exchanged for links to another user's directory."""
    saved(root)
    one = session().join(root, launch="swap")
    over = threading.Event()
    inflight = f"{root}/.ckptd/nodes/local/inflight"

    def swap():
        while not over.is_set():
            for name in os.listdir(inflight):
                with contextlib.suppress(OSError):
                    os.rename(f"{inflight}/{name}", f"{root}/away-{name}")
                    os.symlink(victim, f"{inflight}/{name}")

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes, deadline = [], time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            tag = f"t{len(outcomes)}"
            outcomes.append(tried(one.save, tag))
    except AssertionError as error:
        outcomes.append(str(error)[:100])
    finally:
        over.set()
        thread.join()
    return outcomes


# ---- Roots of other users


def attach_as(path, own, removed):
    """Attaches its own directories under the path of another user's root."""
    wire = hold(HandoffConnection(DAEMON.endpoint))
    wire.hello()
    reasons = [tried(session().call, "OpenRoot", messages.OpenRootRequest(path=path))]
    reasons.append(attach(wire, own, path))
    os.mkdir(removed)
    reasons.append(attach(wire, removed, path))
    shutil.rmtree(removed)
    return reasons


def attach_many(folder, count):
    """Attaches many roots, each with the longest allowed path. Returns how many were accepted, and the
    reasons of the refusals.
    """
    wire = hold(HandoffConnection(DAEMON.endpoint))
    wire.hello()
    taken, reasons = 0, {}
    for number in range(count):
        path = f"{folder}/{number}"
        os.makedirs(path, exist_ok=True)
        answer = attach(wire, path, f"{path}/".ljust(4000, "x"))
        if "/" in answer:
            taken += 1
        else:
            reasons[answer] = reasons.get(answer, 0) + 1
    return taken, reasons


def squat_lock(root):
    """Tries to take the lock of another user's root through everything that can be opened. Returns the number
    of locks taken.
    """
    taken = 0
    for name in ("lock", "run", ""):
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{root}/.ckptd/nodes/local/{name}", os.O_RDONLY)
            HELD.append(lambda descriptor=descriptor: os.close(descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken += 1
    return taken


def squat_lock_again_and_again(root):
    """Repeats until release(), also while the daemon restarts."""
    over = threading.Event()

    def squat():
        while not over.wait(0.005):
            squat_lock(root)

    thread = threading.Thread(target=squat)
    thread.start()
    HELD.append(lambda: (over.set(), thread.join()))


def readable(root):
    """Returns the files of another user's root that this user can read."""
    found = []
    for folder, _, files in os.walk(root):
        for name in files:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                open(path, "rb").close()
                found.append(os.path.relpath(path, root))
    return found


def metrics(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code}"


def open_by_path_and_descriptor(root):
    """Returns the reasons of the refusals."""
    wire = hold(HandoffConnection(DAEMON.endpoint))
    wire.hello()
    by_path = tried(session().call, "OpenRoot", messages.OpenRootRequest(path=root))
    by_descriptor = attach(wire, root, root)
    return by_path, by_descriptor if "/" not in by_descriptor else ""


# ---- Memory and waiting


def hog_the_pool(root, pool_bytes):
    """Holds one byte that is never sealed, and begins a save of the whole pool that waits as long as it may.
    """
    os.makedirs(root, exist_ok=True)
    for number, size in enumerate((1, pool_bytes, pool_bytes)):
        os.makedirs(f"{root}/{number}", exist_ok=True)
        one = session().join(f"{root}/{number}", launch="hog")
        begin = one.begin("t", size, commit_timeout=3600)
        begin.timeout.FromSeconds(3600)
        if number == 0:
            one.call("Begin", begin)
        else:
            call = one.stub.Begin.future(begin, metadata=one.metadata, timeout=3600)
            HELD.append(call.cancel)


def hold_memory(root, size, count):
    """Begins saves that hold memory and are never sealed. Returns the reasons of the refusals."""
    reasons = []
    for number in range(count):
        path = f"{root}/{number}"
        os.makedirs(path, exist_ok=True)
        one = session().join(path, launch="hold")
        begin = one.begin("t", size, commit_timeout=3600)
        begin.timeout.FromSeconds(1)
        reasons.append(tried(one.call, "Begin", begin))
    return reasons


def large_worlds(root, count):
    """Begins saves of worlds of 65,536 ranks, of which one joins."""
    reasons = set()
    for number in range(count):
        path = f"{root}/{number}"
        os.makedirs(path, exist_ok=True)
        one = session()
        one.run = one.call("OpenRoot", messages.OpenRootRequest(path=path)).root
        one.rank = 0
        join = messages.JoinRunRequest(root=one.run, rank=0, world_size=65536, launch_id="w")
        reasons.add(tried(one.call, "JoinRun", join) or tried(one.call, "Begin", one.begin("t")))
    return sorted(reasons)


def many_files(root, saves, files):
    """Begins saves of many files that end at once. Returns the reasons of the refusals."""
    os.makedirs(root, exist_ok=True)
    one = session().join(root, launch="files")
    reasons = set()
    for number in range(saves):
        begin = messages.BeginRequest(key=one.key(f"t{number}"))
        for file in range(files):
            begin.files.add(path=f"folder/{'x' * 100}{file}", size_bytes=0)
        reason = tried(one.call, "Begin", begin)
        reasons.add(reason)
        if not reason:
            one.call("Abort", messages.AbortRequest(key=one.key(f"t{number}"), message="x" * 1000))
    return sorted(reasons)


def unread_descriptors(root, count):
    """Requests the same segment repeatedly on several connections without reading an answer. Returns how
    often.
    """
    sent = 0
    for number in range(count):
        path = f"{root}/{number}"
        os.makedirs(path, exist_ok=True)
        one = session(descriptors=True).join(path, launch="unread")
        segment = one.call("Begin", one.begin("t")).segments[0].id
        one.wire.socket.settimeout(0.2)
        with contextlib.suppress(OSError):  # Until the daemon accepts no more.
            for asked in range(1000):
                ids = handoff.FetchSegments(ids=[segment] * (64 if asked % 2 else 1))
                one.wire.socket.send(handoff.HandoffRequest(id=1000 + asked, fetch_segments=ids).SerializeToString())
                sent += 1
    return sent


def slow_readers(root, size, count):
    """Opens streams of a large file, and watches, and reads none of them."""
    os.makedirs(root, exist_ok=True)
    one = session().join(root, launch="slow")
    one.call("Begin", one.begin("big", size))
    one.write("big", [bytes(MIB)] * (size // MIB)).result()
    one.call("Seal", one.seal("big", size))
    one.wait("big")
    reasons = {}
    for _ in range(count):
        reader = session()
        with contextlib.suppress(grpc.RpcError):  # Earlier streams may have used up the user's limit.
            reader.call("OpenRoot", messages.OpenRootRequest(path=root))
        for _ in range(8):
            try:
                lease = reader.call("OpenCheckpoint", messages.OpenCheckpointRequest(name=f"{one.run}/checkpoints/big")).lease
                stream = reader.stub.ReadFile(messages.ReadFileRequest(lease=lease, path="f0"), metadata=reader.metadata)
                next(stream)
                HELD.append(stream.cancel)
            except grpc.RpcError as error:
                reasons[reason_of(error) or error.code().name] = reasons.get(reason_of(error), 0) + 1
    return reasons


# ---- Connections


def many_sessions(count):
    """Returns how many sessions this user got, and the reasons of the refusals."""
    got, reasons = 0, {}
    for _ in range(count):
        try:
            wire = hold(HandoffConnection(DAEMON.endpoint))
            reason = wire.hello().error.reason
        except (OSError, AssertionError) as error:
            reason = type(error).__name__
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
        else:
            got += 1
    return got, reasons


def many_connections(count):
    """Opens connections to gRPC's socket and sends the beginning of a request on each."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
    made = 0
    for _ in range(count):
        connection = hold(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            connection.connect(DAEMON.endpoint[len("unix:") :])
            connection.sendall(preface)
            made += 1
    return made


def bombs():
    """Sends requests that are large, deep or meaningless. Returns the answers."""
    one = session()
    channel = one.channel
    method = channel.unary_unary("/ckptd.v1.Checkpoints/Begin", request_serializer=bytes, response_deserializer=bytes)
    large = messages.BeginRequest()
    for number in range(200_000):
        large.files.add(path=f"{number}", size_bytes=1)
    nested = b""
    for _ in range(10_000):
        nested = b"\x0b" + nested + b"\x0c"  # A group in a group, all in an unknown field.
    answers = []
    for body in (b"\xff" * 1000, nested, b"\x0a\xff\xff\xff\x7f", b"\x1a\x00" * 1_500_000, bytes(64 * MIB), large.SerializeToString()):
        try:
            method(body, metadata=one.metadata, timeout=30)
            answers.append("")
        except grpc.RpcError as error:
            answers.append(error.code().name)
    return answers


def save_a_script(root, script):
    """Saves a checkpoint that everybody may read, whose state is a TorchScript archive."""
    os.makedirs(root, exist_ok=True)
    os.chmod(root, 0o755)
    client = ckptd.connect()
    run = client.run(root, rank=0, world_size=1)
    run.save("t", files={"state.pt": script}).wait("committed", timeout=20)
    client.close()

