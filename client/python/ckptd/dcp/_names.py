"""The names of PyTorch's Distributed Checkpoint (DCP) that this package uses and that torch may change.

All private names of torch are here. Each is checked when it is first used; a name that is not as expected is
replaced, with a warning.
"""

import warnings
from typing import Any, List, Optional, Sequence

from torch.distributed.checkpoint import filesystem, planner

METADATA_FILE = ".metadata"
FORMAT_VERSION = "1.0.0"  # Of the metadata.


def metadata_file(rank: Optional[int] = None) -> str:
    """Returns the name of the metadata's file. rank: of a rank that has saved without collectives."""
    return METADATA_FILE if rank is None else f"__{rank}{METADATA_FILE}"


def data_file(rank: int, number: int) -> str:
    """Returns the name of a rank's file of data."""
    return f"__{rank}_{number}.distcp"


def storage_info(path: str, offset: int, length: int, elements: Optional[int]) -> Any:
    """Returns where a value is, as DCP's metadata says it.

    elements: where the bare elements begin in the file. It stands in an attribute that DCP passes on and does
    not read. None if they are not one piece.
    """
    info = filesystem._StorageInfo(path, offset, length)
    if elements is not None:
        info.elements = elements  # type: ignore[attr-defined]
    return info


def elements_of(info: Any) -> Optional[int]:
    """Returns where the bare elements begin in the file, if the metadata tells it."""
    found = getattr(info, "elements", None)
    return found if isinstance(found, int) else None


def split(items: Sequence[Any], count: int) -> List[List[Any]]:
    """Splits write items as DCP's writer does into `count` files; into one if this torch does it otherwise."""
    if count > 1:
        do_split: Any = getattr(filesystem, "_split_by_size_and_type", None)
        try:
            return [list(bucket) for bucket in do_split(count, list(items))]
        except (TypeError, AttributeError, ValueError):
            _warn("_split_by_size_and_type", "each rank writes one file, whatever thread_count is")
    return [list(items)]


def is_bytes(item: Any) -> bool:
    """Returns whether a write item holds a pickled object, and no tensor."""
    return bool(item.type == planner.WriteItemType.BYTE_IO)


def _warn(name: str, then: str) -> None:
    warnings.warn(
        f"this version of torch has no {name} as ckptd expects it: {then}", RuntimeWarning, stacklevel=4
    )
