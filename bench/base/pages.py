"""Memory on pages of a given kind, so that a limit is measured on the same pages as what is held against it.

The kinds are those that the daemon's pool names: "plain" pages of 4 KiB, or 2 MiB, "transparent" or from the reserve of
"hugetlb".
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pathlib
import threading
from typing import Optional

from ckptd._memory import native

PLAIN, TRANSPARENT, HUGETLB = KINDS = ("plain", "transparent", "hugetlb")
_HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE, _MADV_NOHUGEPAGE, _MADV_POPULATE_WRITE, _MADV_COLLAPSE = 14, 15, 23, 25
_MFD_HUGETLB, _MFD_HUGE_2MB = 4, 21 << 26


class Memory:
    """Memory at an address where huge pages can be used. Freed with this object.

    shared: like a part of the pool, which the daemon and the client map. Else private, like a trainer's tensors.
    """

    def __init__(self, size: int, kind: str, shared: bool = True, touched: bool = True) -> None:
        self.size = -(-size // _HUGE_PAGE) * _HUGE_PAGE
        self._kind, self.shared = kind, shared
        self._kept: Optional[mmap.mmap] = None
        self._mapped = 0
        if shared:
            self._map_shared(kind)
        else:
            self._kept = mmap.mmap(-1, self.size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            begin = ctypes.addressof(ctypes.c_char.from_buffer(self._kept))
            self.address = -(-begin // _HUGE_PAGE) * _HUGE_PAGE
        if kind != HUGETLB or not shared:
            self._advise(_MADV_NOHUGEPAGE if kind == PLAIN else _MADV_HUGEPAGE)
        if touched:
            self.touch()

    def _map_shared(self, kind: str) -> None:
        """By MAP_SHARED, without a page yet: native.map_shared would fault them in before the advice."""
        flags = os.MFD_CLOEXEC | (_MFD_HUGETLB | _MFD_HUGE_2MB if kind == HUGETLB else 0)
        descriptor = os.memfd_create("ckptd-bench", flags)
        try:
            os.ftruncate(descriptor, self.size)
            if kind == HUGETLB:
                self.address = native.map_shared(descriptor, self.size)
            else:
                self.address = _map_aligned(descriptor, self.size)
            self._mapped = self.address
        finally:
            os.close(descriptor)

    def touch(self, threads: int = 1) -> None:
        """Faults in all pages, as the daemon does with its pool: huge ones are made on request if the faults do not."""
        share = -(-self.size // threads // _HUGE_PAGE) * _HUGE_PAGE
        others = [
            threading.Thread(target=self._touch, args=(at, min(share, self.size - at)))
            for at in range(share, self.size, share)
        ]
        for thread in others:
            thread.start()
        self._touch(0, min(share, self.size))
        for thread in others:
            thread.join()

    def _touch(self, offset: int, size: int) -> None:
        if self.shared and self._kind == TRANSPARENT:
            for at in range(offset, offset + size, _HUGE_PAGE):  # The kernel makes no huge page where there is none at all.
                ctypes.memset(self.address + at, 0, 1)
            self._advise(_MADV_COLLAPSE, offset, size)
        self._advise(_MADV_POPULATE_WRITE, offset, size)

    def _advise(self, advice: int, offset: int = 0, size: int = 0) -> None:
        """Best effort: what the pages are, `describe` tells."""
        start, length = ctypes.c_void_p(self.address + offset), ctypes.c_size_t(size or self.size)
        _libc.madvise(start, length, ctypes.c_int(advice))

    def describe(self) -> str:
        """The pages that the kernel has given so far, in words."""
        kind = "shared" if self.shared else "private"
        return f"{kind} pages of {'2 MiB' if huge_bytes(self.address) > self.size // 2 else '4 KiB'}"

    def __del__(self) -> None:
        if self._mapped:
            native.unmap(self._mapped, self.size)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_MAP_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10


def _map_aligned(descriptor: int, size: int) -> int:
    """Maps a file, shared, at a multiple of 2 MiB."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    begin = int(_libc.mmap(None, size + _HUGE_PAGE, 0, flags, -1, 0) or 0)
    if begin == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "reserving addresses")
    aligned = -(-begin // _HUGE_PAGE) * _HUGE_PAGE
    for at, length in ((begin, aligned - begin), (aligned + size, begin + _HUGE_PAGE - aligned)):
        if length:
            native.unmap(at, length)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mmap(aligned, size, access, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0) == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), f"mapping {size} bytes of shared memory")
    return aligned


def huge_bytes(address: int) -> int:
    """How many bytes of the mapping at an address are on huge pages now."""
    return _mapping(address, "AnonHugePages:", "ShmemPmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:")


def resident_bytes(address: int) -> int:
    """How many bytes of the mapping at an address have pages now, without those of hugetlb."""
    return _mapping(address, "Rss:")


def _mapping(address: int, *fields: str) -> int:
    found, inside = 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            begin, _, end = words[0].partition("-")
            inside = int(begin, 16) <= address < int(end, 16)
        elif inside and words[0] in fields:
            found += int(words[1]) << 10
    return found


def describe_at(address: int) -> str:
    """The pages of a tensor, in words."""
    return f"pages of {'2 MiB' if huge_bytes(address) else '4 KiB'}"


def private_kind() -> str:
    """What MADV_HUGEPAGE gives private memory here: the kind of ckptd's own buffers and of new tensors."""
    memory = Memory(8 * _HUGE_PAGE, TRANSPARENT, shared=False)
    return TRANSPARENT if huge_bytes(memory.address) else PLAIN


def shared_huge_pages_work() -> bool:
    """Whether the kernel makes huge pages of shared memory, as a pool wants them."""
    memory = Memory(8 * _HUGE_PAGE, TRANSPARENT)
    return huge_bytes(memory.address) > 0
