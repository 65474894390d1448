"""Writes the seeds of the fuzz targets into corpus/, from messages of the installed ckptd:

.venv/bin/python tests/fuzz/make_corpus.py

Seeds are small and have descriptive names. Inputs that a fuzzer found are added by hand, as found-<what>.
"""

import collections
import io
import json
import os
import pathlib
import pickle
import struct
import tempfile
import zipfile

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from ckptd.storage.v1 import storage_pb2 as storage
from ckptd.v1 import handoff_pb2 as handoff
from ckptd.v1 import messages_pb2 as messages
from ckptd.v1 import types_pb2 as types
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, StorageMeta

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
RUN = "runs/0123456789abcdef"  # The target replaces this with the name of its run.


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def put(target, name, data):
    folder = os.path.join(CORPUS, target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def chunk(data):
    return struct.pack("<H", len(data)) + data


def bytes_of(message):
    return message.SerializeToString(deterministic=True)


def summary(**fields):
    known = {"format_version": 1, "tag": "step_100", "step": 100, "sequence": 7, "attempt": 2, "ordinal": 1}
    known.update({"world_size": 2, "chunk_bytes": 8 << 20, "create_time_us": 1, "commit_time_us": 2}, **fields)
    return storage.ManifestSummary(**known)


FILES = [
    storage.FileRecord(path="a/model_0.pt", size_bytes=9, chunk_crc32c=[0xE3069283]),
    storage.FileRecord(path="note.txt", rank=1),
]


def make_names():
    names = ["step_100", "epoch=1,loss=0.5@x+y-z", "latest", "..", "../x", "/abs", "a/b/c.pt", "a//b", "ü/日本", "\x7f"]
    names += ["part-00000", "part-65535", "part-100000", "step_100.7.0123456789abcdef", "a.b.1.fedcba9876543210"]
    names += [".ckptd/manifest", "a/.ckptd/x", "x" * 200, "d/" * 100 + "f", "y" * 256]
    for i, name in enumerate(names):
        put("names_fuzz", f"{i:02}", name.encode())
    put("names_fuzz", "overlong-utf8", b"a/\xc0\xaf\xe0\x80\xaf")
    put("names_fuzz", "surrogate-utf8", b"a\xed\xa0\x80b")


def make_manifest():
    body = storage.ManifestBody(files=FILES)
    whole = bytes_of(summary(size_bytes=9, file_count=2, metrics={"loss": 2.5}))

    def framed(head, rest):
        return b"\x01" + chunk(head) + bytes_of(rest)

    put("manifest_fuzz", "two-files", framed(whole, body))
    put("manifest_fuzz", "no-files", framed(bytes_of(summary()), storage.ManifestBody()))
    put("manifest_fuzz", "nan-and-negative-zero", framed(
        bytes_of(summary(size_bytes=9, file_count=2, metrics={"a": float("nan"), "b": -0.0})), body))
    put("manifest_fuzz", "unknown-fields", framed(whole + b"\xfa\x7f\x03abc", body))
    put("manifest_fuzz", "wrong-sum", framed(bytes_of(summary(size_bytes=8, file_count=2)), body))
    chunks = storage.ManifestBody(
        files=[storage.FileRecord(path="f", size_bytes=10, chunk_crc32c=[1, 2, 3])])
    put("manifest_fuzz", "three-chunks", framed(bytes_of(summary(size_bytes=10, file_count=1, chunk_bytes=4)), chunks))
    huge = storage.ManifestBody(files=[storage.FileRecord(path="f", size_bytes=2**63 - 1, chunk_crc32c=[1])])
    put("manifest_fuzz", "largest-size", framed(
        bytes_of(summary(size_bytes=2**63 - 1, file_count=1, chunk_bytes=2**31 - 1)), huge))
    rest = bytes_of(body)
    head = b"CKPTDMAN" + struct.pack("<IIIIQ", 1, len(whole), crc32c(whole), crc32c(rest), len(rest))
    head += struct.pack("<I", crc32c(head)) + whole
    put("manifest_fuzz", "a-file-as-it-is", b"\0" + head.ljust(4096, b"\0") + rest)


def make_record():
    part = storage.PartRecord(format_version=1, rank=0, sequence=7, chunk_bytes=8 << 20, files=FILES[:1])
    part.checkpoint.CopyFrom(summary(size_bytes=9, file_count=2))
    run = storage.RunRecord(format_version=1, run_id="r", uid=1000, path="/root", last_sequence=7, num_kept_ckpts=3)
    run.launches.add(launch_id="l", attempt=2, world_size=2, active=True, instances={0: "i", 1: "j"})
    run.outcomes.add(tag="t", ordinal=1, attempt=2, sequence=7, level=10, reason="IO_ERROR", message="ü", ranks=[0, 1])
    pins = storage.PinRecord(pins=[storage.Pin(tag="t", sequence=7)])
    swap = storage.SwapIntent(tag="t", inflight_name="t.7.0123456789abcdef", trash_name="t.6.0123456789abcdef", sequence=7)
    for kind, (name, magic, message) in enumerate(
        [("part", b"CKPTDPRT", part), ("run", b"CKPTDRUN", run), ("pins", b"CKPTDPIN", pins), ("swap", b"CKPTDSWP", swap)]
    ):
        content = bytes_of(message)
        put("record_fuzz", name, bytes([kind | 4]) + content)
        put("record_fuzz", name + "-empty-message", bytes([kind | 4]))
        frame = magic + struct.pack("<III", 1, len(content), crc32c(content)) + content
        put("record_fuzz", name + "-a-file-as-it-is", bytes([kind]) + frame)
    node = storage.NodePartRecord(format_version=1, node="n", incarnation="i", ranks=[0], files=FILES[:1])
    node.checkpoint.CopyFrom(summary(size_bytes=9, file_count=2))
    put("record_fuzz", "node-part", bytes([16 | 4]) + bytes_of(node))
    shared = storage.SharedRunRecord(format_version=1, term=1, number=2, pins=pins, run=run)
    put("record_fuzz", "shared-run", bytes([32 | 4]) + bytes_of(shared))
    put("record_fuzz", "run-not-utf8", b"\x05" + b"\x12\x02\xc3(")


def make_config():
    everything = """# all of it
socket_path: "/run/ckptd/ckptd.sock" socket_mode: "0660" socket_group: "0" state_directory: "/var/lib/ckptd"
pool { bytes: 1073741824 segment_bytes: 16777216 populate_ahead_bytes: 0 huge_pages: TRANSPARENT }
io { backend: BACKEND_THREADS chunk_bytes: 8388608 depth: 16 checksum_threads: 2 }
metrics { port: -1 } log { level: "debug" format: "json" }
drain_timeout_seconds: 0 max_sessions: 64 degraded_after_seconds: 10
"""
    texts = {"everything": everything, "empty": "", "unknown": "pool { bites: 5 }", "negative": "pool { bytes: -1 }"}
    texts["most"] = "pool { bytes: 9223372036854775807 } max_sessions: 2147483647 io { backend: 77 }"
    texts["escapes"] = 'socket_path: "/a\\n\\0\\xff" state_directory: "\\u00fc" socket_mode: "01777"'
    for name, text in texts.items():
        put("config_fuzz", name, text.encode())
    roots = 'roots { path: "/a" uid: 1000 gid: 1000 device: 5 inode: 7 groups: 4 groups: 5 }\nroots { path: "/b" }\n'
    put("known_roots_fuzz", "two", roots.encode())
    put("known_roots_fuzz", "unknown-field", b'later: 5 roots { path: "/a" inode: 1 more { x: 1 } }')
    put("known_roots_fuzz", "twice-the-same", b'roots { path: "/a" inode: 1 } roots { path: "/a" inode: 1 }')
    put("known_roots_fuzz", "empty", b"")


def make_handoff_client():
    def answers(question, *packets):
        return bytes([question]) + b"".join(bytes([count]) + chunk(data) for count, data in packets)

    def response(**fields):
        return bytes_of(handoff.HandoffResponse(id=1, **fields))

    hello = handoff.HelloResponse(version=1, token="0" * 32, daemon_instance="i", daemon_version="0.1.0")
    put("handoff_client_fuzz", "hello", answers(0, (0, response(hello=hello))))
    error = handoff.HandoffError(code=9, reason="ROOT_LOCKED", message="another daemon")
    put("handoff_client_fuzz", "attach-refused", answers(1, (0, response(error=error))))
    root = handoff.AttachRootResponse(root=RUN)
    put("handoff_client_fuzz", "attach-late-answer-first", answers(
        1, (3, bytes_of(handoff.HandoffResponse(id=0))), (0, response(attach_root=root))))
    segments = handoff.FetchSegmentsResponse()
    for i in range(3):
        segments.segments.add(id=i, size_bytes=4096)
    for count in (3, 2, 70):
        put("handoff_client_fuzz", f"three-segments-{count}-descriptors", answers(
            2 | 3 << 2, (count, response(fetch_segments=segments))))
    put("handoff_client_fuzz", "hello-in-place-of-segments", answers(2 | 3 << 2, (3, response(hello=hello))))
    put("handoff_client_fuzz", "goodbye", answers(3, (0, response(goodbye=handoff.GoodbyeResponse()))))
    put("handoff_client_fuzz", "empty-packet-with-descriptors", answers(3, (5, b"")))


def make_handoff_server():
    zero, directory, path_only, memory = 2, 0, 1, 3

    def session(*packets, greet=True):
        return bytes([greet]) + b"".join(bytes([ware | count << 2]) + chunk(data) for ware, count, data in packets)

    def request(number, **fields):
        return bytes_of(handoff.HandoffRequest(id=number, **fields))

    hello = handoff.Hello(min_version=1, max_version=1, client_instance="f" * 32, client_name="fuzz")
    attach = handoff.AttachRoot(path="/root")
    fetch = handoff.FetchSegments(ids=[1, 2, 99])
    goodbye = request(9, goodbye=handoff.Goodbye())
    put("handoff_server_fuzz", "all-of-it", session(
        (directory, 1, request(1, attach_root=attach)), (0, 0, request(2, fetch_segments=fetch)), (0, 0, goodbye)))
    put("handoff_server_fuzz", "hello-of-its-own", session((0, 0, request(1, hello=hello)), (0, 0, goodbye), greet=False))
    later = handoff.Hello(min_version=2, max_version=2**31 - 1, client_instance="f" * 32)
    put("handoff_server_fuzz", "later-version-then-this-one", session(
        (0, 0, request(1, hello=later)), (0, 0, request(2, hello=hello)), greet=False))
    put("handoff_server_fuzz", "wrong-descriptors", session(*[
        (ware, count, request(3, attach_root=attach)) for ware in (zero, path_only, memory) for count in (0, 1, 2)]))
    put("handoff_server_fuzz", "descriptors-with-everything", session(
        (directory, 63, request(4, fetch_segments=fetch)), (memory, 63, goodbye)))
    many = handoff.FetchSegments(ids=[5] * 65)
    put("handoff_server_fuzz", "too-many-segments", session((0, 0, request(5, fetch_segments=many))))
    put("handoff_server_fuzz", "before-hello", session((directory, 1, request(6, attach_root=attach)), greet=False))
    put("handoff_server_fuzz", "no-kind", session((0, 0, request(7)), (0, 0, b"\xff\xff"), greet=True))


def make_request():
    first, second = 0, 128
    join, begin, extend, seal, abort, wait, resume, open_, get, list_, write, tick, status = range(13)

    def history(*steps):
        return b"".join(bytes([what]) + chunk(data if isinstance(data, bytes) else bytes_of(data)) for what, data in steps)

    def key(tag, rank=0):
        return types.SaveKey(run=RUN, rank=rank, tag=tag, ordinal=1)

    def joined(rank=0, world=1, **fields):
        return messages.JoinRunRequest(root=RUN, rank=rank, world_size=world, launch_id="l", **fields)

    def file(size, path="f"):
        return messages.FileSpec(path=path, size_bytes=size)

    whole = messages.BeginRequest(key=key("t"), files=[file(100)], step=1, num_kept_ckpts=1, metrics={"loss": 1.5})
    sealed = messages.SealRequest(key=key("t"), files=[file(100)])
    waited = messages.WaitRequest(key=key("t"), level=types.COMMITTED)
    looked = [
        (get, messages.GetCheckpointRequest(name=RUN + "/checkpoints/t", view=messages.FULL)),
        (list_, messages.ListCheckpointsRequest(parent=RUN, show_all=True, page_size=1)),
        (status, b""),
    ]
    put("request_fuzz", "save", history(
        (join, joined()), (resume, messages.ResumeRequest(run=RUN)), (begin, whole), (write | 64, messages.WriteFileHeader(
            key=key("t"), path="f")), (seal, sealed), (wait, waited), *looked,
        (open_, messages.OpenCheckpointRequest(name=RUN + "/checkpoints/latest"))))
    two = [(first | join, joined(0, 2)), (second | join, joined(1, 2))]
    put("request_fuzz", "two-ranks", history(
        *two, (first | begin, messages.BeginRequest(key=key("t"), files=[file(3 << 20, "a")])),
        (second | begin, messages.BeginRequest(key=key("t", 1), files=[file(0, "b")])),
        (first | seal, messages.SealRequest(key=key("t"), files=[file(3 << 20, "a")])),
        (second | seal, messages.SealRequest(key=key("t", 1), files=[file(0, "b")])), (wait, waited)))
    put("request_fuzz", "same-file-twice", history(
        *two, (first | begin, whole), (second | begin, messages.BeginRequest(key=key("t", 1), files=[file(1, "f/g")]))))
    grow = messages.BeginRequest(key=key("t"), growing=True)
    for power in (21, 45, 53, 62):
        put("request_fuzz", f"grows-by-2-to-the-{power}", history(
            (join, joined()), (begin, grow), (extend, messages.ExtendRequest(key=key("t"), files=[file(1 << power)])),
            (write, messages.WriteFileHeader(key=key("t"), path="f")), (tick, b"\xff"), (tick, b"\xff")))
    put("request_fuzz", "two-ranks-of-2-to-the-62", history(
        *two, *[(rank << 7 | begin, messages.BeginRequest(key=key("t", rank), files=[file(1 << 62, f"f{rank}")]))
                for rank in (0, 1)]))
    put("request_fuzz", "abort-with-a-long-message", history(
        (join, joined()), (begin, whole), (abort, messages.AbortRequest(key=key("t"), message="x" + "ü" * 600)), *looked))
    put("request_fuzz", "orphans", history(
        (join, joined(orphaned=[key("o"), key("../x")])), (join, joined(orphaned=[key("o")])), *looked))
    put("request_fuzz", "resume-waits-for-an-older-attempt", history(
        (join, joined()), (begin, whole), (second | join, messages.JoinRunRequest(
            root=RUN, rank=0, world_size=1, launch_id="m")), (second | resume, messages.ResumeRequest(run=RUN)), (seal, sealed)))
    put("request_fuzz", "never-seals", history(
        (join, joined()), (begin, messages.BeginRequest(key=key("t"), files=[file(16 << 20)])),
        (write, messages.WriteFileHeader(key=key("t"), path="f")),
        (begin, messages.BeginRequest(key=key("u"), files=[file(100)])), *[(tick, b"\xff")] * 3, *looked))


def torch_object():
    base = torch.arange(6, dtype=torch.float32)
    weight = torch.nn.Parameter(base.reshape(2, 3))
    weight.tag = "x"
    state = collections.OrderedDict([("weight", weight), ("view", base[2:4]), ("bf16", torch.ones(2, dtype=torch.bfloat16))])
    state._metadata = {"": {"version": 1}}
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}]
    new = {"fp8": torch.zeros(3, dtype=torch.float8_e5m2), "empty": torch.empty(0), "step": torch.tensor(5)}
    return {"state": state, "groups": groups, "new": new, "dtype": torch.int64, "size": torch.Size([2, 3])}


