"""Archives in torch's format that were changed at random, as by somebody who wants to harm whoever loads them.

A checkpoint's checksums say nothing about its author: they are of the bytes that were saved. So whatever the bytes,
Checkpoint.load(weights_only=True) must return what torch.load returns, or raise.

As a program it tries fresh seeds for some seconds, in children, and prints each seed that ends one or differs:

    archive_mutations.py --seconds=3600 [--first=SEED] [--jobs=N]
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import io
import pathlib
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any, Callable, Dict, List, Tuple

import ckptd
import torch
from checkpoint_files import saved, write_checkpoint

_MAX_MEMORY = 16 << 30  # Of address space: an archive can ask for any size, such as that of a bytearray.
_BATCH = 200  # Seeds of one child.
_STORAGES = (torch.ByteStorage, torch.FloatStorage, torch.DoubleStorage, torch.UntypedStorage)
_NUMBERS = (0, 1, 2, 3, 8, 15, 16, 17, 64, 100, 1000, 1 << 20, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, -1, -8)


class Reference:
    """Pickled as a reference to a storage record that says whatever the test wants."""

    def __init__(self, kind: Any, key: str, count: Any, location: str = "cpu") -> None:
        self.said = ("storage", kind, key, location, count)


class Call:
    """Pickled as a call of a function that makes an object."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.said if isinstance(obj, Reference) else None


def archive(state: Any, records: Dict[str, bytes], small: Dict[str, bytes]) -> bytes:
    """Returns an archive with any pickle and any records, as torch's own writer lays it out."""
    pickled, out = io.BytesIO(), io.BytesIO()
    _Pickler(pickled, 2).dump(state)
    writer: Any = torch._C.PyTorchFileWriter(out)
    usual = {".format_version": b"1", ".storage_alignment": b"64", "byteorder": b"little"}
    for name, data in {"data.pkl": pickled.getvalue(), **usual, **small, **records}.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return out.getvalue()


