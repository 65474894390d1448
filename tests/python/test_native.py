"""The native library, compared with plain Python."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from array import array
from typing import Any, List

import pytest
from ckptd._memory import native
from ckptd._memory.image import Memory


def memory_of(*buffers: bytearray) -> Memory:
    places = [native.address_of(buffer) for buffer in buffers]
    return Memory([(address, len(buffer)) for (address, _), buffer in zip(places, buffers)], places)


def test_crc32c_is_castagnolis() -> None:
    assert native.crc32c(b"123456789") == 0xE3069283
    assert native.crc32c(b"") == 0
    assert native.crc32c(b"56789", native.crc32c(b"1234")) == 0xE3069283
    assert native.crc32c(bytes(32)) == 0x8A9136AA


@pytest.mark.parametrize("threads", [1, 3])
def test_a_copy_puts_each_piece_where_it_belongs_across_segments(threads: int) -> None:
    random.seed(7)
    for _ in range(50):
        size = random.choice([100, 5000, 20_000, 300_000])
        source = random.randbytes(size)
        cuts = sorted(random.sample(range(1, size), min(size - 1, random.randrange(1, 40))))
        bounds = list(zip([0, *cuts], [*cuts, size]))
        random.shuffle(bounds)
        address, keep = native.address_of(source)
        pieces = native.Pieces(
            array("Q", [begin for begin, _ in bounds]),
            array("Q", [address + begin for begin, _ in bounds]),
            array("Q", [end - begin for begin, end in bounds]),
        )
        base = random.randrange(5000)
        lengths = [random.randrange(1, size) for _ in range(20)]
        buffers = [bytearray(length) for length in [*lengths, base + size]]
        native.copy(memory_of(*buffers).segments, base, pieces, 0, size, threads)
        part = b"".join(buffers)
        assert part[base : base + size] == source
        assert not any(part[:base]) and not any(part[base + size :])


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4095, 4096, 4097, 4096 + 255, 1 << 20, (1 << 20) + 13])
@pytest.mark.parametrize("shift", [0, 1, 31, 63])
def test_a_copy_of_any_size_and_alignment_leaves_its_neighbours_alone(size: int, shift: int) -> None:
    source = random.Random(size).randbytes(size + 64)[shift // 2 : shift // 2 + size]
    buffer = bytearray(b"\xee" * (size + 200))
    memory_of(buffer).put(shift, source)
    assert buffer == b"\xee" * shift + source + b"\xee" * (200 - shift)


def test_a_large_copy_by_threads_is_complete() -> None:
    size = (17 << 20) + 5
    source = random.Random(1).randbytes(size)
    address, keep = native.address_of(source)
    pieces = native.Pieces(array("Q", [0]), array("Q", [address]), array("Q", [size]))
    for threads in (2, 5, 64, 10_000, 0, -1):
        buffer = bytearray(size)
        native.copy(memory_of(buffer).segments, 0, pieces, 0, size, threads)
        assert buffer == source


def test_other_threads_run_while_it_copies() -> None:
    turns = 0
    done = threading.Event()

    def turn() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0)

    thread = threading.Thread(target=turn)
    source, buffer = bytes(256 << 20), bytearray(256 << 20)
    address, keep = native.address_of(source)
    pieces = native.Pieces(array("Q", [0]), array("Q", [address]), array("Q", [len(source)]))
    memory = memory_of(buffer)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread.start()
    try:
        at_begin = turns
        native.copy(memory.segments, 0, pieces, 0, len(source), 1)
        assert turns > at_begin + 10
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(before)


def test_addresses_of_all_kinds_of_buffers() -> None:
    for buffer in (
        b"abc",
        bytearray(b"abc"),
        memoryview(b"xabcx")[1:4],
        memoryview(bytearray(b"xabcx"))[1:4],
    ):
        address, keep = native.address_of(buffer)
        assert ctypes.string_at(address, 3) == b"abc"
        del keep
    held = bytearray(10)
    _, keep = native.address_of(held)
    with pytest.raises(BufferError):
        held.extend(bytes(100))  # It would move while it is being copied.


@pytest.mark.parametrize("fresh", [False, True])
def test_copy_out_fills_memory_that_was_never_touched(fresh: bool) -> None:
    size = (9 << 20) + 77
    source = random.Random(5).randbytes(size)
    target = mmap.mmap(-1, size + 4096)
    address, keep = native.address_of(target)
    pieces = [(0, 5 << 20), ((5 << 20) + 3, size - (5 << 20) - 3)]
    targets = native.Targets(
        array("Q", [offset for offset, _ in pieces]),
        array("Q", [address + 13 + offset for offset, _ in pieces]),
        array("Q", [length for _, length in pieces]),
    )
    native.advise_huge_pages(targets.addresses, targets.lengths)
    segment = bytearray(source)
    native.copy_out(memory_of(segment).segments, 0, size, targets, threads=2, fresh=fresh)
    expected = source[: 5 << 20] + bytes(3) + source[(5 << 20) + 3 :]
    assert target[:13] == bytes(13) and target[13 : 13 + size] == expected
    assert not any(target[13 + size :])
    del keep


def test_names_the_loop_that_copies_once_it_has_copied_enough() -> None:
    source, target = bytearray(64 << 20), bytearray(64 << 20)
    address, keep = native.address_of(source)
    columns = (array("Q", [0]), array("Q", [address]), array("Q", [len(source)]))
    native.copy(memory_of(target).segments, 0, native.Pieces(*columns), 0, len(source), threads=2)
    assert native.fastest_copy_loop(out=False) in native.copy_loops()
    assert native.copy_loops()[-1] == "memcpy"
    del keep


@pytest.fixture
def chunks(tmp_path: pathlib.Path):
    """Returns (descriptor, content, CRCs) of a file in chunks of 64 KiB, the last one short."""
    content = random.Random(3).randbytes(10 * 65536 + 777)
    path = tmp_path / "file"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDWR)
    crcs = array("I", [native.crc32c(content[at : at + 65536]) for at in range(0, len(content), 65536)])
    yield descriptor, content, crcs
    os.close(descriptor)


def read(descriptor: int, size: int, crcs: "array[int]", pieces: Any, threads: int = 1) -> Any:
    """Reads (offset, length) pieces; returns their bytes, or the fault."""
    buffers = [bytearray(length) for _, length in pieces]
    addresses = [native.address_of(buffer) for buffer in buffers]
    targets = native.Targets(
        array("Q", [offset for offset, _ in pieces]),
        array("Q", [address for address, _ in addresses]),
        array("Q", [length for _, length in pieces]),
    )
    fault = native.read_verified(descriptor, size, 65536, crcs, targets, threads)
    return buffers if fault is None else fault


@pytest.mark.parametrize("threads", [1, 4])
def test_a_verified_read_gives_the_bytes(chunks, threads: int) -> None:
    descriptor, content, crcs = chunks
    assert read(descriptor, len(content), crcs, [(0, len(content))], threads) == [content]
    assert read(descriptor, len(content), crcs, [], threads) == []
    numbers = random.Random(4)
    for most in (10, 3000, 200_000):  # Many pieces in a chunk, some in each, and pieces over several chunks.
        pieces, at = [], 0
        while at < len(content):
            at += numbers.randrange(most)
            length = min(numbers.randrange(most), max(0, len(content) - at))
            pieces.append((min(at, len(content)), length))
            at += length
        wanted = [content[offset : offset + length] for offset, length in pieces]
        assert read(descriptor, len(content), crcs, pieces, threads) == wanted


def test_verified_read_checks_only_the_chunks_that_it_touches(chunks) -> None:
    descriptor, content, crcs = chunks
    os.pwrite(descriptor, bytes([content[5 * 65536] ^ 4]), 5 * 65536)
    pieces = [(5 * 65536 - 10, 10), (6 * 65536, 7)]
    assert read(descriptor, len(content), crcs, pieces) == [content[o : o + n] for o, n in pieces]
    fault = read(descriptor, len(content), crcs, [(5 * 65536 - 10, 11)])
    assert (fault.chunk, fault.errno) == (5, errno.EBADMSG)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("at", [0, 5 * 65536 + 1, 10 * 65536 + 776])
def test_a_verified_read_names_the_chunk_in_which_one_bit_is_wrong(chunks, threads: int, at: int) -> None:
    descriptor, content, crcs = chunks
    os.pwrite(descriptor, bytes([content[at] ^ 4]), at)
    for pieces in ([(0, len(content))], [(at // 65536 * 65536, 1)]):  # Also if that byte is not asked for.
        fault = read(descriptor, len(content), crcs, pieces, threads)
        assert (fault.chunk, fault.errno) == (at // 65536, errno.EBADMSG)
        assert fault.found != crcs[fault.chunk]


def test_a_verified_read_says_how_reading_failed(chunks) -> None:
    descriptor, content, crcs = chunks
    os.ftruncate(descriptor, 9 * 65536 + 5)
    fault = read(descriptor, len(content), crcs, [(0, len(content))])
    assert (fault.chunk, fault.errno) == (9, errno.ENODATA)
    reading, writing = os.pipe()
    try:
        fault = read(reading, 10, crcs, [(0, 10)])
        assert fault.errno == errno.ESPIPE
    finally:
        os.close(reading)
        os.close(writing)


def test_a_mapping_is_shared_begins_at_a_huge_page_and_is_not_inherited() -> None:
    size = 3 << 20
    descriptor = os.memfd_create("segment")
    os.ftruncate(descriptor, size)
    address = native.map_shared(descriptor, size)
    try:
        assert address % (2 << 20) == 0
        ctypes.memset(address + size - 3, 0x41, 3)
        assert os.pread(descriptor, 3, size - 3) == b"AAA"
        lines = pathlib.Path("/proc/self/smaps").read_text().split("\n")
        begin = next(i for i, line in enumerate(lines) if line.startswith(f"{address:x}-"))
        flags = next(line for line in lines[begin:] if line.startswith("VmFlags"))
        assert " dc" in flags.split(":")[1]  # MADV_DONTFORK.
    finally:
        native.unmap(address, size)
        os.close(descriptor)


def test_a_mapping_that_cannot_be_made_is_an_error_and_leaves_no_hole() -> None:
    reading, writing = os.pipe()
    before = maps()
    try:
        with pytest.raises(OSError, match="mapping a segment of 4096 bytes"):
            native.map_shared(reading, 4096)
        assert maps() == before
    finally:
        os.close(reading)
        os.close(writing)


def maps() -> List[str]:
    return re.findall(r"^.* ---p .*$", pathlib.Path("/proc/self/maps").read_text(), re.MULTILINE)


def test_native_library_needs_no_glibc_newer_than_manylinux2014() -> None:
    path = native.library_path()
    objdump = shutil.which("objdump")
    assert objdump, "binutils are part of what tools/setup installs"
    symbols = subprocess.run([objdump, "-T", path], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= (2, 17)
    needed = subprocess.run([objdump, "-p", path], capture_output=True, text=True, check=True).stdout
    libraries = set(re.findall(r"NEEDED\s+(\S+)", needed))
    assert libraries <= {"libc.so.6", "libpthread.so.0", "libm.so.6", "ld-linux-x86-64.so.2"}


def test_missing_native_library_is_an_import_error_that_says_what_to_install() -> None:
    code = "from ckptd._memory import native\ntry:\n    native.crc32c(b'')\nexcept ImportError as error:\n    print(error)"
    for path in ("/nonexistent.so", sys.executable):
        environment = {**os.environ, "CKPTD_NATIVE": path}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
        )
        assert "install ckptd's wheel" in done.stdout, done.stderr


def free_huge_pages() -> int:
    text = pathlib.Path("/proc/meminfo").read_text()
    found = re.search(r"HugePages_Free: +(\d+)", text)
    return int(found.group(1)) if found else 0


def test_pages_that_are_not_there_for_a_write_are_refused_when_they_are_mapped() -> None:
    """A failure at the later write would be a SIGBUS."""
    huge = os.memfd_create("huge", os.MFD_HUGETLB | os.MFD_CLOEXEC)
    try:
        size = (free_huge_pages() + 1) << 21
        os.ftruncate(huge, size)
        with pytest.raises(OSError, match="mapping a segment") as caught:
            native.map_private([huge], [size])
        assert caught.value.errno == errno.ENOMEM
    finally:
        os.close(huge)
