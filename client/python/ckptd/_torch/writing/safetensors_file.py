"""Files of the safetensors format, laid out without a copy of their tensors."""

import json
import struct
from typing import Any, Dict, Iterable, NamedTuple, Sequence, Tuple

import torch

from ckptd._torch.writing.tensor_file import ALIGNMENT, TensorFile

SHARDING_KEY = "DCP_SHARDING_INFO"  # A key of the header's metadata: the offsets of each piece in its tensor.
OFFSETS_KEY = "saved_offsets"

_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}
DTYPES = {name: getattr(torch, dtype) for name, dtype in _NAMES.items() if hasattr(torch, dtype)}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Piece(NamedTuple):
    """A tensor, or a rectangular piece of one that is in several files."""

    name: str
    dtype: Any
    shape: Tuple[int, ...]
    offsets: Tuple[int, ...]  # Its first element in the tensor, in elements of each dimension.
    parts: Sequence[Any]  # Tensors whose elements, one after another, are the piece's.


def lay_out(pieces: Iterable[Piece], sharded: bool) -> Tuple[TensorFile, Dict[str, Tuple[int, int]]]:
    """Returns a file, and where the elements of each piece are in it: name -> (offset, bytes).

    sharded: the header tells where the pieces are in their tensors, as DCP's does.

    Raises:
        ValueError: the format cannot hold a piece.
    """
    ordered = sorted(pieces, key=lambda piece: -piece.dtype.itemsize)  # The largest elements first: then all are aligned.
    head = _header(ordered, sharded)
    file, placed = TensorFile(), {}
    file.add_bytes(head)
    for piece in ordered:
        begin = file.size
        for part in piece.parts:
            file.add_elements(part)
        placed[piece.name] = (begin, file.size - begin)
    return file, placed


def _header(pieces: Sequence[Piece], sharded: bool) -> bytes:
    about = {"format": "pt"}
    if sharded:
        offsets = {piece.name: {OFFSETS_KEY: list(piece.offsets)} for piece in pieces}
        about.update({SHARDING_KEY: json.dumps(offsets), "DCP_VERSION": "1.0"})
    header: Dict[str, Any] = {"__metadata__": about}
    at = 0
    for piece in pieces:
        if piece.name in header:
            raise ValueError(
                f'"{piece.name}" has several pieces on one rank, and a safetensors file holds one tensor of a name: save it in '
                "DCP's own format, with ckptd.dcp.Writer"
            )
        if piece.dtype not in _DTYPE_NAMES:
            raise ValueError(f'"{piece.name}" is {piece.dtype}, which the safetensors format does not have: convert it')
        size = piece.dtype.itemsize * torch.Size(piece.shape).numel()
        header[piece.name] = {
            "dtype": _DTYPE_NAMES[piece.dtype],
            "shape": list(piece.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
