"""Calls of the native library: CRC32C, batches of copies, verified reads and mappings, all without the GIL."""

import ctypes
import errno
import functools
import os
import threading
from array import array
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

_VERSION = 11
# A read of this size takes so long that it can be interrupted and shows progress.
_INTERRUPTIBLE_BYTES = 64 << 20
_PROGRESS_SECONDS = 0.1
# The values of FloatFormat in the library, by the name of the dtype in torch.
FLOAT_FORMATS = {
    "float16": 1,
    "bfloat16": 2,
    "float32": 3,
    "float64": 4,
    "float8_e4m3fn": 5,
    "float8_e5m2": 6,
    "float8_e4m3fnuz": 7,
    "float8_e5m2fnuz": 7,
    "complex32": 1,
    "complex64": 3,
    "complex128": 4,
}
_u64: Any = ctypes.c_uint64
_pointer: Any = ctypes.c_void_p


def library_path() -> str:
    """Returns the path of the library: $CKPTD_NATIVE, else the one in this package."""
    return os.environ.get("CKPTD_NATIVE") or os.path.join(
        os.path.dirname(os.path.dirname(__file__)), "_native.so"
    )


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """Returns the library, loaded once. ImportError, with what to do, if it cannot be loaded."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"ckptd's native library cannot be loaded ({error}); install ckptd's wheel, which contains it"
        ) from error
    if loaded.ckptd_native_version() != _VERSION:
        raise ImportError(f"{path} belongs to another version of this package; install ckptd's wheel again")
    loaded.ckptd_crc32c.restype = ctypes.c_uint32
    loaded.ckptd_crc32c.argtypes = [_pointer, _u64, ctypes.c_uint32]
    loaded.ckptd_copy.argtypes = (
        [_pointer, _pointer, _u64, _u64] + [_pointer] * 3 + [_u64] * 3 + [ctypes.c_int] * 4 + [_pointer] * 2
    )
    loaded.ckptd_read_verified.argtypes = (
        [ctypes.c_int, _u64, _u64] + [_pointer] * 4 + [_u64, ctypes.c_int] + [_pointer] * 4 + [ctypes.c_int] * 2
    )
    loaded.ckptd_count_non_finite.argtypes = [ctypes.c_int, _pointer, _u64, _pointer]
    loaded.ckptd_count_non_finite.restype = _u64
    loaded.ckptd_copy_async.argtypes = (
        [_pointer] * 4 + [_u64] * 2 + [_pointer] * 3 + [_u64] * 3 + [ctypes.c_int]
    )
    loaded.ckptd_advise_huge_pages.argtypes = [_pointer, _pointer, _u64]
    loaded.ckptd_advise_huge_pages.restype = None
    loaded.ckptd_map.argtypes = [ctypes.c_int, _u64, ctypes.c_int, _pointer]
    loaded.ckptd_map_private.argtypes = [_pointer, _pointer, _u64, _pointer]
    loaded.ckptd_unmap.argtypes = [_pointer, _u64]
    loaded.ckptd_copy_loop_name.restype = loaded.ckptd_fastest_copy_loop.restype = ctypes.c_char_p
    loaded.ckptd_copy_by_loop.argtypes = [ctypes.c_int, _pointer, _pointer, _u64]
    loaded.ckptd_copy_by_loop.restype = None
    return loaded


def crc32c(data: Any, crc: int = 0) -> int:
    """Returns the CRC32C of a C-contiguous buffer. `crc` is that of the bytes before it."""
    address, keep = address_of(data)
    found = int(library().ckptd_crc32c(address, memoryview(data).nbytes, crc))
    del keep
    return found


def address_of(data: Any) -> Tuple[int, Any]:
    """Returns the address of a C-contiguous buffer, and an object that must be kept for the buffer to stay
    there.
    """
    if isinstance(data, bytes):
        return ctypes.cast(ctypes.c_char_p(data), _pointer).value or 0, data
    view = memoryview(data).cast("B")
    if view.nbytes == 0:
        return 0, view
    if view.readonly:
        return _readonly_address(view), view
    exported = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(exported), exported


class _PyBuffer(ctypes.Structure):
    """Py_buffer. It is in the stable ABI since Python 3.11, and had the same layout before."""

    _fields_ = [
        ("buf", _pointer),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", _pointer),
        ("strides", _pointer),
        ("suboffsets", _pointer),
        ("internal", _pointer),
    ]


def _readonly_address(view: memoryview) -> int:
    # from_buffer() of ctypes takes writable buffers only.
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    address = int(buffer.buf or 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))  # The view holds the buffer, too.
    return address


class Pieces(NamedTuple):
    """The sources of a file's bytes: lengths[i] bytes at the address sources[i] go to offsets[i] in the
    file.

    All three are array('Q').
    """

    offsets: "array[int]"
    sources: "array[int]"
    lengths: "array[int]"


def copy(
    segments: Tuple["array[int]", "array[int]"],
    base: int,
    pieces: Pieces,
    start: int,
    stop: int,
    threads: int,
    counting: "Optional[Counting]" = None,
) -> None:
    """Copies the bytes [start, stop) of a file, as far as the pieces cover them, into the memory of a part.

    Args:
        segments: (addresses, ends in the part) of the part's memory, both array('Q').
        base: where the file begins in the part; negative if the memory is a window that begins within the file.
        counting: counts on the way the numbers that are not finite. Then all of the file is copied.

    Raises:
        RuntimeError: the bytes do not fit into the part.
    """
    _copy(segments, base, pieces, start, stop, threads, False, counting=counting)


class Counting(NamedTuple):
    """Numbers of the i-th of some pieces: their format, and how many were found not to be finite."""

    formats: "array[int]"  # array('B'), of FLOAT_FORMATS; 0 for bytes that are no such numbers.
    non_finite: "array[int]"  # array('Q').


def _copy(
    segments: Tuple["array[int]", "array[int]"],
    base: int,
    columns: Tuple["array[int]", "array[int]", "array[int]"],
    start: int,
    stop: int,
    threads: int,
    out: bool,
    fresh: bool = False,
    background: bool = False,
    counting: "Optional[Counting]" = None,
) -> None:
    count = len(columns[0])
    if count == 0:
        return
    addresses, ends = segments
    pointers = [array_.buffer_info()[0] for array_ in (addresses, ends, *columns)]
    counts = [column.buffer_info()[0] for column in counting] if counting is not None else [None, None]
    failed = library().ckptd_copy(
        *pointers[:2],
        len(addresses),
        base % 2**64,  # The library adds to it modulo 2**64.
        *pointers[2:],
        count,
        start,
        stop,
        threads,
        out,
        fresh,
        background,
        *counts,
    )
    if failed:
        raise RuntimeError(
            f"{stop - start} bytes at {base + start} do not fit into a part of {ends[-1] if ends else 0}"
        )


def count_non_finite(dtype: str, address: int, size: int) -> Tuple[int, int]:
    """Returns how many NaNs and how many infinities are among the numbers at an address.

    Args:
        dtype: a name of FLOAT_FORMATS.
        size: of the numbers together, in bytes.
    """
    infinite = _u64()
    found = library().ckptd_count_non_finite(FLOAT_FORMATS[dtype], address, size, ctypes.byref(infinite))
    return int(found) - infinite.value, infinite.value


class ReadFault(NamedTuple):
    """Why a verified read failed."""

    chunk: int
    errno: int  # EBADMSG: the CRC32C is wrong. ENODATA: the file ended early.
    found: int  # The CRC32C of the bytes that were read.


class Targets(NamedTuple):
    """The targets of a file's bytes: lengths[i] bytes from offsets[i] on go to the address addresses[i].

    All three are array('Q'), ordered by offset; the ranges must not overlap.
    """

    offsets: "array[int]"
    addresses: "array[int]"
    lengths: "array[int]"


def copy_out(
    segments: Tuple["array[int]", "array[int]"],
    base: int,
    size: int,
    targets: Targets,
    threads: int,
    fresh: bool = False,
    background: bool = False,
) -> None:
    """Fills the targets from a file of `size` bytes that begins at `base` of a part.

    Args:
        segments: as for copy().
        fresh: the targets' memory was never touched; fault it in many pages at a time.
        background: copy with idle CPU priority.
    """
    _copy(segments, base, targets, 0, size, threads, True, fresh, background)


def read_verified(
    descriptor: int,
    size: int,
    chunk_bytes: int,
    expected: "array[int]",
    targets: Targets,
    threads: int,
    progress: "Optional[Callable[[int], None]]" = None,
    fresh: bool = False,
    background: bool = False,
) -> "ReadFault | None":
    """Fills the targets from a file, and verifies each chunk that they touch.

    Args:
        size: of the file, in bytes.
        expected: the CRC32C of every chunk of the file, array('I').
        progress: called now and then with the bytes read so far. An exception from it, or from a signal
            handler, ends a long read.
        fresh: as for copy_out().
        background: read with idle CPU and I/O priority.

    Returns:
        What failed, or None.
    """
    chunk, found, done, stop = ctypes.c_int64(), ctypes.c_uint32(), ctypes.c_uint64(), ctypes.c_int32()

    def read() -> int:
        return int(
            library().ckptd_read_verified(
                descriptor,
                size,
                chunk_bytes,
                expected.buffer_info()[0],
                *(array_.buffer_info()[0] for array_ in targets),
                len(targets.offsets),
                threads,
                *map(ctypes.byref, (chunk, found, done, stop)),
                fresh,
                background,
            )
        )

    error = read() if sum(targets.lengths) < _INTERRUPTIBLE_BYTES else _interruptible(read, done, stop, progress)
    return ReadFault(chunk.value, error, found.value) if error else None


def _interruptible(
    read: Callable[[], int], done: Any, stop: Any, progress: "Optional[Callable[[int], None]]"
) -> int:
    """Runs read() in another thread, and returns its result.

    Python runs no signal handler while its main thread is in a call of C: without this Ctrl-C would wait for the read.
    """
    result: List[int] = []
    thread = threading.Thread(target=lambda: result.append(read()), name="ckptd-read", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_PROGRESS_SECONDS)
            if progress is not None:
                progress(done.value)
    except BaseException:
        stop.value = 1
        thread.join()  # Until then it writes to the targets.
        raise
    return result[0]


def advise_huge_pages(addresses: "array[int]", lengths: "array[int]") -> None:
    """Announces buffers, in the order of their addresses, that are about to be filled for the first time: the
    kernel backs them by huge pages where it can.
    """
    library().ckptd_advise_huge_pages(addresses.buffer_info()[0], lengths.buffer_info()[0], len(addresses))


def copy_async(
    function: int,
    stream: int,
    segments: "Tuple[array[int], array[int]]",
    base: int,
    pieces: Pieces,
    begin: int,
    end: int,
    out: bool = False,
) -> int:
    """Queues copies between a part's memory and a GPU's, on a stream of the GPU's runtime.

    One call for all of them: between two calls another thread could keep the GIL for milliseconds. No copy reaches
    from one segment into the next.

    Args:
        function: the address of cudaMemcpyAsync, or of a function with its arguments.
        stream: the runtime's handle.
        segments: addresses of the part's segments, and where in the part each ends.
        base: where in the part the file begins.
        pieces: of the file; their addresses are the GPU's.
        begin, end: only these bytes of the file are copied.
        out: from the part to the GPU.

    Returns:
        0, or the first error of the function; the copies after that one are not queued.
    """
    error = int(
        library().ckptd_copy_async(
            function,
            stream,
            *(column.buffer_info()[0] for column in segments),
            len(segments[0]),
            base,
            *(column.buffer_info()[0] for column in pieces),
            len(pieces.offsets),
            begin,
            end,
            out,
        )
    )
    if error == -errno.ERANGE:
        raise RuntimeError(f"a file that begins at {base} does not fit into its part")
    return error


def map_shared(descriptor: int, size: int, writable: bool = True) -> int:
    """Maps a segment, shared and populated; a forked child does not inherit it. Returns the address."""
    address = _pointer()
    return _mapped(library().ckptd_map(descriptor, size, writable, ctypes.byref(address)), address, size)


def map_private(descriptors: Sequence[int], sizes: Sequence[int]) -> int:
    """Maps segments one after another, privately: what this process writes there stays its own.

    Returns the address.
    """
    address, fds, lengths = _pointer(), array("i", descriptors), array("Q", sizes)
    error = library().ckptd_map_private(
        fds.buffer_info()[0], lengths.buffer_info()[0], len(fds), ctypes.byref(address)
    )
    return _mapped(error, address, sum(sizes))


def _mapped(error: int, address: Any, size: int) -> int:
    if error:
        hint = (
            " (raise the limit of locked or virtual memory)" if error in (errno.ENOMEM, errno.EAGAIN) else ""
        )
        raise OSError(error, f"mapping a segment of {size} bytes: {os.strerror(error)}{hint}")
    return int(address.value or 0)


def unmap(address: int, size: int) -> None:
    """Unmaps what map_shared() or map_private() has mapped."""
    library().ckptd_unmap(address, size)


def copy_loops() -> List[str]:
    """Returns the names of the ways to copy memory that this processor has."""
    found: List[str] = []
    for name in iter(lambda: library().ckptd_copy_loop_name(len(found)), None):
        found.append(name.decode())
    return found


def copy_by_loop(loop: int, target: int, source: int, size: int) -> None:
    """Copies `size` bytes between two addresses by one of copy_loops(), to measure it."""
    library().ckptd_copy_by_loop(loop, target, source, size)


def fastest_copy_loop(out: bool) -> Optional[str]:
    """Returns the one of copy_loops() that this process has found to be the fastest to copy into the daemon's
    memory, or out of it; None before it has copied enough to know.
    """
    name = library().ckptd_fastest_copy_loop(out)
    return name.decode() if name is not None else None


def save_threads(ranks: int) -> int:
    """Returns how many threads copy a rank's state: $CKPTD_COPY_THREADS, else its share of the cores, at most 4: the
    job goes on loading data meanwhile.

    ranks: on this node.
    """
    return _threads(ranks, 4)


def read_threads(ranks: int) -> int:
    """Returns how many threads read for a rank: as save_threads(), but at most 16, which copy as fast as a GPU does."""
    return _threads(ranks, 16)


def _threads(ranks: int, most: int) -> int:
    asked = os.environ.get("CKPTD_COPY_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, min(most, len(os.sched_getaffinity(0)) // max(1, ranks)))
