"""Whatever a client does, the daemon survives, serves other clients meanwhile, and gets everything back
afterwards.

Checked from outside: a healthy trainer saves during each attack (attacker.others_are_served).
"""

import contextlib
import glob
import mmap
import os
import random
import resource
import socket
import threading

import grpc
import pytest
from attacker import Attacker, memory_of, others_are_served, reason_of
from harness import HandoffConnection, ckptctl, tags, until

import ckptd
from ckptd.v1 import handoff_pb2 as handoff
from ckptd.v1 import messages_pb2 as messages
from ckptd.v1 import types_pb2 as types

Code = grpc.StatusCode
MIB = 1 << 20


@pytest.fixture
def rank(daemon, root):
    """A correct client."""
    made = Attacker(daemon).join(root, launch="healthy")
    yield made
    made.close()


@pytest.fixture
def victim(daemon, folder):
    """A root of the attacker, which the daemon already has open, so that its descriptors are not counted as
    leaks.
    """
    path = os.path.join(folder, "victim")
    os.mkdir(path)
    Attacker(daemon).join(path, launch="before").close()
    return path


@pytest.fixture
def attackers(daemon):
    with contextlib.ExitStack() as stack:

        def make(*arguments, **named):
            made = Attacker(daemon, *arguments, **named)
            stack.callback(made.close)
            return made

        yield make


# ---- The hand-off socket


