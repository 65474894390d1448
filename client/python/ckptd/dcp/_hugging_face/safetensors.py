"""Files of the safetensors format, read as a checkpoint of DCP."""

import json
import struct
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ckptd import errors
from ckptd._torch.writing.safetensors_file import DTYPES, OFFSETS_KEY, SHARDING_KEY
from ckptd.dcp import _names
from ckptd.restore import Checkpoint

SUFFIX = ".safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_HEADER = 100 << 20  # Bytes, as in the safetensors package.


def read_metadata(checkpoint: Checkpoint) -> Metadata:
    """Returns the metadata of a checkpoint whose safetensors files are at its top, from their headers."""
    names = sorted(name for name in checkpoint.files if name.endswith(SUFFIX) and "/" not in name)
    chunks: Dict[str, List[ChunkStorageMetadata]] = {}
    dtypes: Dict[str, Any] = {}
    storage: Dict[MetadataIndex, Any] = {}
    for file in names:
        header, begin = _read_header(checkpoint, file)
        sharding = json.loads(header.pop("__metadata__", {}).get(SHARDING_KEY, "{}"))
        for name, entry in header.items():
            shape = torch.Size(entry["shape"])
            offsets = torch.Size(sharding.get(name, {}).get(OFFSETS_KEY, [0] * len(shape)))
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
    if dtype not in DTYPES:
        raise errors.invalid(f'"{name}" of {file} is {dtype}, which this version of torch or of ckptd does not have')
    return DTYPES[dtype]


def _size_of(chunks: Sequence[ChunkStorageMetadata]) -> torch.Size:
    """Returns the size of the tensor that chunks make up."""
    ends = [[offset + size for offset, size in zip(chunk.offsets, chunk.sizes)] for chunk in chunks]
    return torch.Size([max(of_dimension) for of_dimension in zip(*ends)])
