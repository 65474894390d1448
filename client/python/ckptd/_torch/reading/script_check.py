"""Refuses archives that torch.load would run or unpack, before torch reads them.

torch.load passes a ZIP archive with a record constants.pkl to torch.jit.load, which runs the code in it,
whatever pickle module torch.load was given; releases before 2.6 do so even with weights_only=True. A tar
archive, torch's format before 0.1.2, is unpacked into a folder first.
"""

import tarfile
from typing import Any, Callable

import torch


class _PiecewiseReader:
    """A file that cannot be read as a whole, which is how torch.jit.load reads it.

    The check alone would not do: the file may have held another archive while it was checked.
    """

    def __init__(self, file: Any, refuse: "Callable[[str], Exception]") -> None:
        self._file = file
        self._refuse = refuse

    def read(self, size: int = -1) -> Any:
        if size is None or size < 0:
            raise self._refuse("a TorchScript archive")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def checked(file: Any, refuse: "Callable[[str], Exception]") -> Any:
    """Returns the file for torch.load, at the same position.

    Raises refuse(kind) if torch.load would run or unpack it.
    """
    kind = _dangerous_kind(file)
    if kind:
        raise refuse(kind)
    return _PiecewiseReader(file, refuse)


def _dangerous_kind(file: Any) -> str:
    """Returns what kind of dangerous archive a file holds; empty if none."""
    begin = file.tell()
    try:
        if file.read(4) == b"PK\x03\x04":  # The test that torch.load makes.
            file.seek(begin)
            # With torch's own reader: another one could find other records in the same bytes.
            records = torch._C.PyTorchFileReader(file).get_all_records()
            return "a TorchScript archive" if "constants.pkl" in records else ""
        file.seek(begin)
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                return "a tar archive" if next(iter(archive), None) is not None else ""
        except tarfile.TarError:
            return ""
    finally:
        file.seek(begin)
