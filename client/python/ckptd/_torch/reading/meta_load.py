"""torch.load to the meta device, with each reference to a storage compared with its record.

torch.load to the CPU looks up the record of each reference, and refuses one of another size; to the meta device it
believes the reference. A tensor that does not fit would then be made over memory that is not its own.
"""

from types import SimpleNamespace
from typing import Any, Dict, List, Tuple

import torch

from ckptd._torch.reading.archive_records import Records


class TooLargeError(Exception):
    """A reference says that a storage is larger than its record: releases of torch read beyond the record then."""


def load_to_meta(reader: Any, records: Records) -> Any:
    """Returns what torch.load(reader, map_location="meta", weights_only=True) does. Each storage has the offset of its
    record in the file, and references to one record give one storage, as they do on the CPU.

    Args:
        reader: at the beginning of an archive that is not one of TorchScript.
        records: the places of the archive's storages.

    Raises:
        TooLargeError: torch.load must not see the file.
        Exception: anything else, for a file that torch.load may also refuse to load to the CPU, or with a torch that has
            another unpickler.
    """
    checks: List[_References] = []

    class Unpickler(torch._weights_only_unpickler.Unpickler):
        # torch.load sets it, once.
        persistent_load = property(lambda self: checks[-1].load, lambda self, load: checks.append(_References(load, records)))

    module = SimpleNamespace(Unpickler=Unpickler, __name__="ckptd.weights_only")
    # The unpickler is the one of weights_only=True.
    state = torch.load(reader, map_location="meta", weights_only=False, pickle_module=module)
    for check in checks:
        check.check_sizes()
    return state


class _References:
    """The references of one pickle."""

    def __init__(self, load: Any, records: Records) -> None:
        self._load = load
        self._records = records
        self._loaded: Dict[str, Any] = {}
        self._storages: List[Tuple[Any, int]] = []

    def load(self, reference: Any) -> Any:
        typed = self._load(reference)  # For a known key, too: it refuses anything but a reference.
        key = reference[2]
        if key in self._loaded:
            return self._loaded[key]
        begin, size = self._records[f"data/{key}"]
        storage = typed._untyped_storage
        if storage.nbytes() > size:
            raise TooLargeError(f"it says that storage {key} has {storage.nbytes()} bytes, and the file has {size} bytes of it")
        if storage.nbytes() != size:
            raise ValueError(f"a reference says that storage {key} has {storage.nbytes()} bytes, and its record has {size}")
        storage._checkpoint_offset = begin
        self._storages.append((storage, size))
        if size > 0:
            self._loaded[key] = typed
        return typed

    def check_sizes(self) -> None:
        """Raises ValueError if a tensor reaches beyond its storage: torch has given that another size."""
        for storage, size in self._storages:
            if storage.nbytes() != size:
                raise ValueError(f"a tensor reaches beyond its storage of {size} bytes")