def other_values():
    ints = [0, -1, 255, 65536, 2**63 - 1, -(2**63), 2**70]
    rest = [None, True, 1.5, "ü", b"\0\xff", b"", (), (1,), (1, 2, 3, 4), {1, 2}, frozenset([3]), 1 + 2j, bytearray(b"x")]
    held = [collections.Counter("ab"), collections.defaultdict(list, {1: [2]}), collections.deque([1], 3), range(3)]
    return {"ints": ints, "rest": rest, "held": held, "again": [ints, ints]}


def saved(obj, **options):
    buffer = io.BytesIO()
    torch.save(obj, buffer, **options)
    return buffer.getvalue()


def pickle_of(archive):
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return opened.read("archive/data.pkl")


def make_pickle():
    for protocol in range(6):
        put("pickle_fuzz", f"values-of-protocol-{protocol}", pickle.dumps(other_values(), protocol))
    tensors = torch.arange(6, dtype=torch.float32)
    for protocol in (2, 5):
        put("pickle_fuzz", f"tensors-of-protocol-{protocol}", pickle_of(saved([tensors, tensors[2:4].view(2, 1)], pickle_protocol=protocol)))
    put("pickle_fuzz", "tensor-without-a-storage-class", pickle_of(saved(torch.ones(12, dtype=torch.uint16))))
    put("pickle_fuzz", "parameter", pickle_of(saved(torch.nn.Parameter(tensors))))
    module = b"neuronx_distributed.trainer.checkpoint"
    put("pickle_fuzz", "reference", b"\x80\x02ctorch_xla.utils.serialization\nTensorReference\nq\0)\x81q\1}q\2X\3\0\0\0tidq\3K\7sb.")
    put("pickle_fuzz", "internal-reference", b"\x80\x02c" + module + b"\n_InternalTensorReference\n)\x81}(X\3\0\0\0tidK\3X\5\0\0\0shape]"
        b"K\2aX\5\0\0\0dtypectorch\nbfloat16\nX\x15\0\0\0expert_model_parallel\x89ub.")
    put("pickle_fuzz", "enumeration", b"\x80\x02c__builtin__\ngetattr\ncdeepspeed.runtime.zero.config\nZeroStageEnum\n"
        b"X\x09\0\0\0gradients\x86R.")
    put("pickle_fuzz", "os-system", b"\x80\x02cos\nsystem\nX\2\0\0\0id\x85R.")
    put("pickle_fuzz", "deep", b"\x80\x02" + b"(" * 40 + b"l" * 40 + b".")
    put("pickle_fuzz", "huge-count", b"\x80\x04\x8d" + b"\xff" * 8 + b"x.")
    put("pickle_fuzz", "laughs", b"\x80\x02]q\0" + b"".join(b"0](" + b"h%c" % i * 8 + b"eq%c" % (i + 1) for i in range(8)) + b".")
    put("pickle_fuzz", "cycle", b"\x80\x02]q\1h\1a.")


