"""Bad input gets a clear error and loses nothing."""

import os
import socket
import subprocess
import tempfile

import pytest
from harness import ckptctl, tags

import ckptd
from ckptd.local_daemon import find_program


@pytest.fixture
def rank(trainers):
    return trainers("a", 1)[0]


@pytest.mark.parametrize("keep", [0, -2])
def test_num_kept_ckpts_below_one_is_refused(rank, root, keep):
    error = rank.fails(f"client.run({root!r}, rank=0, world_size=1, num_kept_ckpts={keep})")
    assert "Refused" in error.bases and str(keep) in error.message and "at least 1" in error.message


BAD_TAGS = ["../x", "/abs", "", "a\0b", "x" * 300, "latest", ".hidden", "-dash", "a b", "ü", "a/b", "a\nb", ".", "..", "a\udcff"]


def test_tags_outside_charset_are_refused_and_touch_nothing(rank, root):
    before = sorted(os.listdir(os.path.dirname(root)))
    for tag in BAD_TAGS:
        error = rank.fails(f"run.save({tag!r}, files={{'m.bin': b'x'}})")
        assert "Refused" in error.bases and error.reason == "INVALID_TAG", (tag, error)
    assert sorted(os.listdir(os.path.dirname(root))) == before and tags(root) == []


def test_tags_of_common_frameworks_are_accepted(rank, root):
    for tag in ("epoch_0_train_step_2_train_loss=1e-05", "step-10", "v1.0+x,y@z", "x" * 200):
        rank.do(f"run.save({tag!r}, files={{'m.bin': b'x'}}).wait()")
        assert tag in tags(root)


def test_file_names_that_leave_the_checkpoint_are_refused(rank, root):
    for name in ("../m.bin", "/m.bin", "a//b", "a/./b", "a/../b", "", ".ckptd/manifest", "a\0b", "x" * 300, "a\udcff"):
        error = rank.fails(f"run.save('t', files={{{name!r}: b'x'}})")
        assert "Refused" in error.bases and error.reason == "INVALID_PATH", (name, error)
    assert tags(root) == []


def test_symlink_planted_at_tag_is_refused_and_not_followed(rank, root, folder):
    target = os.path.join(folder, "target")
    os.mkdir(target)
    os.symlink(target, f"{root}/t")
    assert rank.fails("run.save('t', files={'m.bin': b'x'})").reason == "TAG_FOREIGN"
    assert os.listdir(target) == []


def test_symlink_planted_at_ckptd_directory_is_refused(trainers, folder):
    planted, target = os.path.join(folder, "planted"), os.path.join(folder, "target")
    os.mkdir(planted)
    os.mkdir(target)
    os.symlink(target, f"{planted}/.ckptd")
    rank = trainers("a", 1, join=False)[0]
    rank.fails(f"client.run({planted!r}, rank=0, world_size=1)")
    assert os.listdir(target) == []


def test_second_daemon_on_same_root_is_refused(make_daemon, trainers, rank, root):
    rank.do("run.save('t', files={'m.bin': b'x'}).wait()")
    other = make_daemon("other")
    stranger = trainers("b", 1, endpoint=other.endpoint, join=False)[0]
    error = stranger.fails(f"client.run({root!r}, rank=0, world_size=1)")
    assert error.reason == "ROOT_LOCKED" and root in error.message


