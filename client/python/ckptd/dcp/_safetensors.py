"""Files of the safetensors format: laid out in place, and read as a checkpoint of DCP."""

import json
import struct
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ckptd import errors
from ckptd._torch.tensor_file import ALIGNMENT, TensorFile
from ckptd.dcp import _names
from ckptd.restore import Checkpoint

SUFFIX = ".safetensors"
INDEX_FILE = "model.safetensors.index.json"
_SHARDING = "DCP_SHARDING_INFO"  # Where each piece is in its tensor, in the header's metadata.
_OFFSETS = "saved_offsets"
_MAX_HEADER = 100 << 20  # Bytes, as in the safetensors package.

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
_DTYPES = {name: getattr(torch, dtype) for name, dtype in _NAMES.items() if hasattr(torch, dtype)}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Piece(NamedTuple):
    """A tensor, or a rectangular piece of one that is in several files."""

    name: str
    dtype: Any
    shape: Tuple[int, ...]
    offsets: Tuple[int, ...]  # Where it begins in the tensor, in elements.
    parts: Sequence[Any]  # Tensors whose elements, one after another, are the piece's.


def lay_out(pieces: Iterable[Piece], sharded: bool) -> Tuple[TensorFile, Dict[str, Tuple[int, int]]]:
    """Returns a file, and where the elements of each piece are in it: name -> (offset, bytes).

    sharded: the header tells where the pieces are in their tensors, as DCP's does.

    Raises:
        ValueError: the format cannot hold a piece.
    """
    ordered = sorted(pieces, key=lambda piece: -piece.dtype.itemsize)  # So all elements are aligned.
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
        offsets = {piece.name: {_OFFSETS: list(piece.offsets)} for piece in pieces}
        about.update({_SHARDING: json.dumps(offsets), "DCP_VERSION": "1.0"})
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


def read_metadata(checkpoint: Checkpoint) -> Metadata:
    """Returns the metadata of a checkpoint whose safetensors files are at its top, from their headers."""
    names = sorted(name for name in checkpoint.files if name.endswith(SUFFIX) and "/" not in name)
    chunks: Dict[str, List[ChunkStorageMetadata]] = {}
    dtypes: Dict[str, Any] = {}
    storage: Dict[MetadataIndex, Any] = {}
    for file in names:
        header, begin = _read_header(checkpoint, file)
        sharding = json.loads(header.pop("__metadata__", {}).get(_SHARDING, "{}"))
        for name, entry in header.items():
            shape = torch.Size(entry["shape"])
            offsets = torch.Size(sharding.get(name, {}).get(_OFFSETS, [0] * len(shape)))
            dtypes[name] = _dtype(file, name, entry["dtype"])
            chunks.setdefault(name, []).append(ChunkStorageMetadata(offsets, shape))
            first, end = entry["data_offsets"]
            index = MetadataIndex(name, offsets)
            storage[index] = _names.storage_info(file, begin + first, end - first, begin + first)
    tensors: Dict[str, Any] = {
        name: TensorStorageMetadata(TensorProperties(dtype=dtypes[name]), _size_of(found), found)
        for name, found in chunks.items()
    }
    return Metadata(tensors, storage_data=storage)


def _read_header(checkpoint: Checkpoint, file: str) -> Tuple[Dict[str, Any], int]:
    """Returns a header, and where the elements begin in the file."""
    (length,) = struct.unpack("<Q", bytes(checkpoint.read_ranges([(file, 0, 8)])[0]))
    if length > _MAX_HEADER:
        raise errors.invalid(f"{file} of {checkpoint.tag} is no safetensors file: its header would have {length} bytes")
    header: Dict[str, Any] = json.loads(bytes(checkpoint.read_ranges([(file, 8, length)])[0]))
    return header, 8 + length


def _dtype(file: str, name: str, dtype: str) -> Any:
    if dtype not in _DTYPES:
        raise errors.invalid(f'"{name}" of {file} is {dtype}, which this version of torch or of ckptd does not have')
    return _DTYPES[dtype]


def _size_of(chunks: Sequence[ChunkStorageMetadata]) -> torch.Size:
    """Returns the size of the tensor that chunks make up."""
    ends = [[offset + size for offset, size in zip(chunk.offsets, chunk.sizes)] for chunk in chunks]
    return torch.Size([max(of_dimension) for of_dimension in zip(*ends)])