def test_descriptors_that_are_not_roots_are_refused_and_closed(daemon, rank, folder):
    gone = os.path.join(folder, "gone")
    os.mkdir(gone)
    with contextlib.ExitStack() as stack:

        def opened(descriptor):
            stack.callback(os.close, descriptor)
            return descriptor

        reader, writer = os.pipe()
        wares = [opened(reader), opened(writer), opened(os.open("/dev/zero", os.O_RDWR))]
        wares += [opened(os.memfd_create("x")), opened(os.open(__file__, os.O_RDONLY))]
        wares += [opened(os.open(__file__, os.O_PATH)), opened(os.open(gone, os.O_RDONLY | os.O_DIRECTORY))]
        wares += [opened(socket.socket(socket.AF_UNIX).detach()), opened(os.open("/proc/self", os.O_RDONLY))]
        os.rmdir(gone)
        root = opened(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        with others_are_served(daemon, rank):
            wire = HandoffConnection(daemon.endpoint)
            stack.callback(wire.close)
            assert wire.hello().hello.token
            attach = handoff.AttachRoot(path="/x")
            for some in [[ware] for ware in wares] + [[], [root, root], [root] * 64, wares * 7]:
                answer, received = wire.ask(some, attach_root=attach)
                assert answer.error.reason and not received, (some, answer)
            for request in ({"fetch_segments": handoff.FetchSegments(ids=[1])}, {"hello": handoff.Hello()}):
                answer, received = wire.ask([root] * 100, **request)
                assert answer.error.reason == "INVALID_ARGUMENT" and not received
            # The most that the kernel passes. The session survives all of this.
            assert wire.ask([root] * 253, attach_root=attach)[0].error.reason == "INVALID_ARGUMENT"
            assert wire.ask(goodbye=handoff.Goodbye())[0].HasField("goodbye")
            wire.close()


def test_garbage_and_truncated_frames_end_only_their_connection(daemon, rank):
    chance = random.Random(4)
    hello = handoff.Hello(min_version=1, max_version=1, client_instance="0" * 32, client_name="n" * 50)
    frames = [
        handoff.HandoffRequest(id=1, hello=hello).SerializeToString(),
        handoff.HandoffRequest(id=2, attach_root=handoff.AttachRoot(path="/" * 4096)).SerializeToString(),
        handoff.HandoffRequest(id=3, fetch_segments=handoff.FetchSegments(ids=range(100))).SerializeToString(),
    ]
    with others_are_served(daemon, rank):
        for _ in range(300):
            frame = bytearray(chance.choice(frames))
            for _ in range(chance.randrange(4)):
                frame[chance.randrange(len(frame))] = chance.randrange(256)
            wire = HandoffConnection(daemon.endpoint)
            with contextlib.suppress(OSError):  # The daemon may close the connection at any time.
                wire.socket.send(frame[: chance.randrange(len(frame) + 1)])
                wire.socket.send(frames[0])
                wire.socket.shutdown(socket.SHUT_WR)
                while wire.socket.recv(1 << 16):
                    pass
            wire.close()


def test_unsupported_protocol_versions_are_refused_by_name(daemon, attackers):
    wire = HandoffConnection(daemon.endpoint)
    for least, most in ((2, 9), (0, 0), (-5, -1), (2**31 - 1, 2**31 - 1), (9, 1)):
        hello = handoff.Hello(min_version=least, max_version=most, client_instance="0" * 32)
        assert wire.ask(hello=hello)[0].error.reason == "VERSION_UNSUPPORTED"
    assert wire.hello().hello.version == 1
    wire.close()


# ---- Floods


def test_partial_http2_frames_and_idle_connections_block_no_other_client(daemon, rank):
    path = daemon.endpoint[len("unix:") :]
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = bytes(3) + b"\x04" + bytes(5)
    # A preface cut at each byte, a frame announced and never sent, headers without an end.
    beginnings = [preface[:n] for n in range(len(preface))]
    beginnings += [preface + settings + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + b"x" * 100]
    beginnings += [preface + settings + b"\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82"]
    with others_are_served(daemon, rank), contextlib.ExitStack() as stack:
        for i in range(400):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.connect(path)
            with contextlib.suppress(OSError):
                connection.sendall(beginnings[i % len(beginnings)])


def test_a_thousand_idle_or_vanished_sessions_return_everything(daemon, rank):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4000:
        pytest.skip("needs 4,000 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4000), hard))
    before = memory_of(daemon)
    for _ in range(2):
        with others_are_served(daemon, rank):
            wires, refused = [], 0
            for _ in range(1000):  # sessions_per_uid is 768.
                wires.append(HandoffConnection(daemon.endpoint))
                answer = wires[-1].hello()
                if answer.error.reason:
                    assert answer.error.reason == "LIMIT_EXCEEDED" and "limits.sessions_per_uid" in answer.error.message
                    refused += 1
            assert 1000 - 768 <= refused < 1000 - 740
            assert 740 <= daemon.status().sessions <= 768
            for wire in wires:
                wire.close()
            until(lambda: daemon.status().sessions < 20, "the end of the sessions")
        with others_are_served(daemon, rank):
            for i in range(1000):
                wire = HandoffConnection(daemon.endpoint)
                if i % 2:  # Some disconnect before the daemon has answered.
                    hello = handoff.Hello(min_version=1, max_version=1, client_instance="0" * 32)
                    wire.socket.send(handoff.HandoffRequest(hello=hello).SerializeToString())
                wire.close()
            until(lambda: daemon.status().sessions < 20, "the end of the sessions")
    assert memory_of(daemon) < before + 48 * MIB
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_unread_segment_descriptors_cost_no_other_client_its_session(daemon, rank, victim, attackers):
    with others_are_served(daemon, rank):  # This also checks the daemon's descriptors.
        hog = attackers(descriptors=True).join(victim)
        segments = [segment.id for segment in hog.call("Begin", hog.begin("t", 8 * MIB)).segments]
        fetch = handoff.HandoffRequest(id=99, fetch_segments=handoff.FetchSegments(ids=segments))
        answer, received = hog.wire.ask(fetch_segments=handoff.FetchSegments(ids=segments * 2))
        assert answer.error.reason == "INVALID_ARGUMENT" and "twice" in answer.error.message and not received
        with contextlib.suppress(OSError):  # The daemon closes the connection when too many requests wait.
            for _ in range(1000):
                hog.wire.socket.send(fetch.SerializeToString())
        other = Attacker(daemon, descriptors=True).join(victim, launch="other")
        segments = [segment.id for segment in other.call("Begin", other.begin("u", MIB)).segments]
        answer, received = other.wire.ask(fetch_segments=handoff.FetchSegments(ids=segments))
        assert len(received) == len(segments), answer
        for descriptor in received:
            os.close(descriptor)
        other.close()
        hog.close()


# ---- Requests


WRAPPING = [1 << 46, (1 << 46) + 1, 1 << 52, 1 << 53, 1 << 61, 1 << 62, (1 << 63) - 1, -1, -(1 << 63), (1 << 63) - 4096]


def test_sizes_and_counts_that_overflow_are_refused(daemon, rank, attackers, victim):
    with others_are_served(daemon, rank):
        attacker = attackers().join(victim)
        for i, size in enumerate(WRAPPING):
            _, reason = attacker.refused("Begin", attacker.begin(f"whole{i}", size))
            assert reason in ("INVALID_ARGUMENT", "NO_SPACE"), (size, reason)
            attacker.call("Begin", messages.BeginRequest(key=attacker.key(f"grow{i}"), growing=True))
            extend = messages.ExtendRequest(key=attacker.key(f"grow{i}"), files=[messages.FileSpec(path="f0", size_bytes=size)])
            _, reason = attacker.refused("Extend", extend)
            assert reason in ("INVALID_ARGUMENT", "NO_SPACE", "POOL_TOO_SMALL"), (size, reason)
            with pytest.raises(grpc.RpcError):
                attacker.write(f"grow{i}", [b"x"]).result()
        half = [messages.FileSpec(path=f"h{i}", size_bytes=1 << 62) for i in range(2)]
        assert attacker.refused("Begin", messages.BeginRequest(key=attacker.key("sum"), files=half))[1] == "INVALID_ARGUMENT"
        many = [messages.FileSpec(path=f"{i}", size_bytes=0) for i in range(50_000)]
        many.append(messages.FileSpec(path="0/below", size_bytes=1))
        assert attacker.refused("Begin", messages.BeginRequest(key=attacker.key("many"), files=many))[1] == "FILE_CONFLICT"
        for ordinal in (0, -1):
            begin = attacker.begin("t")
            begin.key.ordinal = ordinal
            assert attacker.refused("Begin", begin)[1] == "INVALID_ARGUMENT"
        for world in (0, -1, 65537, 2**31 - 1):
            request = messages.JoinRunRequest(root=attacker.run, rank=0, world_size=world, launch_id="w")
            assert attacker.refused("JoinRun", request)[1] == "INVALID_ARGUMENT"
        attacker.close()
    assert os.listdir(victim) == [".ckptd"]


def test_offsets_that_overflow_read_nothing_outside_the_file(daemon, rank, root, attackers):
    rank.save("t", b"0123456789")
    attacker = attackers()
    attacker.run = attacker.call("OpenRoot", messages.OpenRootRequest(path=root)).root
    lease = attacker.call("OpenCheckpoint", messages.OpenCheckpointRequest(name=f"{attacker.run}/checkpoints/t")).lease

    def read(offset, limit, path="f0", lease=lease):
        return b"".join(m.data for m in attacker.call("ReadFile", messages.ReadFileRequest(
            lease=lease, path=path, offset=offset, limit=limit)))

    assert read(3, (1 << 63) - 1) == b"3456789" and read(10, 0) == b"" and read(0, 1) == b"0"
    for offset, limit in ((-1, 0), (11, 0), ((1 << 63) - 1, (1 << 63) - 1), (0, -1), (-(1 << 63), 5)):
        with pytest.raises(grpc.RpcError) as caught:
            read(offset, limit)
        assert reason_of(caught.value) == "INVALID_ARGUMENT", (offset, limit)
    for path in ("../t/f0", "/etc/passwd", ".ckptd/manifest", "", "f0\0"):
        with pytest.raises(grpc.RpcError) as caught:
            read(0, 0, path)
        assert reason_of(caught.value) == "UNKNOWN_FILE", path


def test_seals_out_of_order_change_nothing(daemon, rank, attackers, victim):
    with others_are_served(daemon, rank):
        one = attackers().join(victim)
        assert one.refused("Seal", one.seal("t")) == (Code.NOT_FOUND, "UNKNOWN_SAVE")
        one.call("Begin", one.begin("t"))
        for wrong in (one.seal("t", (1 << 20) + 1), one.seal("t", -1), one.seal("t", 1 << 62)):
            assert one.refused("Seal", wrong)[1] == "INVALID_ARGUMENT"
        twice = one.seal("t")
        twice.files.extend(list(twice.files))
        unknown = one.seal("t")
        unknown.files[0].path = "never placed"
        for wrong in (twice, unknown):
            assert one.refused("Seal", wrong)[1] == "INVALID_ARGUMENT"
        one.write("t", [b"y" * (1 << 20)]).result()
        first, second = one.call("Seal", one.seal("t")), one.call("Seal", one.seal("t", 5))
        # A retry: the first seal counts.
        assert first.sequence == second.sequence and second.level >= types.STAGED
        with pytest.raises(grpc.RpcError):
            one.write("t", [b"z"]).result()
        assert one.wait("t").level == types.COMMITTED
        assert one.call("Seal", one.seal("t")).level == types.COMMITTED
        one.close()
    with ckptd.open_root(victim).open("t") as checkpoint:
        assert checkpoint.read("f0") == b"y" * (1 << 20)


# By design the bytes belong to the daemon after Seal, and the client promises not to write them: a mapping
# cannot be revoked. A client that breaks the promise gets a checkpoint that fails its checksum, by name, at
# every read.
def test_memory_changed_after_seal_is_never_read_back_as_valid(daemon, rank, attackers, victim):
    size = 48 * MIB
    outcomes = []
    with others_are_served(daemon, rank):
        attacker = attackers(descriptors=True).join(victim)
        for i in range(4):
            tag = f"t{i}"
            memory = attacker.map(attacker.call("Begin", attacker.begin(tag, size)).segments)
            over = threading.Event()

            def scribble(memory=memory, over=over):
                value = 0
                while not over.is_set():
                    value = (value + 1) % 256
                    for piece in memory:
                        piece[:: 64 << 10] = bytes([value]) * len(range(0, len(piece), 64 << 10))

            thread = threading.Thread(target=scribble)
            thread.start()
            attacker.call("Seal", attacker.seal(tag, size))
            ended = attacker.wait(tag)
            over.set()
            thread.join()
            assert ended.level in (types.COMMITTED, types.FAILED)
            if ended.level == types.COMMITTED:
                with ckptd.open_root(victim).open(tag) as checkpoint:
                    try:
                        assert len(checkpoint.read("f0")) == size
                        outcomes.append("good")
                    except ckptd.Corrupt as error:
                        assert "f0" in str(error)
                        outcomes.append("corrupt")
                verified = ckptctl("verify", victim, check=False)
                assert (verified.returncode == 0) == ("corrupt" not in outcomes)
        attacker.close()
    assert outcomes


def test_save_with_all_memory_that_is_never_sealed_ends_at_commit_timeout(make_daemon, folder, root):
    small = make_daemon("small", pool_bytes=64 * MIB)
    attacker = Attacker(small).join(folder)
    attacker.call("Begin", attacker.begin("all", 64 * MIB, commit_timeout=2))
    held = threading.Event()

    def trickle():  # A stream that never ends: nothing after its first byte until the test is over.
        yield b"x"
        held.wait(20)

    stream = attacker.write("all", trickle())
    healthy = Attacker(small).join(root)
    healthy.save("t", b"x" * (40 * MIB))
    assert not stream.done()
    assert attacker.wait("all").error.reason == "RANKS_MISSING"
    held.set()
    with pytest.raises(grpc.RpcError):
        stream.result()
    attacker.close()
    healthy.close()
    until(lambda: small.status().pool.used_bytes == 0, "the memory of all")


def test_endless_streams_end_at_placed_size_or_with_their_save(daemon, rank, attackers, victim):
    def endless(piece):
        while True:
            yield piece

    with others_are_served(daemon, rank):
        attacker = attackers().join(victim)
        attacker.call("Begin", attacker.begin("t", 8 * MIB))
        with pytest.raises(grpc.RpcError) as caught:
            attacker.write("t", endless(b"x" * MIB)).result()
        assert reason_of(caught.value) == "INVALID_ARGUMENT"
        attacker.call("Begin", attacker.begin("empty", 8 * MIB, commit_timeout=1))
        with pytest.raises(grpc.RpcError) as caught:
            attacker.write("empty", endless(b"")).result()
        assert reason_of(caught.value) == "RANKS_MISSING"
        attacker.close()


# ---- Resources of other clients


def test_resources_of_other_sessions_are_inaccessible(daemon, rank, attackers, victim):
    with others_are_served(daemon, rank):
        owner, thief = attackers(descriptors=True).join(victim), attackers(descriptors=True)
        segments = owner.call("Begin", owner.begin("t")).segments
        ids = handoff.FetchSegments(ids=[segment.id for segment in segments])
        assert thief.wire.ask(fetch_segments=ids)[0].error.reason == "UNKNOWN_SEGMENT"
        for id_ in (0, -1, 2**63 - 1, segments[0].id + 1):
            answer = thief.wire.ask(fetch_segments=handoff.FetchSegments(ids=[segments[0].id, id_]))[0]
            assert answer.error.reason == "UNKNOWN_SEGMENT"
        thief.run, thief.rank = owner.run, 0
        for name, request in (("Seal", owner.seal("t")), ("Begin", owner.begin("t"))):
            assert thief.refused(name, request)[1] == "NOT_JOINED"
        owner.call("Seal", owner.seal("t"))
        assert owner.wait("t").level == types.COMMITTED
        name = f"{owner.run}/checkpoints/t"
        lease = owner.call("OpenCheckpoint", messages.OpenCheckpointRequest(name=name)).lease
        assert thief.refused("CloseCheckpoint", messages.CloseCheckpointRequest(lease=lease))[1] == "UNKNOWN_LEASE"
        located = owner.call("LocateFiles", messages.LocateFilesRequest(lease=lease)).parts[0]
        assert thief.refused("LocateFiles", messages.LocateFilesRequest(lease=lease))[1] == "UNKNOWN_LEASE"
        ids = handoff.FetchSegments(ids=[segment.id for segment in located.segments], read_only=True)
        assert thief.wire.ask(fetch_segments=ids)[0].error.reason == "UNKNOWN_SEGMENT"
        answer, descriptors = owner.wire.ask(fetch_segments=ids)
        assert len(descriptors) == len(located.segments)
        for descriptor, segment in zip(descriptors, answer.fetch_segments.segments):
            with pytest.raises(PermissionError):  # Even its own writer cannot change what it saved this way.
                mmap.mmap(descriptor, segment.size_bytes)
            os.close(descriptor)
        with pytest.raises(grpc.RpcError) as caught:
            list(thief.call("ReadFile", messages.ReadFileRequest(lease=lease, path="f0")))
        assert reason_of(caught.value) == "UNKNOWN_LEASE"
        assert len(b"".join(m.data for m in owner.call("ReadFile", messages.ReadFileRequest(lease=lease, path="f0")))) == MIB
        owner.close()
        thief.close()


def test_unreleased_leases_end_with_their_session(daemon, rank, attackers, victim):
    with others_are_served(daemon, rank):
        attacker = attackers().join(victim)
        attacker.call("Begin", attacker.begin("t", 10))
        attacker.call("Seal", attacker.seal("t", 10))
        assert attacker.wait("t").level == types.COMMITTED
        for _ in range(300):
            attacker.call("OpenCheckpoint", messages.OpenCheckpointRequest(name=f"{attacker.run}/checkpoints/t"))
        assert daemon.run_status(victim).latest.leases == 300
        attacker.close()
        until(lambda: daemon.run_status(victim).latest.leases == 0, "the end of the leases")


def test_save_begun_by_two_connections_at_once_belongs_to_one_process(daemon, rank, attackers, victim):
    with others_are_served(daemon, rank):
        one, two = attackers().join(victim), attackers()
        two.run, two.rank = one.run, 0
        two.call("OpenRoot", messages.OpenRootRequest(path=victim))
        join = messages.JoinRunRequest(root=one.run, rank=0, world_size=1, launch_id="attack")
        assert two.refused("JoinRun", join)[1] == "RANK_TAKEN"
        # One process over two connections: both get the same answer, and it is one save.
        for i in range(10):
            begins = [one.stub.Begin.future(one.begin(f"t{i}"), metadata=one.metadata, timeout=20) for _ in range(8)]
            answers = {begin.result().SerializeToString() for begin in begins}
            assert len(answers) == 1
            other = one.begin(f"t{i}")
            other.step = 5  # The same id with other content.
            assert one.refused("Begin", other)[1] == "SAVE_CONFLICT"
            seals = [one.stub.Seal.future(one.seal(f"t{i}"), metadata=one.metadata, timeout=20) for _ in range(8)]
            assert len({seal.result().sequence for seal in seals}) == 1
            assert one.wait(f"t{i}").level == types.COMMITTED
        one.close()
        two.close()


# ---- Paths


def test_root_swapped_while_in_use_stays_the_attached_directory(rank, folder, root):
    rank.save("t1")
    moved, bait = os.path.join(folder, "moved"), os.path.join(folder, "bait")
    os.mkdir(bait)
    os.rename(root, moved)
    os.symlink(bait, root)
    rank.save("t2")
    assert os.listdir(bait) == [] and tags(moved) == ["t2", "t1"]


def test_symlinks_planted_in_ckptd_directories_are_not_followed(daemon, rank, attackers, victim, folder):
    bait = os.path.join(folder, "bait")
    os.mkdir(bait)
    attacker = attackers().join(victim)
    attacker.call("Begin", attacker.begin("t"))
    inflight = os.path.join(victim, ".ckptd/nodes/local/inflight")
    # The daemon has opened the directory when it makes this one in it.
    until(lambda: glob.glob(os.path.join(inflight, "*", ".ckptd")), "the in-flight directory")
    (name,) = os.listdir(inflight)
    os.rename(os.path.join(inflight, name), os.path.join(folder, "away"))
    os.symlink(bait, os.path.join(inflight, name))
    os.symlink("/etc/passwd", os.path.join(folder, "away", "f0"))
    attacker.call("Seal", attacker.seal("t"))
    assert attacker.wait("t").level != types.COMMITTED or os.path.isdir(os.path.join(victim, "t"))
    assert os.listdir(bait) == []
    with open("/etc/passwd", "rb") as passwd:
        assert passwd.read(5) == b"root:"
    rank.save("after")
    attacker.close()


# ---- Lasting effects


def test_long_abort_message_leaves_root_readable(daemon, root):
    attacker = Attacker(daemon).join(root)
    attacker.save("good")
    for before in ("", "x"):
        attacker.call("Begin", attacker.begin("bad" + before))
        attacker.call("Abort", messages.AbortRequest(key=attacker.key("bad" + before), message=before + "\u00fc" * 1500))
        assert attacker.wait("bad" + before).error.message.endswith("\u00fc")
    attacker.close()
    daemon.kill()
    daemon.restart()
    attacker = Attacker(daemon).join(root)
    attacker.save("again")
    assert tags(root) == ["again", "good"]
    attacker.close()
