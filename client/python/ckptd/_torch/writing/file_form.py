"""A file of tensors once more, with other values of the same form: only the addresses of the values are new."""

from array import array
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch

from ckptd._memory import native
from ckptd._memory.image import Image, PiecesImage
from ckptd._memory.native import Pieces

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class FormOfValue(NamedTuple):
    """The source of a value's bytes."""

    piece: int  # Its index among the pieces of the file.
    size: int  # In bytes.
    is_tensor: bool
    first: int  # The number of the first value with the same bytes: this one's, or that of a tensor that it is tied to.


class FileForm:
    """A TensorFile without its values, which are bytes and plain tensors in the CPU's memory.

    It keeps none of the values.
    """

    def __init__(self, size: int, pieces: Pieces, archives: Sequence[Any], values: Sequence[FormOfValue]) -> None:
        """
        Args:
            size: of the file, in bytes.
            archives: the owners of the pieces that are not values.
            values: in the order in which they were added.
        """
        self._size = size
        self._pieces = pieces
        self._archives = archives
        self._values = values

    def image(self, values: Sequence[Any]) -> Optional[Image]:
        """Returns the image of the file with these values; None if their form is another one."""
        sources = self._pieces.sources[:]
        owners: List[Any] = [self._archives]
        firsts: Dict[int, int] = {}
        for number, (value, form) in enumerate(zip(values, self._values)):
            address = _address_of_tensor(value, form) if form.is_tensor else _address_of_bytes(value, form, owners)
            if address is None:
                return None
            if form.size == 0:
                continue
            if form.is_tensor and firsts.setdefault(address, number) != form.first:
                return None  # Other tensors are tied.
            sources[form.piece] = address
            owners.append(value)
        pieces = Pieces(self._pieces.offsets, sources, self._pieces.lengths)
        return PiecesImage(self._size, pieces, owners)


def _address_of_tensor(value: Any, form: FormOfValue) -> Optional[int]:
    if (
        type(value) in _PLAIN
        and value.is_cpu
        and value.nbytes == form.size
        and value.is_contiguous()
        and not value.is_neg()
        and not value.is_conj()
        and not value.__dict__
    ):
        address: int = value.data_ptr()
        return address
    return None


def _address_of_bytes(value: Any, form: FormOfValue, owners: List[Any]) -> Optional[int]:
    if memoryview(value).nbytes != form.size:
        return None
    address, keep = native.address_of(value)
    owners.append(keep)
    return address


class FormRecorder:
    """Records the form of a TensorFile while that is filled."""

    def __init__(self) -> None:
        self._is_repeatable = True
        self._values: List[FormOfValue] = []
        self._firsts: Dict[int, int] = {}

    def add(self, piece: int, size: int, is_tensor: bool) -> None:
        """Records a value. A tensor that is tied to an earlier one names the piece of that one."""
        first = self._firsts.setdefault(piece, len(self._values)) if size else len(self._values)
        self._values.append(FormOfValue(piece, size, is_tensor, first))

    def give_up(self) -> None:
        """Records a value whose bytes are not one piece of the CPU's memory: the file cannot be repeated."""
        self._is_repeatable = False

    def form(self, size: int, pieces: Pieces, archives: Sequence[Any]) -> Optional[FileForm]:
        """Returns the form; None if the file cannot be repeated."""
        if not self._is_repeatable:
            return None
        sources = array("Q", pieces.sources)
        return FileForm(size, Pieces(pieces.offsets, sources, pieces.lengths), archives, self._values)