def make_dcp_metadata():
    states = {
        "flat": {"w": torch.ones(4, 3), "step": 7},
        "nested": {"m": {"w": torch.ones(2, dtype=torch.bfloat16)}, "o": [{"lr": 0.1}, torch.ones(())], "e": torch.ones(0, 2)},
    }
    for name, state in states.items():
        with tempfile.TemporaryDirectory() as folder:
            dcp.save(state, checkpoint_id=folder, no_dist=True)
            metadata = dcp.FileSystemReader(folder).read_metadata()
        metadata.storage_meta = StorageMeta(checkpoint_id=pathlib.PosixPath("in"), save_id="0", load_id="0")
        put("dcp_metadata_fuzz", name, pickle.dumps(metadata))
        # The reader knows one chunk for each rank.
        entry = next(iter(metadata.state_dict_metadata.values()))
        metadata.state_dict_metadata = {"w": entry}
        rows = [torch.Size([0, 0]), torch.Size([3, 0])]
        entry.size = torch.Size([5, 2])
        entry.chunks = [ChunkStorageMetadata(row, torch.Size([size, 2])) for row, size in zip(rows, (3, 2))]
        metadata.storage_data = {MetadataIndex("w", row): _StorageInfo("__0_0.distcp", 0, 9) for row in rows}
        put("dcp_metadata_fuzz", f"{name}-chunks", pickle.dumps(metadata))


