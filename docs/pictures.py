#!/usr/bin/env python3
"""Draws the pictures of the README and of docs/architecture.md, and writes the lists of steps beside them.

docs/pictures.py            writes timeline.svg, layers.svg, save.svg, restore.svg, the lists of steps and the README's alt text
docs/pictures.py --check    writes nothing; exits 1 and names what is out of date (tests/docs/test_pictures.py)

A step has one place in the picture and one line in its list: both come from the lists below. The timeline has the
figures of docs/performance.md, where `tools/bench compare --docs` puts them.
"""

from __future__ import annotations

import pathlib
import re
import sys
import textwrap
from html import escape
from typing import Dict, List, NamedTuple, Sequence, Tuple

DOCS = pathlib.Path(__file__).resolve().parent

# The threads between which a save and a restore go to and fro.
LANES = ("trainer", "gRPC, hand-off", "engine", "metadata worker", "I/O thread", "disk")
TRAINER, FRONT, ENGINE, META, IO, DISK = LANES


class Step(NamedTuple):
    source: str
    target: str  # The source again: it works by itself.
    words: str  # In the picture.
    what: str  # In the list.
    files: Tuple[str, ...]


SAVE = [
    Step(
        TRAINER,
        ENGINE,
        "Begin(key, files)",
        "The client names its save and the sizes of its files. The service checks who calls.",
        (
            "client/python/ckptd/_saving/upload.py",
            "client/cpp/saving.cc",
            "daemon/grpc/checkpoints_service.cc",
        ),
    ),
    Step(
        ENGINE,
        ENGINE,
        "admit the whole save",
        (
            "The ledger gives the sequence. The engine reserves memory and disk space for all ranks at once, "
            "lets the save wait, or refuses it."
        ),
        (
            "daemon/engine/admission/admission_queue.cc",
            "storage/ledger/local_ledger.cc",
            "daemon/memory/segment_claims.cc",
        ),
    ),
    Step(
        ENGINE,
        META,
        "make the directory",
        "Commit step 1: a new directory.",
        ("daemon/root_io/threaded_root_io.cc", "storage/commit/local/root_store.cc"),
    ),
    Step(
        ENGINE,
        TRAINER,
        "segments, placements",
        "Begin is answered: the part's segments, and where in them each file goes.",
        ("daemon/engine/admission/part_grants.cc",),
    ),
    Step(
        TRAINER,
        FRONT,
        "fetch descriptors",
        "The client maps segments that it has not mapped yet; from the second save on there are none.",
        (
            "daemon/handoff/handoff_requests.cc",
            "client/python/ckptd/_session/segments.py",
            "client/cpp/memory/mapping.cc",
        ),
    ),
    Step(
        TRAINER,
        TRAINER,
        "copy into segments",
        "The one copy that training waits for.",
        (
            "client/python/ckptd/_memory/image.py",
            "client/cpp/memory/copy.cc",
            "storage/base/memory/streaming_copy.cc",
        ),
    ),
    Step(
        TRAINER,
        ENGINE,
        "Seal",
        (
            "The part is STAGED, and training continues. The seal journal has the save before the last rank "
            "gets SEALED."
        ),
        ("daemon/engine/save/save_tracker.cc", "daemon/succession/seal_journal.cc"),
    ),
    Step(
        ENGINE,
        IO,
        "write the part",
        "When all ranks have sealed, or one second after the first, the sealed parts go to the I/O thread.",
        ("daemon/engine/save/member_files.cc", "daemon/root_io/threads/file_system_workers.cc"),
    ),
    Step(
        IO,
        DISK,
        "write, CRC32C, sync",
        "Commit step 2: direct writes; the checksum threads compute each chunk's CRC32C.",
        (
            "storage/io/part_writer.cc",
            "storage/io/uring_queue.cc",
            "storage/io/thread_queue.cc",
            "storage/io/checksum_pool.cc",
        ),
    ),
    Step(
        META,
        DISK,
        "part record",
        "Commit step 3: the part record. The part is durable.",
        ("storage/commit/local/root_store.cc", "storage/commit/checkpoint/disk_file.cc"),
    ),
    Step(
        ENGINE,
        META,
        "publish",
        "All parts are durable, and no older save of the tag is under way.",
        ("daemon/engine/save/publisher.cc",),
    ),
    Step(
        META,
        DISK,
        "manifest, syncs, rename",
        "Commit steps 4 to 6: manifest, syncs, rename, pointer files.",
        ("storage/commit/local/publish.cc", "storage/format/manifest.cc", "storage/commit/steps/pointers.cc"),
    ),
    Step(
        ENGINE,
        TRAINER,
        "COMMITTED",
        "Every Wait is answered. The segments stay as a resident copy.",
        ("daemon/engine/save/save_tracker.cc", "daemon/engine/reading/resident_cache.cc"),
    ),
    Step(
        ENGINE,
        META,
        "evict old checkpoints",
        "Commit step 7: retention renames victims to trash; the scrubber deletes them.",
        ("daemon/engine/retention/retention.cc", "storage/commit/local/trash.cc"),
    ),
]

