"""The archives of single tensors, which torch.save would write, as bytes around the elements.

The bytes around the elements depend only on dtype and shape, so they are made once for each.
"""

import functools
import zlib
from typing import Any, NamedTuple, Tuple

import torch

from ckptd._memory import native
from ckptd._torch.writing import archive_writer
from ckptd._torch.writing.state_pickler import pickle_state
from ckptd._torch.writing.zip_layout import Layout

_KEPT_SHAPES = 16384


class TensorArchive(NamedTuple):
    """The bytes of an archive before and after the elements, which are contiguous."""

    head: bytes
    tail: bytes
    head_address: int
    tail_address: int


@functools.lru_cache(maxsize=_KEPT_SHAPES)
def around(dtype: Any, shape: Tuple[int, ...]) -> TensorArchive:
    """Returns what torch.save writes around the elements of a plain contiguous tensor on the CPU."""
    sample = torch.empty(shape, dtype=dtype)  # Its memory is never touched.
    pickled, records, *_ = pickle_state(sample, compact=False)
    size = sum(record.end - record.begin for record in records)
    layout = Layout(len(pickled), [record.end - record.begin for record in records], archive_writer.NUMBERED)
    glue, whole = layout.filled_glue(zlib.crc32(pickled)), bytearray(layout.size - size)
    begin = layout.storage_offsets[0]

    def put(offset: int, data: bytes) -> None:
        at = offset if offset < begin else offset - size
        whole[at : at + len(data)] = data

    for offset, start, length in zip(layout.glue_offsets, layout.glue_starts, layout.glue_lengths):
        put(offset, bytes(glue[start : start + length]))
    put(layout.pickle_offset, pickled)
    head, tail = bytes(whole[:begin]), bytes(whole[begin:])
    return TensorArchive(head, tail, native.address_of(head)[0], native.address_of(tail)[0])
