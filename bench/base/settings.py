"""Settings of the kernel that a run changes, and that are restored when it ends, however it ends."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import tempfile
from typing import Iterator, NamedTuple, Optional

from bench.base.leftovers import Leftovers, value_of

HUGE_RESERVED = pathlib.Path("/proc/sys/vm/nr_hugepages")
SHARED_HUGE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_COMPACT = pathlib.Path("/proc/sys/vm/compact_memory")
_HUGE_PAGE = 2 << 20


class Reserved(NamedTuple):
    """A file system that has huge pages. folder: None if there is none, and `why`."""

    folder: Optional[pathlib.Path]
    why: str = ""


@contextlib.contextmanager
def reserved_huge_pages(size: int, leftovers: Leftovers) -> Iterator[Reserved]:
    """Reserves `size` bytes of huge pages within the block."""
    pages = -(-size // _HUGE_PAGE)
    with contextlib.ExitStack() as stack:
        before = value_of(HUGE_RESERVED)
        if not before.isdigit():
            yield Reserved(None, f"there is no {HUGE_RESERVED}")
            return
        wanted = str(int(before) + pages)
        change = {"setting": str(HUGE_RESERVED), "ours": wanted, "before": before}
        made = stack.enter_context(leftovers.undone(change))
        try:
            for setting, value in ((HUGE_RESERVED, wanted), (_COMPACT, "1"), (HUGE_RESERVED, wanted)):
                if value_of(HUGE_RESERVED) != wanted:  # Memory may be in pieces.
                    setting.write_text(value)
        except OSError as error:
            yield Reserved(None, f"{HUGE_RESERVED}: {error.strerror}")
            return
        made.update({**change, "ours": value_of(HUGE_RESERVED)})  # The kernel may have found fewer.
        folder = pathlib.Path(tempfile.mkdtemp(prefix="huge-pages-"))
        stack.callback(folder.rmdir)
        stack.enter_context(leftovers.undone({"mount": str(folder)}))
        options = f"size={pages * 2}M,min_size={pages * 2}M"
        mount = ["mount", "-t", "hugetlbfs", "-o", options, "none", str(folder)]
        mounted = subprocess.run(mount, capture_output=True, text=True)
        found = int(value_of(HUGE_RESERVED)) - int(before)
        why = f"{found} of {pages} huge pages found; {mounted.stderr.strip()}"
        yield Reserved(folder) if mounted.returncode == 0 else Reserved(None, why)


@contextlib.contextmanager
def changed(setting: pathlib.Path, value: str, leftovers: Leftovers) -> Iterator[None]:
    """Gives a setting another value within the block. SystemExit if the kernel does not take it."""
    before = value_of(setting)
    if before == value:
        yield
        return
    with leftovers.undone({"setting": str(setting), "ours": value, "before": before}):
        try:
            setting.write_text(value)
        except OSError as error:
            raise SystemExit(f"{setting} cannot be set to '{value}': {error.strerror}") from error
        yield
