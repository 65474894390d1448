"""What record.py says to a daemon: two ranks save, resume, read, and meet an error of each kind.

Each step is (session, method, request). A session is a name, or None for an operator. In strings, `$run`, `$root`, `$lease0`
... stand for what the daemon answered before: the run, the root's handle, the n-th lease.
"""

from __future__ import annotations

import base64
from typing import Any, Dict, Iterator, List, Tuple

Step = Tuple[Any, str, Any]
RANKS = ("rank0", "rank1")


def content(tag: str, rank: int) -> bytes:
    return f"{tag} of rank {rank} ".encode() * (300 + 100 * rank)


def key(tag: str, rank: int, ordinal: int = 1) -> Dict[str, Any]:
    return {"run": "$run", "rank": rank, "tag": tag, "ordinal": ordinal}


def begin(tag: str, rank: int, **more: Any) -> Step:
    file = {"path": f"model/rank{rank}.bin", "size_bytes": len(content(tag, rank))}
    return RANKS[rank], "Checkpoints.Begin", {"key": key(tag, rank), "files": [file], **more}


def write(tag: str, rank: int) -> Step:
    header = {"header": {"key": key(tag, rank), "path": f"model/rank{rank}.bin"}}
    data = {"data": base64.b64encode(content(tag, rank)).decode()}
    return RANKS[rank], "Checkpoints.WriteFile", [header, data]


def seal(tag: str, rank: int) -> Step:
    file = {"path": f"model/rank{rank}.bin", "size_bytes": len(content(tag, rank))}
    return RANKS[rank], "Checkpoints.Seal", {"key": key(tag, rank), "files": [file], "stall": "0.25s"}


def wait(tag: str, rank: int, level: str = "COMMITTED") -> Step:
    return RANKS[rank], "Checkpoints.Wait", {"key": key(tag, rank), "level": level, "timeout": "50s"}


def save(tag: str, step: int, **more: Any) -> Iterator[Step]:
    for rank in (0, 1):
        yield begin(tag, rank, step=step, **more)
    for rank in (0, 1):
        yield write(tag, rank)
    for rank in (0, 1):
        yield seal(tag, rank)
    for rank in (0, 1):
        yield wait(tag, rank)


def steps() -> List[Step]:
    operator = None
    found: List[Step] = []
    add = found.append
    for rank in (0, 1):
        add((RANKS[rank], "Checkpoints.OpenRoot", {"path": "$path"}))
        join = {"root": "$root", "run_id": "compat", "rank": rank, "world_size": 2, "launch_id": "first launch"}
        add((RANKS[rank], "Checkpoints.JoinRun", join))
    for rank in (0, 1):
        add((RANKS[rank], "Checkpoints.Resume", {"run": "$run", "rank": rank}))
    found += save("step-1", 1, metrics={"loss": 2.5}, pointers={"latest": "step-1"}, num_kept_ckpts=5)
    found += save("step-2", 2, metrics={"loss": 1.5}, pointers={"latest": "step-2"}, num_kept_ckpts=5)
    add((operator, "Admin.Pin", {"name": "$run/checkpoints/step-1"}))
    found += save("step-3", 3, busy="SUPERSEDE", pointers={"latest": "step-3"}, num_kept_ckpts=5)
    # Looking.
    add((RANKS[0], "Checkpoints.GetCheckpoint", {"name": "$run/checkpoints/step-2", "view": "FULL"}))
    add((RANKS[0], "Checkpoints.GetCheckpoint", {"name": "$run/checkpoints/latest"}))
    add((RANKS[1], "Checkpoints.ListCheckpoints", {"parent": "$run", "page_size": 2}))
    add((RANKS[1], "Checkpoints.ListCheckpoints", {"parent": "$run", "show_all": True, "show_foreign": True}))
    # Reading.
    open_request = {"name": "$run/checkpoints/step-3"}
    add((RANKS[0], "Checkpoints.OpenCheckpoint", open_request))
    add((RANKS[0], "Checkpoints.ReadFile", {"lease": "$lease0", "path": "model/rank1.bin"}))
    ranges = [{"offset": 3, "size_bytes": 5}, {"offset": 100, "size_bytes": 7}]
    add((RANKS[0], "Checkpoints.ReadFile", {"lease": "$lease0", "path": "model/rank0.bin", "ranges": ranges}))
    report = {"lease": "$lease0", "read_bytes": 10, "total_bytes": 20}
    add((RANKS[0], "Checkpoints.ReportReading", report))
    add((RANKS[0], "Checkpoints.CloseCheckpoint", {"lease": "$lease0"}))
    # Damage: an older checkpoint takes the place of the newest.
    damage = {"path": "model/rank0.bin", "chunk": 0, "expected": "1", "found": "2", "message": "a test says so"}
    request = {"name": "$run/checkpoints/step-3", "sequence": "1000003", "damage": damage}
    add((RANKS[0], "Checkpoints.ReportDamage", request))
    add((RANKS[0], "Checkpoints.GetCheckpoint", {"name": "$run/checkpoints/latest"}))
    # Errors, one of each kind.
    add((RANKS[0], "Checkpoints.Begin", {"key": {**key("../up", 0)}, "files": []}))
    add((RANKS[0], "Checkpoints.GetCheckpoint", {"name": "$run/checkpoints/none"}))
    add((RANKS[0], "Checkpoints.ReadFile", {"lease": "no-such-lease", "path": "f"}))
    add((RANKS[0], "Checkpoints.Seal", {"key": key("never-begun", 0)}))
    add((operator, "Admin.Pin", {"name": "$run/checkpoints/none"}))
    # A checkpoint of NeuronX Distributed becomes ours.
    add((operator, "Admin.AdoptCheckpoints", {"parent": "$run", "tags": ["nxd_7"]}))
    add((operator, "Admin.ListRuns", {}))
    # A save that is aborted.
    add(begin("step-4", 0, step=4))
    add((RANKS[1], "Checkpoints.Abort", {"name": "$run/checkpoints/step-4", "message": "the test wants it"}))
    add(wait("step-4", 0))
    return found
