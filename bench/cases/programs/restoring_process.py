"""A restarted job: restores what another process saved. Its last line of output is a JSON object with what it measured."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Dict, List

import ckptd
import torch

from bench.base import limits, training_state
from bench.base.pages import KINDS, TRANSPARENT, Memory
from bench.base.tensors import tensors_of

RANGES = 16  # How many slices one percent of a file is read in.


def save(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    files = training_state.training_state(options.size)
    run.save("state", files=files).wait("committed", timeout=120.0)
    return {"sums": sums(files)}


def load(checkpoint: Any, name: str, how: str, into: Any) -> Any:
    if how == "torch":
        return checkpoint.load(name, weights_only=False)  # So torch.load itself reads, as it always did in 0.1.0.
    return checkpoint.load(name, into=into if how == "into" else None, mmap=how == "mapped")


def resume(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    """Restores into the trainer's own tensors, into new ones, or by mapping. Measures memory copies of the same bytes before and
    after, and, for new tensors, a plain loop that copies into fresh pages. Both find memory that the host has given already, and
    copy out of pages like those that the restore copies out of.
    """
    ready = time.time()
    files = training_state.training_state(options.size)
    tensors = tensors_of(files)
    copy = limits.MemoryCopy(tensors, options.threads, options.pages, out=True)
    copies = [copy() for _ in range(2)]
    before = file_bytes("read_bytes")
    takes_memory = options.how in ("fresh", "torch")
    if takes_memory:
        limits.take_memory_from_host(copy.size)
    start = time.perf_counter()
    loaded = run.restore(lambda c: {name: load(c, name, options.how, files[name]) for name in c.files})
    seconds = time.perf_counter() - start
    disk = file_bytes("read_bytes") - before
    restored = sums(loaded)  # Before the copies, which overwrite the trainer's tensors.
    copies += [copy() for _ in range(2)]
    plain, source = [], Memory(copy.size, TRANSPARENT, shared=False) if options.private else copy.memory
    if takes_memory:
        limits.take_memory_from_host(copy.size)
        loop = limits.best_copy(copies).loop
        plain.append(limits.copy_into_fresh_pages(source, copy.size, options.threads, loop))
    return {
        "ready": ready,
        "bytes": copy.size,
        "seconds": seconds,
        "copies": copies,
        "pages": copy.pages(),
        "disk": disk,
        "plain": plain,
        "plain_pages": f"{source.describe()}, touched, to fresh private ones, huge where the kernel has them",
        "sums": restored,
    }


def ranges(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    """Reads one percent of the largest file, in slices far apart, and counts the bytes that it reads for that."""
    with run.open() as checkpoint:
        name = "optimizer.pt"
        size, chunk = checkpoint._sizes[name], checkpoint._source.summary.chunk_bytes
        piece = size // 100 // RANGES
        wanted = [(name, at * (size // RANGES), piece) for at in range(RANGES)]
        touched = {
            index
            for _, offset, n in wanted
            for index in range(offset // chunk, (offset + n - 1) // chunk + 1)
        }
        before = file_bytes("rchar")
        checkpoint.read_ranges(wanted)
        read = file_bytes("rchar") - before
    return {"read": read, "touched": len(touched) * chunk, "size": size, "ranges": RANGES}


def again(run: Any, options: argparse.Namespace) -> Dict[str, Any]:
    """Restores once for each line on stdin, "background" or anything else, and answers with a line."""
    files = training_state.training_state(options.size)
    for line in sys.stdin:
        start = time.perf_counter()
        with run.open(background=line.strip() == "background") as checkpoint:
            for name in checkpoint.files:
                checkpoint.load(name, into=files[name])
        print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
    return {}


def sums(files: Any) -> List[int]:
    """A checksum of each tensor."""
    return [
        int(tensor.view(-1).view(torch.int32).sum()) for tensor in tensors_of(dict(sorted(files.items())))
    ]


def file_bytes(what: str) -> int:
    """A counter of this process: rchar, the bytes that it has read; read_bytes, those of them that came from the disk."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith(f"{what}:")).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["save", "resume", "ranges", "again"])
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of the copy that the restore is held against")
    parser.add_argument(
        "--how",
        choices=["into", "fresh", "torch", "mapped"],
        default="into",
        help="the trainer's own tensors, new ones, new ones read by torch.load, or mapped memory",
    )
    parser.add_argument("--pages", choices=KINDS, default=TRANSPARENT, help="of the daemon's pool")
    parser.add_argument("--private", action="store_true", help="the plain loop copies out of private memory")
    options = parser.parse_args()
    run = ckptd.connect(options.endpoint).run(options.root, rank=0, world_size=1)
    work = {"save": save, "resume": resume, "ranges": ranges, "again": again}[options.what]
    print(json.dumps(work(run, options)))


if __name__ == "__main__":
    main()