RESTORE = [
    Step(
        TRAINER,
        ENGINE,
        "JoinRun, Resume",
        "The client joins with its rank and launch.",
        (
            "client/python/ckptd/run.py",
            "client/cpp/run.cc",
            "daemon/engine/resume/run_joiner.cc",
            "daemon/engine/resume/resume_barrier.cc",
        ),
    ),
    Step(
        ENGINE,
        META,
        "decide, remember",
        (
            "When the sealed saves of older attempts are published, the ledger decides for all ranks of the "
            "attempt, and stores that in the run record."
        ),
        (
            "daemon/engine/resume/resume_barrier.cc",
            "storage/ledger/local_ledger.cc",
            "storage/commit/steps/records.cc",
        ),
    ),
    Step(
        META,
        DISK,
        "open the checkpoint",
        (
            "The store reads the manifest and compares the sizes of all files. Damage leads to the next "
            "older checkpoint."
        ),
        (
            "daemon/root_io/threaded_root_io.cc",
            "storage/commit/local/root_store.cc",
            "storage/commit/checkpoint/checkpoint_dir.cc",
        ),
    ),
    Step(
        ENGINE,
        TRAINER,
        "checkpoint, lease",
        "The lease keeps the checkpoint until the rank has read it.",
        ("daemon/engine/reading/lease_table.cc",),
    ),
    Step(
        TRAINER,
        ENGINE,
        "LocateFiles",
        "The check threads compare a resident copy with the checksums before a reader gets it.",
        (
            "daemon/engine/reading/resident_cache.cc",
            "storage/io/check_images.cc",
            "daemon/engine/reading/prefetcher.cc",
        ),
    ),
    Step(
        TRAINER,
        FRONT,
        "fetch descriptors",
        "The client copies out of the segments, or maps them for good.",
        (
            "daemon/handoff/handoff_requests.cc",
            "client/python/ckptd/_reading/resident_files.py",
            "client/cpp/reading/resident_files.cc",
        ),
    ),
    Step(
        TRAINER,
        DISK,
        "read, compare CRC32C",
        "The client reads the other files itself, past the page cache, or over gRPC, and checks every chunk.",
        (
            "storage/io/verified_read.cc",
            "client/python/ckptd/_reading/verified_file.py",
            "client/cpp/checkpoint.cc",
            "daemon/grpc/calls/read_file_call.cc",
        ),
    ),
    Step(
        TRAINER,
        ENGINE,
        "FinishResume",
        "The rank has read its part, has found damage, or has failed.",
        ("client/python/ckptd/_reading/read_reports.py", "daemon/engine/resume/resume_barrier.cc"),
    ),
    Step(
        ENGINE,
        META,
        "remember: all read",
        (
            "The ledger records that every rank has finished. On damage the mark in .ckptd/damaged is "
            "durable first, and all ranks go back to step 1."
        ),
        (
            "daemon/engine/resume/resume_barrier.cc",
            "storage/ledger/local_ledger.cc",
            "storage/commit/steps/records.cc",
        ),
    ),
    Step(
        ENGINE,
        TRAINER,
        "OK, on all ranks",
        "Every rank continues training. The lease is released.",
        ("daemon/engine/resume/resume_barrier.cc", "daemon/engine/reading/lease_table.cc"),
    ),
]

SEQUENCES: Dict[str, List[Step]] = {"save": SAVE, "restore": RESTORE}