def make_torch_archive():
    whole = saved(torch_object())
    put("torch_archive_fuzz", "state", whole)
    put("torch_archive_fuzz", "tensor", saved(torch.ones(3)))
    put("torch_archive_fuzz", "legacy", saved(torch.ones(3), _use_new_zipfile_serialization=False))
    for name, method in (("repacked", zipfile.ZIP_STORED), ("compressed", zipfile.ZIP_DEFLATED)):
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(saved(torch.ones(3)))) as old, zipfile.ZipFile(buffer, "w", method) as new:
            for record in old.namelist():
                new.writestr(record, old.read(record))
        put("torch_archive_fuzz", name, buffer.getvalue())


def make_safetensors():
    tensors = {"a": torch.ones(2, 3), "b/ü": torch.zeros(5, dtype=torch.bool), "c": torch.empty(0, 4, dtype=torch.float64)}
    put("safetensors_fuzz", "a-file-as-it-is", b"\0" + safetensors.torch.save(tensors, {"format": "pt", "note": "\n\""}))
    put("safetensors_fuzz", "empty", b"\0" + safetensors.torch.save({}))
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    headers = {"one": {"w": entry}, "hole": {"w": entry, "x": {**entry, "data_offsets": [5, 9]}}}
    headers["overlap"] = {"w": entry, "x": {**entry, "data_offsets": [3, 7]}}
    headers["packed"] = {"w": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}
    headers["huge"] = {"w": {"dtype": "F64", "shape": [2**33, 2**33], "data_offsets": [0, 4]}}
    headers["metadata"] = {"__metadata__": {"a": "b"}, "w": entry}
    for name, header in headers.items():
        put("safetensors_fuzz", name, b"\4" + json.dumps(header).encode())


def main():
    make_names()
    make_manifest()
    make_record()
    make_config()
    make_handoff_client()
    make_handoff_server()
    make_request()
    make_pickle()
    make_dcp_metadata()
    make_torch_archive()
    make_safetensors()


if __name__ == "__main__":
    main()