def test_second_daemon_with_same_socket_is_refused(daemon, folder):
    config = os.path.join(folder, "second.txtpb")
    socket_path = daemon.endpoint[len("unix:") :]
    with open(config, "w", encoding="ascii") as file:
        file.write(
            f'socket_path: "{socket_path}" state_directory: "{folder}/state2" '
            "pool { bytes: 8388608 } metrics { port: -1 }"
        )
    done = subprocess.run([find_program(), f"--config={config}"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and socket_path in done.stderr
    assert daemon.status().state == "SERVING"


def test_unknown_config_field_is_named_in_error(folder):
    config = os.path.join(folder, "bad.txtpb")
    with open(config, "w", encoding="ascii") as file:
        file.write("pool { bites: 5 }\n")
    done = subprocess.run([find_program(), f"--config={config}", "--check_config"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "bites" in done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")
def test_unwritable_root_and_run_of_another_uid_are_refused(make_daemon, trainers, rank, root, folder):
    os.chmod(folder, 0o755)
    socket_path = rank.do("client.endpoint")[len("unix:"):]
    os.chmod(os.path.dirname(socket_path), 0o755)
    os.chmod(socket_path, 0o666)
    os.chmod(socket_path + ".handoff", 0o666)
    rank.do("run.save('t', files={'m.bin': b'x'}).wait()")
    other = trainers("b", 1, join=False)[0]
    other.do("client.close(); os.setgid(12345); os.setuid(12345); client = ckptd.connect()")
    error = other.fails(f"client.run({root!r}, rank=0, world_size=1)")
    assert error.reason == "WRONG_UID" and "12345" in error.message
    private = os.path.join(folder, "private")
    os.mkdir(private, 0o755)
    error = other.fails(f"client.run({private!r}, rank=0, world_size=1)")
    assert error.reason == "ROOT_UNSUITABLE" and "may not be written" in error.message
    assert os.listdir(private) == []
    own = os.path.join(folder, "own")
    os.mkdir(own)
    os.chown(own, 12345, 12345)
    other.do(f"run = client.run({own!r}, rank=0, world_size=1)\nrun.save('t', files={{'m.bin': b'x'}}).wait()")
    assert os.stat(f"{own}/t/m.bin").st_uid == 12345
    assert tags(root) == ["t"]


def test_missing_token_and_token_of_other_session_are_refused(daemon, rank, root):
    import grpc

    from ckptd.v1 import messages_pb2, service_pb2_grpc

    with grpc.insecure_channel(daemon.endpoint) as channel:
        stub = service_pb2_grpc.CheckpointsStub(channel)
        for metadata in ((), (("ckptd-token", "0" * 32),)):
            with pytest.raises(grpc.RpcError) as caught:
                stub.JoinRun(messages_pb2.JoinRunRequest(), metadata=metadata, timeout=10)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        # The token of a live session does not make its holder a member of a run.
        token = daemon.local._keeper._connection.session().metadata[0][1]
        seal = messages_pb2.SealRequest()
        seal.key.run, seal.key.tag, seal.key.ordinal = daemon.run_status(root).name, "t", 1
        with pytest.raises(grpc.RpcError) as caught:
            stub.Seal(seal, metadata=(("ckptd-token", token),), timeout=10)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_daemon_serves_after_oversized_message_and_garbage_on_both_sockets(daemon, rank, root):
    import grpc

    from ckptd.v1 import messages_pb2, service_pb2_grpc

    with grpc.insecure_channel(daemon.endpoint) as channel:
        stub = service_pb2_grpc.CheckpointsStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.JoinRun(messages_pb2.JoinRunRequest(run_id="x" * (8 << 20)), timeout=20)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    path = daemon.endpoint[len("unix:"):]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as garbage:
        garbage.connect(path)
        garbage.sendall(os.urandom(100_000))
    for size in (0, 1, 1000, 100_000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as garbage:
            garbage.connect(path + ".handoff")
            try:
                garbage.send(os.urandom(size))
            except OSError:
                pass  # The daemon may already have closed the connection.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as garbage, tempfile.TemporaryFile() as file:
        garbage.connect(path + ".handoff")
        socket.send_fds(garbage, [b"\xff\xff"], [file.fileno()])
    rank.do("run.save('t', files={'m.bin': b'x'}).wait()")
    assert tags(root) == ["t"]


def test_files_of_all_sizes_are_restored(rank, root):
    sizes = [0, 1, 4095, 4096, 4097, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 12_345_678]
    rank.do(f"sizes = {sizes}\nrun.save('t', files={{f'd/{{n}}.bin': os.urandom(1) * n for n in sizes}}).wait()")
    for size in sizes:
        assert os.stat(f"{root}/t/d/{size}.bin").st_size == size
    assert ckptctl("verify", root).returncode == 0


def test_ten_thousand_small_tensors_and_five_hundred_files_are_restored(rank, root):
    rank.do("state = {f'layer{i}': torch.full((256,), float(i)) for i in range(10000)}")
    rank.do("run.save('t', files={'m.pt': state, **{f'f{i}.bin': b'x' * i for i in range(500)}}).wait()")
    with ckptd.open_root(root).open("t") as c:
        loaded = c.load("m.pt")
        assert len(loaded) == 10000 and loaded["layer9999"][0].item() == 9999.0


def test_unsupported_value_names_alternative_and_run_continues(rank, root):
    error = rank.fails("run.save('t', files={'m.json': {'a': 1}})")
    assert error.kind == "TypeError" and "ckptd.Torch" in error.message
    rank.do("run.save('t', files={'m.json': b'{}'}).wait()")
    assert tags(root) == ["t"]


@pytest.mark.parametrize(
    "call, words",
    [
        ("run.save('t', files=None)", "files is None; it must be a dict of names and values"),
        ("run.begin('t', files=['m.pt'])", "files is ['m.pt']; it must be a dict of names and values"),
        ("run.save('t', files={1: b'x'})", 'the name of a file is 1; it must be a str, such as "model.pt"'),
        ("client.run(None)", 'the root is None; it must be a str or an os.PathLike[str], such as "/data/ckpts"'),
        ("client.open(5)", "the root is 5; it must be a str or an os.PathLike[str]"),
        ("run.restore({'w': 1})", "load is a dict; it must be a function that loads from a checkpoint"),
        ("run.restore(type('Model', (), {'load_state_dict': 1, '__call__': 1})())", "load is a Model; it must be a function"),
        ("client.run(run.root, rank=0, world_size=1, num_kept_ckpts='3')", "num_kept_ckpts is '3'; it must be an int, or None"),
    ],
)
def test_values_of_another_type_are_named_with_what_is_expected(rank, root, call, words):
    error = rank.fails(call)
    assert error.kind == "TypeError" and words in error.message, error
    assert tags(root) == []


def test_checkpoint_is_no_root_and_stays_as_it_is(rank, root):
    rank.do("run.save('t', files={'m.bin': b'x'}).wait()")
    before = sorted(os.walk(os.path.join(root, "t")))
    for call in ("client.run(run.root + '/t', rank=0, world_size=1)", "client.open(run.root + '/t')"):
        error = rank.fails(call)
        assert error.kind == "Refused" and f"name the directory that holds it, {root}" in error.message, error
    assert sorted(os.walk(os.path.join(root, "t"))) == before


def test_root_that_is_a_file_is_called_one(rank, folder):
    path = os.path.join(folder, "file")
    open(path, "w").close()
    for root in (path, f"{path}/below"):
        error = rank.fails(f"client.run({root!r}, rank=0, world_size=1).latest()")
        assert "is a file and no directory" in error.message, error


def test_use_after_fork_raises(rank):
    assert "fork" in rank.do(
        "r, w = os.pipe()\nif os.fork() == 0:\n"
        "    try: run.save('t', files={'m.bin': b'x'}); text = 'saved'\n"
        "    except ckptd.CkptdError as e: text = str(e)\n"
        "    os.write(w, text.encode()); os._exit(0)\n"
        "os.read(r, 1000).decode()"
    )