# From top to bottom: what each layer may use lies below it.
LAYERS: List[Tuple[str, List[Tuple[str, str]]]] = [
    ("client/", [("python", "the package ckptd"), ("ckptctl", "the command line")]),
    (
        "client/",
        [
            ("python/native", "C for Python"),
            ("sdk", "the C++ library, for other trees"),
            ("ckptctl/convert", "arguments, output"),
            ("ckptctl/debug", "bug reports"),
        ],
    ),
    ("client/", [("ckptctl/commands", "what asks the daemon or reads a root")]),
    ("client/", [("ckptctl/mounts", "of this machine")]),
    (
        "client/",
        [("ckptctl/text", "names, tables"), ("cpp", "the C++ client"), ("convert", "paths, checked input")],
    ),
    ("client/cpp/", [("reading", "ranges, resident files")]),
    ("client/cpp/", [("session", "calls, descriptors")]),
    ("client/cpp/", [("memory", "mapped segments, copies")]),
    ("client/convert/", [("deepspeed", "to universal, to weights"), ("nxd", "ZeRO-1"), ("tensors", "lists them")]),
    ("client/convert/", [("deepspeed/shards", "of tensor and expert parallel ranks"), ("dcp", "both ways")]),
    ("client/convert/", [("deepspeed/state", "moments, values, tags")]),
    ("client/convert/", [("files", "archives in, files out")]),
    ("client/", [("formats/torch", ".pt files"), ("formats/safetensors", "safetensors files")]),
    ("client/", [("formats", "byte sources, dtypes")]),
    ("daemon/", [("runtime", "the program: assembles the rest")]),
    (
        "daemon/runtime/",
        [
            ("start", "known roots, kept descriptors"),
            ("cluster", "as one of several nodes"),
            ("process", "this machine"),
        ],
    ),
    (
        "daemon/",
        [
            ("grpc", "services"),
            ("handoff", "descriptors"),
            ("log", "log lines"),
            ("systemd", "notify, store"),
            ("cluster", "a run over nodes"),
        ],
    ),
    (
        "daemon/",
        [("grpc/calls", "unary calls, streams"), ("cluster/coordinator", "decides, publishes and removes")],
    ),
    ("daemon/", [("grpc/base", "limits, errors"), ("cluster/node", "what each node reports and asks")]),
    (
        "daemon/",
        [
            ("sessions", "who calls"),
            ("attach", "which roots"),
            ("root_io", "engine to storage"),
            ("history", "what has happened"),
            ("upload", "to buckets"),
            ("metrics", "/metrics"),
        ],
    ),
    (
        "daemon/root_io/",
        [("local", "roots of one node"), ("bucket", "in a bucket"), ("shared", "roots of several")],
    ),
    ("daemon/root_io/", [("common", "what is done alike in all")]),
    (
        "daemon/",
        [
            ("engine", "the façade over the folders below, on one thread"),
            ("root_io/threads", "of each file system"),
        ],
    ),
    ("daemon/engine/", [("save", "a save from Begin to its end"), ("resume", "joining a run, and resuming")]),
    (
        "daemon/engine/",
        [
            ("admission", "room for a save"),
            ("retention", "what stays"),
            ("roots", "opening and scanning"),
            ("upload", "what is copied to a bucket"),
            ("reading", "leases, copies, damage"),
        ],
    ),
    ("daemon/engine/", [("run", "the state of runs and saves")]),
    ("daemon/engine/", [("seams", "what the engine asks of the outside world")]),
    ("daemon/ledger/", [("run", "launches and resumes"), ("save", "admission, reports, publication")]),
    ("daemon/ledger/", [("state", "a run as read from etcd")]),
    ("daemon/ledger/", [("nodes", "who lives, who leads")]),
    ("daemon/ledger/", [("keys", "the keys of etcd")]),
    ("daemon/", [("succession", "from one daemon to the next"), ("etcd/grpc", "etcd over gRPC")]),
    (
        "daemon/",
        [
            ("memory", "the pool"),
            ("base", "loops, workers"),
            ("config", "the configuration"),
            ("etcd", "what it is asked"),
        ],
    ),
    (
        "storage/commit/",
        [("local", "a root of one node"), ("bucket", "in a bucket"), ("shared", "of several nodes")],
    ),
    ("storage/", [("bucket", "checkpoints in a bucket")]),
    ("storage/commit/shared/", [("save", "in flight, published, removed")]),
    ("storage/commit/shared/", [("trials", "what nodes try together")]),
    ("storage/commit/shared/", [("run", "its id, record and term")]),
    ("storage/commit/", [("steps", "steps and checks of any root")]),
    ("storage/commit/", [("checkpoint", "its directory, read and verified")]),
    ("storage/", [("io", "I/O queues"), ("ledger", "attempts, sequences"), ("object", "one bucket")]),
    ("storage/", [("fs", "file systems"), ("format", "manifests, names")]),
    (
        "storage/",
        [("base", "errors, clocks"), ("base/checksums", "CRC32C"), ("base/memory", "fresh memory, copies")],
    ),
    ("proto/", [("ckptd/v1", "wire"), ("ckptd/config/v1", "configuration"), ("ckptd/storage/v1", "disk")]),
]

