"""The ZIP archive around a pickle and its storages, byte for byte as torch.save lays it out, with holes for
both.

Records are stored, not compressed. The data of each record begins at a multiple of 64; its local header is
padded for that. The sizes in a local header are 0, and a descriptor follows the data. The CRC fields of
storages are 0, as torch writes them after torch.serialization.set_crc32_options(False); torch never reads
them.

Not zipfile: it computes the CRC32 of what it writes, cannot leave holes, and lays out headers differently.
"""

import struct
import sys
import zlib
from array import array
from typing import List, Sequence, Tuple

_MAX32 = 0xFFFFFFFF
_ALIGNMENT = 64
_ROOT = b"archive/"
SERIALIZATION_ID = b"0" * 40  # Any 40 digits will do: torch only logs them.

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_DESCRIPTOR = struct.Struct("<IIII")
_DESCRIPTOR64 = struct.Struct("<IIQQ")
_PADDING = [b"FB" + struct.pack("<H", n) + b"Z" * n for n in range(_ALIGNMENT)]


class Layout:
    """The offsets of everything in the file; the same for every save of the same shape.

    Attributes:
        size: of the file, in bytes.
        glue: all bytes around the pickle and the storages. glue_lengths[i] bytes from glue_starts[i] on go to
            glue_offsets[i] of the file.
        pickle_offset: where the pickle goes.
        storage_offsets: where each storage goes.
    """

    def __init__(self, pickle_size: int, storage_sizes: Sequence[int], numbered: bool) -> None:
        """
        Args:
            pickle_size, storage_sizes: in bytes.
            numbered: as torch 2.7 and later, with two records more and storages in the order of their
                numbers; before, they are in the order of their names.
        """
        self.glue = bytearray()
        self.glue_offsets, self.glue_starts, self.glue_lengths = array("Q"), array("Q"), array("Q")
        self.storage_offsets = array("Q", [0]) * len(storage_sizes)
        self._central: List[bytes] = []
        self._at = 0  # The end of what is laid out, in the file.
        self._begun = 0  # The begin of the present piece of glue, in `glue`.

        self._record(b"data.pkl", pickle_size, b"")
        self.pickle_offset = self._at
        self._hole(pickle_size)
        self._crc_at = [len(self.glue) + 4]
        self._describe(pickle_size, 0)
        if numbered:
            self._small(b".format_version", b"1")
            self._small(b".storage_alignment", b"%d" % _ALIGNMENT)
        self._small(b"byteorder", sys.byteorder.encode())
        order = range(len(storage_sizes))
        for i in order if numbered else sorted(order, key=str):
            size = storage_sizes[i]
            self._record(b"data/%d" % i, size, b"")
            self.storage_offsets[i] = self._at
            if size:
                self._hole(size)
                self._describe(size, 0)
        self._small(b"version", b"3\n")
        self._small(b".data/serialization_id", SERIALIZATION_ID)

        directory, count = b"".join(self._central), len(self._central)
        self._crc_at.append(len(self.glue) + 16)  # The pickle's entry is the first.
        self._add(directory + _end(count, len(directory), self._at))
        self._hole(0)
        self.size = self._at

    def filled_glue(self, pickle_crc: int) -> bytearray:
        """Returns the glue with the pickle's CRC32 in its places."""
        glue = bytearray(self.glue)
        for at in self._crc_at:
            struct.pack_into("<I", glue, at, pickle_crc)
        return glue

    def _add(self, data: bytes) -> None:
        self.glue += data
        self._at += len(data)

    def _hole(self, size: int) -> None:
        """Ends a piece of glue; the next begins `size` bytes further on."""
        length = len(self.glue) - self._begun
        self.glue_offsets.append(self._at - length)
        self.glue_starts.append(self._begun)
        self.glue_lengths.append(length)
        self._begun = len(self.glue)
        self._at += size

    def _small(self, name: bytes, data: bytes) -> None:
        self._record(name, len(data), data)
        self._add(data)
        self._describe(len(data), zlib.crc32(data))

    def _record(self, name: bytes, size: int, data: bytes) -> None:
        """Adds a local header here, and an entry to the directory."""
        name = _ROOT + name
        at, flags, crc = self._at, 0x808 if size else 0x800, zlib.crc32(data)
        zip64 = central64 = b""
        if at >= _MAX32 or size >= _MAX32:
            position = struct.pack("<Q", at) if at >= _MAX32 else b""
            # torch's library leaves the compressed size in the local header 0.
            zip64 = _zip64((struct.pack("<QQ", size, 0) if size >= _MAX32 else b"") + position)
            central64 = _zip64((struct.pack("<QQ", size, size) if size >= _MAX32 else b"") + position)
        extra = zip64 + _PADDING[-(at + _LOCAL.size + len(name) + len(zip64) + 4) % _ALIGNMENT]
        self._add(_LOCAL.pack(0x04034B50, 0, flags, 0, 0, 0, 0, 0, 0, len(name), len(extra)) + name + extra)
        short_size, short_at = min(size, _MAX32), min(at, _MAX32)
        fields = (
            flags,
            0,
            0,
            0,
            crc,
            short_size,
            short_size,
            len(name),
            len(central64),
            0,
            0,
            0,
            0,
            short_at,
        )
        self._central.append(_CENTRAL.pack(0x02014B50, 0, 0, *fields) + name + central64)
        self._big = bool(zip64)

    def _describe(self, size: int, crc: int) -> None:
        self._add((_DESCRIPTOR64 if self._big else _DESCRIPTOR).pack(0x08074B50, crc, size, size))


def _zip64(fields: bytes) -> bytes:
    return struct.pack("<HH", 1, len(fields)) + fields


def _end(count: int, size: int, at: int) -> bytes:
    """Returns what follows the directory of `count` entries and `size` bytes at `at`."""
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x31E, 0x2D, 0, 0, count, count, size, at)
    locator = struct.pack("<IIQI", 0x07064B50, 0, at + size, 1)
    few = min(count, 0xFFFF)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, few, few, min(size, _MAX32), min(at, _MAX32), 0)
    return end64 + locator + end


def archive_of(pickled: bytes, numbered: bool) -> bytes:
    """Returns an archive without storages."""
    layout = Layout(len(pickled), (), numbered)
    glue, out = layout.filled_glue(zlib.crc32(pickled)), bytearray(layout.size)
    pieces: Sequence[Tuple[int, int, int]] = list(
        zip(layout.glue_offsets, layout.glue_starts, layout.glue_lengths)
    )
    for offset, start, length in pieces:
        out[offset : offset + length] = glue[start : start + length]
    out[layout.pickle_offset : layout.pickle_offset + len(pickled)] = pickled
    return bytes(out)