def _tensor(random_: random.Random, key: str, size: int) -> Any:
    """Returns a tensor of a record of `size` bytes; often with one thing about it that is not true."""
    kind = random_.choice(_STORAGES)
    item = {torch.FloatStorage: 4, torch.DoubleStorage: 8}.get(kind, 1)
    count: Any = size // item
    shape: List[Any] = [count]
    strides: List[Any] = [1]
    offset: Any = 0
    lie = random_.randrange(9)
    if lie == 0:
        count = random_.choice(_NUMBERS)
    elif lie == 1:
        shape = [count * 2]
        count *= 2
    elif lie == 2:
        shape = [random_.choice(_NUMBERS)]
    elif lie == 3:
        # No negative stride: on the meta device torch takes others in its place, which lie within the storage, too.
        shape, strides = [2, random_.choice(_NUMBERS)], [abs(random_.choice(_NUMBERS)), 1]
    elif lie == 4:
        offset = random_.choice(_NUMBERS)
    elif lie == 5:
        key = random_.choice(("0", "1", "7", "../version", "x"))
    elif lie == 6:
        shape = [max(0, count // 2)]
        count = count // 2
    reference = Reference(kind, key, count, random_.choice(("cpu", "cpu", "cuda:0", "meta")))
    hooks: Any = collections.OrderedDict()
    if kind is torch.UntypedStorage:
        dtype = random_.choice((torch.uint8, torch.uint16, torch.float8_e4m3fn))
        made = Call(torch._utils._rebuild_tensor_v3, reference, offset, tuple(shape), tuple(strides), False, hooks, dtype)
    else:
        made = Call(torch._utils._rebuild_tensor_v2, reference, offset, tuple(shape), tuple(strides), False, hooks)
    if random_.random() < 0.1:
        made = Call(torch._utils._rebuild_parameter, made, False, hooks)
    return made


def _lying(random_: random.Random) -> bytes:
    """Returns an archive whose references say other things than its records."""
    sizes = {str(number): random_.choice((0, 8, 16, 64, 100, 4096)) for number in range(random_.randrange(1, 4))}
    records = {f"data/{key}": random_.randbytes(size) for key, size in sizes.items()}
    tensors = [_tensor(random_, *random_.choice(list(sizes.items()))) for _ in range(random_.randrange(1, 6))]
    state: Any = {str(number): tensor for number, tensor in enumerate(tensors)}
    if random_.random() < 0.2:
        state = {"nested": [state, (tensors[0],)], "n": 1}
    small: Dict[str, bytes] = {}
    if random_.random() < 0.15:
        small[".storage_alignment"] = random_.choice((b"0", b"1", b"4096", b"-64", b"x"))
    if random_.random() < 0.15:
        small["byteorder"] = random_.choice((b"big", b"", b"\xff", b"native"))
    if random_.random() < 0.1:
        small[".format_version"] = random_.choice((b"0", b"2", b""))
    if random_.random() < 0.2:
        records = dict(reversed(records.items()))
    return archive(state, records, small)


def _bent(random_: random.Random) -> "Tuple[bytes, bool]":
    """Returns an archive that torch.save wrote, with some bytes of the pickle and of what follows it changed, or some of
    the directory, and whether it was the pickle. Not of the storages' local headers: ckptd finds the storages by the
    directory, and torch by the headers.
    """
    shared = torch.arange(40.0)
    state = {
        "a": torch.arange(12.0).reshape(3, 4).t(),
        "tied": [shared, shared[3:9]],
        "p": torch.nn.Parameter(torch.ones(5)),
        "i": torch.arange(7),
        "ordered": collections.OrderedDict(x=torch.ones(2, dtype=torch.bfloat16)),
        "empty": torch.empty(0, 3),
        "n": [1, 2.5, "text", None, True],
    }
    data = bytearray(saved(state))
    # Up to the first local header of a storage, of which the name comes after 30 bytes.
    pickled = data.index(b"\x80\x02"), data.index(b"archive/data/0") - 30
    directory = data.index(b"PK\x01\x02"), len(data)
    place = directory if random_.random() < 0.3 else pickled
    for _ in range(random_.randrange(1, 4)):
        at = random_.randrange(*place)
        data[at] = random_.choice((data[at] ^ (1 << random_.randrange(8)), random_.randrange(256), 0, 255))
    return bytes(data), place is pickled


def mutated(seed: int) -> "Tuple[bytes, bool]":
    """Returns an archive, and whether torch's reader of archives can be relied on: it believes a bent directory, and gives
    bytes of elsewhere.
    """
    random_ = random.Random(seed)
    return (_lying(random_), True) if random_.random() < 0.6 else _bent(random_)


def _shown(value: Any) -> Any:
    """Returns what a loaded state is, in a form that can be compared."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride())) if value.numel() else 0
        if value.device.type == "cpu" and extent:
            reach = (value.storage_offset() + extent) * value.element_size()
            assert reach <= storage.nbytes(), f"a tensor reaches {reach - storage.nbytes()} bytes beyond its memory"
            content = bytes(value.detach().clone(memory_format=torch.contiguous_format).view(torch.uint8).flatten().tolist()) if value.dim() else b""
        else:
            content = b""
        form = (str(value.device), str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad)
        return type(value).__name__, form, content
    if isinstance(value, dict):
        return type(value).__name__, [(_shown(key), _shown(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_shown(each) for each in value]
    return type(value).__name__, repr(value)


def _outcome(load: "Callable[[], Any]") -> "Tuple[bool, Any]":
    """Returns (True, what was loaded) or (False, the error)."""
    try:
        value = load()
    except Exception as error:
        return False, error
    return True, _shown(value)


def by_torch(data: bytes) -> "Tuple[bool, Any]":
    return _outcome(lambda: torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))


def by_ckptd(data: bytes, folder: pathlib.Path) -> "Tuple[bool, Any]":
    write_checkpoint(folder, "a", 1, {"m.pt": data})
    with ckptd.open_root(folder).open() as checkpoint:
        return _outcome(lambda: checkpoint.load("m.pt"))


def check(seed: int) -> None:
    """Raises AssertionError if ckptd loads something else than torch, or a tensor over memory that is not its own."""
    data, is_comparable = mutated(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = by_ckptd(data, pathlib.Path(folder))
        theirs = by_torch(data) if is_comparable else ours
    assert ours[0] == theirs[0], f"seed {seed}: torch gives {theirs}, ckptd {ours}"
    assert not ours[0] or ours[1] == theirs[1], f"seed {seed}: torch loads {theirs[1]}, ckptd {ours[1]}"


# ---- the program


def _run_batch(first: int, count: int, only_torch: bool = False) -> "Tuple[int, str]":
    """Tries seeds in a child. Returns (how many it has done, what it said)."""
    command = [sys.executable, "-X", "faulthandler", __file__, f"--first={first}", f"--batch={count}"]
    command += ["--only-torch"] if only_torch else []
    child = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    return child.stdout.count("done\n"), "" if child.returncode == 0 else f"exit {child.returncode}\n{child.stderr[-3000:]}"


def _batch(first: int, count: int, only_torch: bool) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    for seed in range(first, first + count):
        if only_torch:
            by_torch(mutated(seed)[0])
        else:
            check(seed)
        print("done", flush=True)


def _fuzz(first: int, seconds: float, jobs: int) -> int:
    deadline, tried, failed = time.monotonic() + seconds, 0, []
    print(f"seeds from {first} on", flush=True)

    def follow(begin: int) -> int:
        at = begin
        while at < begin + _BATCH:
            done, said = _run_batch(at, begin + _BATCH - at)
            at += done
            if said:
                # Where torch alone ends the process, too, there is nothing to compare with.
                if not _run_batch(at, 1, only_torch=True)[1]:
                    failed.append(at)
                    print(f"seed {at}: {said}", flush=True)
                at += 1
        return _BATCH

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        while time.monotonic() < deadline and not failed:
            tried += sum(pool.map(follow, range(first + tried, first + tried + jobs * _BATCH, _BATCH)))
    print(f"{tried} archives, {len(failed)} failures")
    return 1 if failed else 0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--first", type=int, default=int(time.time()) * 1000)
    arguments.add_argument("--jobs", type=int, default=1)
    arguments.add_argument("--batch", type=int, default=0, help=argparse.SUPPRESS)
    arguments.add_argument("--only-torch", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.batch:
        _batch(given.first, given.batch, given.only_torch)
        return 0
    return _fuzz(given.first, given.seconds, given.jobs)


if __name__ == "__main__":
    sys.exit(main())
