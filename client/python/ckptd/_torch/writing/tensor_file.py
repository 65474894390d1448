"""A file of tensors one after another, each an archive of its own or bare elements, made without a copy of them."""

from array import array
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from ckptd._memory import native
from ckptd._memory.copies import Copies
from ckptd._memory.image import Image, JoinedImage, Memory, PiecesImage
from ckptd._memory.native import Pieces
from ckptd._torch.gpu import device_copy
from ckptd._torch.gpu.devices import devices
from ckptd._torch.writing import archive_writer
from ckptd._torch.writing.deferred_tensors import DeferredTensors, must_defer
from ckptd._torch.writing.file_form import FileForm, FormRecorder
from ckptd._torch.writing.state_pickler import Record
from ckptd._torch.writing.tensor_archive import around

ALIGNMENT = 64  # Bytes. Each archive begins at a multiple of it, and so do the elements in it.
_ZEROS = bytes(ALIGNMENT)
_ZEROS_ADDRESS = native.address_of(_ZEROS)[0]


class Placed(NamedTuple):
    """The place of a value in the file, in bytes."""

    offset: int
    length: int
    # The offset of the elements in the file, where they are contiguous; None if only torch.load knows it.
    elements: Optional[int]


class TensorFile:
    """Collects what goes into a file. The tensors must not change before the image is written."""

    def __init__(self) -> None:
        self.size = 0  # In bytes, so far.
        self._offsets, self._sources, self._lengths = array("Q"), array("Q"), array("Q")
        self._owners: List[Any] = []
        self._around: List[Any] = []  # Owners of the bytes around the elements.
        self._recorder = FormRecorder()
        self._archives: List[Tuple[int, Image]] = []  # Whole archives, of tensors that are not plain.
        self._strided: List[Tuple[int, Any]] = []
        self._on_devices: List[Tuple[int, Record]] = []
        self._device_tensors: List[Any] = []  # Those in _on_devices.
        self._deferred = DeferredTensors()
        self._deferred_records: List[Tuple[int, Record]] = []
        self._placed: Dict[Any, Tuple[Placed, int]] = {}  # Each with the number of the piece that has its elements.

    def add_bytes(self, data: Any) -> Placed:
        """Adds a bytes-like object."""
        begin, view = self.size, memoryview(data)
        self._recorder.add(len(self._offsets), view.nbytes, False)
        self._put(data)
        return Placed(begin, view.nbytes, begin)

    def add_archive(self, tensor: Any) -> Placed:
        """Adds the archive of a tensor. One that has been added before is not added again."""
        tensor = tensor.detach()
        if not _is_plain(tensor) or not archive_writer.own_writer_works():
            return self._add_unusual(tensor)
        identity = _identity(tensor)
        found = self._placed.get(identity)
        if found is None or identity is None:
            found = self._placed[identity] = self._add_archive(tensor)
        placed, piece = found
        self._recorder.add(piece, tensor.nbytes, True)
        return placed

    def add_elements(self, tensor: Any) -> Placed:
        """Adds the bare elements of a tensor. TypeError if it has no such form."""
        tensor = tensor.detach()
        if not _is_plain(tensor):
            raise TypeError(f"a {type(tensor).__name__} of layout {tensor.layout} cannot be saved as bare elements")
        begin = self.size
        self._recorder.give_up()
        self._put_elements(tensor)
        return Placed(begin, tensor.nbytes, begin)

    def image(self) -> Image:
        """Returns the image of the file."""
        pieces = Pieces(self._offsets, self._sources, self._lengths)
        plain = PiecesImage(self.size, pieces, (self._owners, self._around), self._fill())
        return JoinedImage(self.size, [(0, plain), *self._archives]) if self._archives else plain

    def form(self) -> Optional[FileForm]:
        """Returns the form of the file, to make others of; None if some value is more than bytes in the CPU's memory."""
        return self._recorder.form(self.size, Pieces(self._offsets, self._sources, self._lengths), self._around)

    def _add_unusual(self, tensor: Any) -> Placed:
        self._recorder.give_up()
        self._align()
        image, begin = archive_writer.image(tensor), self.size
        self._archives.append((begin, image))
        self.size += image.size
        return Placed(begin, image.size, None)

    def _add_archive(self, tensor: Any) -> Tuple[Placed, int]:
        """Returns where the archive is, and the number of the piece of the elements."""
        self._align()
        archive, begin = around(tensor.dtype, tuple(tensor.shape)), self.size
        self._around.append(archive)
        self._add_piece(archive.head_address, len(archive.head))
        elements, piece = self.size, len(self._offsets)
        self._put_elements(tensor)
        if archive.tail:
            self._add_piece(archive.tail_address, len(archive.tail))
        return Placed(begin, self.size - begin, elements), piece

    def _align(self) -> None:
        gap = -self.size % ALIGNMENT
        if gap:
            self._add_piece(_ZEROS_ADDRESS, gap)

    def _put(self, data: Any) -> None:
        size = memoryview(data).nbytes
        if size:
            address, keep = native.address_of(data)
            self._owners.append(keep)
            self._add_piece(address, size)

    def _add_piece(self, address: int, size: int) -> None:
        self._offsets.append(self.size)
        self._sources.append(address)
        self._lengths.append(size)
        self.size += size

    def _put_elements(self, tensor: Any) -> None:
        size = tensor.nbytes
        if size == 0:
            return
        if must_defer(tensor):
            placeholder = self._deferred.placeholder_for(tensor)
            self._deferred_records.append((self.size, Record(placeholder.untyped_storage(), 0, size)))
        elif not devices().is_host(tensor.untyped_storage()):
            tensor = tensor.resolve_conj().resolve_neg().contiguous()
            begin = tensor.storage_offset() * tensor.element_size()
            self._on_devices.append((self.size, Record(tensor.untyped_storage(), begin, begin + size)))
            self._device_tensors.append(tensor)
        elif tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            self._owners.append(tensor)
            return self._add_piece(tensor.data_ptr(), size)
        else:
            self._strided.append((self.size, tensor))
        self._recorder.give_up()
        self.size += size

    def _fill(self) -> Any:
        """Returns the function that writes what is not contiguous memory of the CPU; None if all is."""
        fill_rest = archive_writer.filler(
            self._on_devices, self._device_tensors, self._deferred_records, self._deferred)
        if not self._strided:
            return fill_rest

        def fill(memory: Memory, base: int, overlaps: bool) -> Optional[Copies]:
            copies = fill_rest(memory, base, overlaps) if fill_rest is not None else None
            for offset, tensor in self._strided:
                _write_strided(memory, base + offset, tensor)
            return copies

        return fill


def _write_strided(memory: Memory, at: int, tensor: Any) -> None:
    """Writes the elements of a tensor, in order, to an offset of the memory."""
    views = device_copy.views(memory, at, tensor.nbytes)
    if len(views) == 1 and views[0].data_ptr() % tensor.element_size() == 0:
        with torch.no_grad():
            views[0].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return
    whole = tensor.resolve_conj().resolve_neg().contiguous()  # It crosses the end of a segment.
    pieces = Pieces(array("Q", [0]), array("Q", [whole.data_ptr()]), array("Q", [whole.nbytes]))
    native.copy(memory.segments, at, pieces, 0, whole.nbytes, 1)


def _is_plain(tensor: Any) -> bool:
    """Returns whether the archive of a tensor depends only on dtype, shape and elements."""
    return must_defer(tensor) or (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
        and not tensor.__dict__
    )


def _identity(tensor: Any) -> Any:
    """Returns what is equal for plain tensors over the same elements; None if only torch can tell."""
    if must_defer(tensor) or tensor.nbytes == 0:
        return None
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), bits