INK, LINE, FILL, PAPER, STALL = "#1b2430", "#5b6b7f", "#e8eef6", "#ffffff", "#d95f02"
FONT = 'font-family="Helvetica, Arial, sans-serif"'


def text(
    x: float, y: float, words: str, size: int = 13, anchor: str = "middle", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{INK}">{escape(words)}</text>'
    )


def document(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" {FONT}>',
            f"<title>{escape(title)}</title>",
            f'<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
            f'<path d="M0,0 L9,4 L0,8 z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def sequence(title: str, steps: Sequence[Step]) -> str:
    lane, top, row = 165, 52, 42
    middle = {name: 82 + lane * number for number, name in enumerate(LANES)}
    width, height = lane * len(LANES), top + row * len(steps) + 24
    parts = []
    for name in LANES:
        x = middle[name]
        parts.append(
            f'<line x1="{x}" y1="44" x2="{x}" y2="{height - 8}" stroke="{LINE}" stroke-dasharray="3 4"/>'
        )
        parts.append(
            f'<rect x="{x - 70}" y="12" width="140" height="32" rx="4" fill="{FILL}" stroke="{LINE}"/>'
        )
        parts.append(text(x, 33, name, 14, weight="bold"))
    for number, step in enumerate(steps, 1):
        y = top + row * number - 8
        start, end = middle[step.source], middle[step.target]
        if start == end:
            parts.append(
                f'<rect x="{start - 70}" y="{y - 18}" width="140" height="26" rx="4" fill="{FILL}" stroke="{LINE}"/>'
            )
            parts.append(text(start, y, step.words, 12))
            parts.append(badge(start - 70, y - 18, number))
            continue
        along = 1 if end > start else -1
        parts.append(
            f'<line x1="{start + 12 * along}" y1="{y}" x2="{end - 2 * along}" y2="{y}" stroke="{LINE}" '
            f'stroke-width="1.5" marker-end="url(#tip)"/>'
        )
        parts.append(text((start + end) / 2, y - 6, step.words, 12))
        parts.append(badge(start, y, number))
    return document(width, height, title, parts)


def badge(x: float, y: float, number: int) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="11" fill="{PAPER}" stroke="{LINE}"/>' + text(
        x, y + 4, str(number), 12
    )


def layers() -> str:
    left, width, row = 130, 990, 54
    parts = []
    for number, (folder, boxes) in enumerate(LAYERS):
        y = 10 + row * number
        if number == 0 or LAYERS[number - 1][0] != folder:
            parts.append(text(14, y + 28, folder, 14, "start", "bold"))
        each = (width - left - 10) / len(boxes)
        for at, (name, words) in enumerate(boxes):
            x = left + each * at
            parts.append(
                f'<rect x="{x:g}" y="{y}" width="{each - 8:g}" height="44" rx="4" fill="{FILL}" stroke="{LINE}"/>'
            )
            parts.append(text(x + each / 2 - 4, y + 19, name, 14, weight="bold"))
            parts.append(text(x + each / 2 - 4, y + 35, words, 12))
    return document(width, 10 + row * len(LAYERS) + 4, "Layers: each may use those below it", parts)


class Contender(NamedTuple):
    name: str
    stall: str  # Seconds for which training stands still, as the table of docs/performance.md writes them.
    durable: str  # Seconds from the call until the checkpoint is durable.


