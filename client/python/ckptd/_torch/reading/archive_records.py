"""The places of the storages in a file of torch's format, from the directory of its archive.

torch.load to the meta device gives each storage the place that it computes from what the pickle says, and never
compares the two. A pickle can say anything: only the directory counts.
"""

import logging
import sys
import zipfile
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from ckptd import errors
from ckptd._reading.verified_file import VerifiedFile

_log = logging.getLogger("ckptd")


class Record(NamedTuple):
    """The bytes of a storage in a file."""

    begin: int
    size: int


Records = Dict[str, Record]  # By the name in the archive, such as "data/0".

_HEADER_BYTES = 30  # The size of a local header without the name and padding.
_DESCRIPTOR_BYTES, _DESCRIPTOR64_BYTES = 16, 24
_MAX32 = 0xFFFFFFFF


def records_of(file: VerifiedFile) -> Records:
    """Returns the places of the storages.

    It reads the archive's directory only: each local header lies beside its storage, in a chunk of its own that would
    be read and verified for it. torch and ckptd write a descriptor after each storage, so that the next header tells
    where the storage ends and, by its size, where it begins.

    Returns:
        Nothing for a file that must not be loaded to the meta device or is no such archive, and with a torch that is
        too old to tell.
    """
    try:
        with file.buffered() as reader:
            archive = _open(file, reader)
            if archive is None or not hasattr(archive, "get_record_header_offset"):
                return {}
            size_of = _size_function(archive, reader)
            if _why_not_meta(archive, size_of):
                return {}
            return {name: Record(begin, size) for name, _, begin, size in _storages(archive, size_of)}
    except (errors.CkptdError, OSError):
        raise
    except Exception as error:  # torch raises anything for a wrong byte.
        _log.debug("ckptd: the directory of an archive cannot be read: %s", error)
        return {}


def sizes_of(records: Records) -> Dict[int, int]:
    """Returns the sizes of the records that are not empty, by their begin."""
    return {record.begin: record.size for record in records.values() if record.size > 0}


def why_not_meta(file: VerifiedFile) -> str:
    """Returns why a file must not be loaded to the meta device; empty if it may be."""
    with file.buffered() as reader:
        archive = _open(file, reader)
        return _why_not_meta(archive, _size_function(archive, reader)) if archive is not None else ""


def _size_function(archive: Any, reader: Any) -> "Callable[[str], int]":
    """Returns a function of a record's name, which returns its size in bytes as the archive's directory has it."""
    if hasattr(archive, "get_record_size"):
        return lambda name: int(archive.get_record_size(name))
    # The reader of an older torch does not tell. Its names lack the folder that all of them are in.
    with zipfile.ZipFile(reader) as directory:
        return {info.filename.partition("/")[2]: info.file_size for info in directory.infolist()}.__getitem__


def _open(file: VerifiedFile, reader: Any) -> Optional[Any]:
    """Returns torch's reader of an archive; None if the file is none."""
    import torch

    file.seek(0)
    if reader.read(4) != b"PK\x03\x04":  # The test that torch.load makes.
        return None
    reader.seek(0)
    return torch._C.PyTorchFileReader(reader)


def _storages(archive: Any, size_of: "Callable[[str], int]") -> Iterator[Tuple[str, int, int, int]]:
    """Yields (name, offset of the local header, offset of the first byte, size in bytes) of each storage."""
    headers = sorted((int(archive.get_record_header_offset(name)), name) for name in archive.get_all_records())
    for (header, name), (after, _) in zip(headers, headers[1:]):
        if name.startswith("data/"):
            size = size_of(name)
            is_big = header >= _MAX32 or size >= _MAX32
            descriptor = (_DESCRIPTOR64_BYTES if is_big else _DESCRIPTOR_BYTES) if size else 0
            begin = after - descriptor - size
            if begin >= header + _HEADER_BYTES + len(name):
                yield name, header, begin, size


def _why_not_meta(archive: Any, size_of: "Callable[[str], int]") -> str:
    """Returns as why_not_meta().

    torch would swap the bytes of storages that have none, and divides by the alignment: either ends the process.
    """
    import torch

    default = getattr(torch.serialization, "get_default_load_endianness", lambda: None)()
    order = archive.get_record("byteorder").decode(errors="replace") if archive.has_record("byteorder") else None
    if order is None and default is not None:
        order = default.name.lower()
    if order not in (None, "native", sys.byteorder):
        return f'its byte order is "{order}"'
    if archive.has_record(".storage_alignment") and archive.get_record(".storage_alignment") != b"64":
        return "its storages are not aligned as torch aligns them"
    # Where there is a version of the format, torch computes where each storage lies, and does not look.
    if archive.has_record(".format_version") and hasattr(archive, "get_record_offset_no_read"):
        count = sum(name.startswith("data/") for name in archive.get_all_records())
        places = list(_storages(archive, size_of))
        if len(places) != count or any(
            archive.get_record_offset_no_read(header, name, size, 64) != begin for name, header, begin, size in places
        ):
            return "its storages do not lie where torch would write them, as after another program has packed it"
    return ""
