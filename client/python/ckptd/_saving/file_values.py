"""The values that users save, and the file images that they become."""

import array
import io
import mmap
import os
from typing import Any, Union

from ckptd._memory import image
from ckptd._memory.image import Image

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
VIEWS = ("compact", "keep")
_SAFETENSORS = "safetensors.torch.save(value), which returns a safetensors file of a dict of tensors"
_RAW = (bytes, bytearray, memoryview, mmap.mmap, array.array)


class File:
    """A file on disk whose content is to be saved.

    It is read while :meth:`Run.save` or :meth:`Part.add` runs; ``OSError`` if that fails.

    Args:
        path (str or os.PathLike): the file to read.
    """

    def __init__(self, path: "Union[str, os.PathLike[str]]") -> None:
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"ckptd.File({self.path!r})"


class Torch:
    """An object to be saved as ``torch.save`` would save it, under any file name.

    Args:
        obj: any object that ``torch.save`` takes.
        views (str): ``"compact"`` drops the parts of storages that no tensor uses; ``"keep"`` saves storages
            whole, as ``torch.save`` does. Default: ``"compact"``
    """

    def __init__(self, obj: Any, views: str = "compact") -> None:
        if views not in VIEWS:
            raise ValueError(f'views is "{views}"; it must be "compact" or "keep"')
        self.obj = obj
        self.views = views
        self._deferred: Any = None  # A DeferredTensors: what some of its tensors are placeholders for.


def image_of(name: str, value: Any, views: str = "compact", counts_non_finite: bool = False) -> Image:
    """Returns the image of a file's value. TypeError, with what to write instead, if it has none.

    counts_non_finite: as for archive_writer.image().
    """
    if isinstance(value, Image):  # Made by another part of this package.
        return value
    if isinstance(value, _RAW):
        return image.of_buffer(value)
    if isinstance(value, File):
        return image.of_file(value.path)
    if isinstance(value, Torch):
        return _torch_image(name, value.obj, value.views, value._deferred, counts_non_finite)
    if name.endswith(TORCH_SUFFIXES):
        return _torch_image(name, value, views, None, counts_non_finite)
    advice = _SAFETENSORS if name.endswith(".safetensors") else _advice(value)
    raise TypeError(
        f'the value of file "{name}" is {type(value).__name__}: write {advice}; values are bytes-like, ckptd.File(path), '
        f"ckptd.Torch(object), or any object under a name that ends in {', '.join(TORCH_SUFFIXES)}"
    )


def _torch_image(name: str, obj: Any, views: str, deferred: Any, counts_non_finite: bool) -> Image:
    try:
        from ckptd._torch.writing import archive_writer
    except ImportError as error:
        raise TypeError(
            f'file "{name}" is to be saved as torch.save would save it, but torch cannot be imported: {error}'
        ) from error
    return archive_writer.image(obj, views, deferred, counts_non_finite)


def is_torch(name: str, value: Any) -> bool:
    """Returns whether a file is saved as torch.save would save it."""
    if isinstance(value, (Image, File, *_RAW)):
        return False
    return isinstance(value, Torch) or name.endswith(TORCH_SUFFIXES)


def _advice(value: Any) -> str:
    """Returns what to write in the place of a value that has no form as a file."""
    if isinstance(value, str):
        return "value.encode()"
    if isinstance(value, os.PathLike):
        return "ckptd.File(value) for the content of the file"
    if isinstance(value, io.BytesIO):
        return "value.getvalue()"
    if isinstance(value, io.StringIO):
        return "value.getvalue().encode()"
    if isinstance(value, (dict, list, tuple, int, float, bool)):
        return "json.dumps(value).encode() for a text file, or ckptd.Torch(value) for a file as torch.save writes it"
    if type(value).__module__.partition(".")[0] == "numpy":
        return "value.tobytes() for the bare numbers, or the bytes that numpy.save writes into an io.BytesIO"
    if type(value).__module__.partition(".")[0] == "torch":
        return 'files={"model.pt": state} for a whole state dict in one file, or ckptd.Torch(value) for this value alone'
    return "ckptd.Torch(value) for a file as torch.save writes it"