def timings() -> Tuple[str, List[Contender]]:
    """What was saved, and the contenders of the timeline: of the first table of docs/performance.md."""
    page = (DOCS / "performance.md").read_text()
    measured = page.partition("<!-- tools/bench compare: begin -->")[2].partition(
        "<!-- tools/bench compare: end -->"
    )[0]
    saved = re.search(r"^(\d+ ranks, \d+ MB each)", measured, re.MULTILINE)
    rows = [
        [cell.strip(" `*") for cell in row.split("|")[1:-1]]
        for row in re.findall(r"^\|.+\|$", measured, re.MULTILINE)
    ]
    if saved is None or not rows:
        raise SystemExit("docs/performance.md has no figures between its marks")
    stall, durable = rows[0].index("stall"), rows[0].index("durable after")
    found: Dict[str, Contender] = {}  # The first table is that of the GPT with AdamW.
    for row in rows:
        numbers = [row[column].partition(" ")[0].strip("*") for column in (stall, durable)]
        found.setdefault(row[0], Contender(row[0], *numbers))
    return saved[1], [found[name] for name in ("torch.save", "dcp.async_save", "ckptd")]


def timeline() -> str:
    saved, contenders = timings()
    left, right, top, row, bar = 150, 880, 64, 58, 24
    longest = max(float(contender.durable) for contender in contenders)
    scale = (right - left) / longest
    parts = [
        text(14, 28, f"One save: {saved}", 15, "start", "bold"),
        f'<rect x="{left + 320}" y="16" width="24" height="14" fill="{STALL}"/>',
        text(left + 352, 28, "training stands still", 13, "start"),
        f'<rect x="{left + 500}" y="16" width="24" height="14" fill="{FILL}" stroke="{LINE}"/>',
        text(left + 532, 28, "training goes on, not yet durable", 13, "start"),
    ]
    for number, contender in enumerate(contenders):
        y = top + row * number
        stall, durable = float(contender.stall) * scale, float(contender.durable) * scale
        parts.append(text(14, y + 17, contender.name, 14, "start", "bold"))
        parts.append(
            f'<rect x="{left}" y="{y}" width="{durable:g}" height="{bar}" fill="{FILL}" stroke="{LINE}"/>'
        )
        parts.append(f'<rect x="{left}" y="{y}" width="{stall:g}" height="{bar}" fill="{STALL}"/>')
        words = f"stands still {contender.stall} s, durable after {contender.durable} s"
        parts.append(text(left, y + bar + 16, words, 13, "start"))
    return document(right + 20, top + row * len(contenders), "A save as a timeline", parts)


def timeline_image() -> str:
    """The README's line that shows the timeline; the text in it is for those who see no picture."""
    saved, contenders = timings()
    said = "; ".join(f"{each.name}: {each.stall} s, {each.durable} s" for each in contenders)
    return f"![One save ({saved}): how long training stands still, and when it is durable. {said}](docs/timeline.svg)"


def steps_list(steps: Sequence[Step]) -> str:
    """The steps as a list, with the thread and the files of each."""
    rows = []
    for number, step in enumerate(steps, 1):
        where = ", ".join(f"`{file}`" for file in step.files)
        row = f"{number}. *{step.source}*: {step.what} ({where})"
        rows.append(textwrap.fill(row, 118, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False))
    return "\n".join(rows)


def filled(path: pathlib.Path, pieces: Dict[str, str]) -> str:
    """The page with the pieces of today, each between the marks of its name."""
    page = path.read_text()
    for name, piece in pieces.items():
        begin, end = f"<!-- docs/pictures.py: begin {name} -->", f"<!-- docs/pictures.py: end {name} -->"
        marked = re.compile(f"{begin}\n.*?{end}", re.DOTALL)
        page, count = marked.subn(lambda _, to=f"{begin}\n{piece}\n{end}": to, page)
        if count != 1:
            raise SystemExit(f"{path.name} has {count} places for {name}, and not one")
    return page


def outputs() -> Dict[pathlib.Path, str]:
    readme, page = DOCS.parent / "README.md", DOCS / "architecture.md"
    return {
        DOCS / "timeline.svg": timeline(),
        readme: filled(readme, {"timeline": timeline_image()}),
        DOCS / "layers.svg": layers(),
        DOCS / "save.svg": sequence("A save, step by step", SAVE),
        DOCS / "restore.svg": sequence("A restore, step by step", RESTORE),
        page: filled(page, {name: steps_list(steps) for name, steps in SEQUENCES.items()}),
    }


def stale() -> List[str]:
    return [path.name for path, new in outputs().items() if not path.exists() or path.read_text() != new]


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        out_of_date = stale()
        if out_of_date:
            print(f"out of date, run docs/pictures.py: {', '.join(out_of_date)}")
        return 1 if out_of_date else 0
    for path, new in outputs().items():
        path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
