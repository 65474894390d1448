"""The native library: CRC32C, batches of copies, verified reads and mappings, all without the GIL."""

import ctypes
import errno
import functools
import os
import threading
from array import array
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

_VERSION = 7
_LONG = 64 << 20  # Bytes that take so long to read that somebody may want to interrupt it.
_LOOK_SECONDS = 0.1
_u64: Any = ctypes.c_uint64
_pointer: Any = ctypes.c_void_p


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """The library, loaded once. ImportError says what to do when it is not there."""
    path = os.environ.get("CKPTD_NATIVE") or os.path.join(os.path.dirname(__file__), "_native.so")
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"ckptd's native library cannot be loaded ({error}); install ckptd's wheel, which carries it"
        ) from error
    if loaded.ckptd_native_version() != _VERSION:
        raise ImportError(f"{path} is of another version than this package; install ckptd's wheel anew")
    loaded.ckptd_crc32c.restype = ctypes.c_uint32
    loaded.ckptd_crc32c.argtypes = [_pointer, _u64, ctypes.c_uint32]
    loaded.ckptd_copy.argtypes = (
        [_pointer, _pointer, _u64, _u64] + [_pointer] * 3 + [_u64] * 3 + [ctypes.c_int] * 3
    )
    loaded.ckptd_read_verified.argtypes = (
        [ctypes.c_int, _u64, _u64] + [_pointer] * 4 + [_u64, ctypes.c_int] + [_pointer] * 4 + [ctypes.c_int]
    )
    loaded.ckptd_map.argtypes = [ctypes.c_int, _u64, ctypes.c_int, _pointer]
    loaded.ckptd_map_private.argtypes = [_pointer, _pointer, _u64, _pointer]
    loaded.ckptd_unmap.argtypes = [_pointer, _u64]
    return loaded


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC32C of some bytes; `crc` continues an earlier one."""
    return int(library().ckptd_crc32c(data, len(data), crc))


def address_of(data: Any) -> Tuple[int, Any]:
    """Where a C-contiguous buffer lies, and what has to be kept for it to stay there."""
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
    """Py_buffer, of the stable interface since Python 3.11 and the same before."""

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
    # ctypes itself takes writable buffers only.
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    address = int(buffer.buf or 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))  # The view holds it, too.
    return address


class Pieces(NamedTuple):
    """Bytes of a file: lengths[i] bytes from the address sources[i] go to offsets[i]. array('Q') all three."""

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
) -> None:
    """Copies what of the pieces lies in [start, stop) of their file, which begins at `base` of a part.

    segments: (addresses, ends in the part) of the part's memory, array('Q') both.
    """
    _copy(segments, base, pieces, start, stop, threads, False)


def _copy(
    segments: Tuple["array[int]", "array[int]"],
    base: int,
    columns: Tuple["array[int]", "array[int]", "array[int]"],
    start: int,
    stop: int,
    threads: int,
    out: bool,
    background: bool = False,
) -> None:
    count = len(columns[0])
    if count == 0:
        return
    addresses, ends = segments
    pointers = [array_.buffer_info()[0] for array_ in (addresses, ends, *columns)]
    failed = library().ckptd_copy(
        *pointers[:2], len(addresses), base % 2**64, *pointers[2:], count, start, stop, threads, out, background
    )
    if failed:
        raise RuntimeError(
            f"{stop - start} bytes at {base + start} do not fit into a part of {ends[-1] if ends else 0}"
        )


class ReadFault(NamedTuple):
    """What was wrong with a verified read."""

    chunk: int
    errno: int  # EBADMSG: a wrong CRC; ENODATA: the file ended early.
    found: int  # The CRC.


class Targets(NamedTuple):
    """Bytes of a file: lengths[i] bytes from offsets[i] go to the address addresses[i]. array('Q') all three, in
    the order of the file, none over another.
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
    background: bool = False,
) -> None:
    """Fills the targets from a file of `size` bytes that begins at `base` of a part. segments: as for copy();
    background: gives way to all other work on the machine.
    """
    _copy(segments, base, targets, 0, size, threads, True, background)


def read_verified(
    descriptor: int,
    size: int,
    chunk_bytes: int,
    expected: "array[int]",
    targets: Targets,
    threads: int,
    progress: "Optional[Callable[[int], None]]" = None,
    background: bool = False,
) -> "ReadFault | None":
    """Fills the targets from a file of `size` bytes, and checks each chunk that they touch against array('I')
    expected, which has all chunks of the file. progress hears how many bytes have been read so far, now and
    then; what it raises ends the reading, and so does a signal's handler. background: gives way to all other
    work on the machine.
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
                background,
            )
        )

    error = read() if sum(targets.lengths) < _LONG else _attended(read, done, stop, progress)
    return ReadFault(chunk.value, error, found.value) if error else None


def _attended(
    read: Callable[[], int], done: Any, stop: Any, progress: "Optional[Callable[[int], None]]"
) -> int:
    """What read() returns, which another thread runs: this one can be interrupted."""
    result: List[int] = []
    thread = threading.Thread(target=lambda: result.append(read()), name="ckptd-read", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            if progress is not None:
                progress(done.value)
    except BaseException:
        stop.value = 1
        thread.join()  # It still writes where it was told to.
        raise
    return result[0]


def map_shared(descriptor: int, size: int, writable: bool = True) -> int:
    """The address of a new shared mapping, populated, not inherited by fork."""
    address = _pointer()
    return _mapped(library().ckptd_map(descriptor, size, writable, ctypes.byref(address)), address, size)


def map_private(descriptors: Sequence[int], sizes: Sequence[int]) -> int:
    """The address where segments lie one after another: what this process writes there nobody else sees."""
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
    library().ckptd_unmap(address, size)


def default_threads(ranks: int) -> int:
    """Threads for one rank's copy: $CKPTD_COPY_THREADS, else the cores shared by the ranks of this node, at
    most 4.
    """
    asked = os.environ.get("CKPTD_COPY_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, min(4, len(os.sched_getaffinity(0)) // max(1, ranks)))
