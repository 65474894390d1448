"""Refuses archives that torch.load would run or unpack, before torch reads them.

torch.load hands a ZIP archive with a record constants.pkl to torch.jit.load, which runs the code in it, whatever pickle
module it was given; and releases before 2.6 do so with weights_only=True, too. A tar archive, torch's format of before 0.1.2, is
unpacked into a folder first.
"""

import tarfile
from typing import Any, Callable

import torch


class _Pieces:
    """A file that cannot be read as a whole, which is what torch.jit.load does: the archive in it may have been another one
    while we looked.
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
    """The file for torch.load, at the same place. refuse(what is in it) makes the error."""
    kind = _kind(file)
    if kind:
        raise refuse(kind)
    return _Pieces(file, refuse)


def _kind(file: Any) -> str:
    begin = file.tell()
    try:
        if file.read(4) == b"PK\x03\x04":  # As torch.load tells it.
            file.seek(begin)
            # torch's own reader, for another one could find other records in the same bytes.
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
