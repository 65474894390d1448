"""What may be saved, and how it becomes the bytes of a file."""

import array
import io
import mmap
import os
from typing import Any, Union

from ckptd import _image
from ckptd._image import Image

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
VIEWS = ("compact", "keep")
_RAW = (bytes, bytearray, memoryview, mmap.mmap, array.array)


class File:
    """A file on disk, copied as it is when save() is called."""

    def __init__(self, path: "Union[str, os.PathLike[str]]") -> None:
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"ckptd.File({self.path!r})"


class Torch:
    """An object to be saved as torch.save would, under any file name.

    views="compact" drops the parts of storages that no tensor uses; "keep" saves storages whole, as torch
    does.
    """

    def __init__(self, obj: Any, views: str = "compact") -> None:
        if views not in VIEWS:
            raise ValueError(f'views is "{views}"; it is "compact" or "keep"')
        self.obj = obj
        self.views = views
        self._late: Any = None  # What some of its tensors stand for: _late.Late.


def image_of(name: str, value: Any, views: str = "compact") -> Image:
    """The image of one value of `files`. TypeError says what to write instead."""
    if isinstance(value, _RAW):
        return _image.of_buffer(value)
    if isinstance(value, File):
        return _image.of_file(value.path)
    if isinstance(value, Torch):
        return _torch_image(name, value.obj, value.views, value._late)
    if name.endswith(TORCH_SUFFIXES):
        return _torch_image(name, value, views)
    raise TypeError(
        f'the value of file "{name}" is {type(value).__name__}: write {_advice(value)}; values are bytes-like, ckptd.File(path), '
        f"ckptd.Torch(object), or any object under a name that ends in {', '.join(TORCH_SUFFIXES)}"
    )


def _torch_image(name: str, obj: Any, views: str, late: Any = None) -> Image:
    try:
        from ckptd import _torch_writer
    except ImportError as error:
        raise TypeError(
            f'file "{name}" is to be saved as torch.save would, but torch cannot be imported: {error}'
        ) from error
    return _torch_writer.image(obj, views, late)


def _advice(value: Any) -> str:
    """What to write for a value that has no file form of its own."""
    if isinstance(value, str):
        return "value.encode()"
    if isinstance(value, os.PathLike):
        return "ckptd.File(value) for what is in the file"
    if isinstance(value, io.BytesIO):
        return "value.getvalue()"
    if isinstance(value, io.StringIO):
        return "value.getvalue().encode()"
    if isinstance(value, (dict, list, tuple, int, float, bool)):
        return "json.dumps(value).encode() for a text file, or ckptd.Torch(value) for what torch.save would write"
    if type(value).__module__.partition(".")[0] == "numpy":
        return "value.tobytes() for the bare numbers, or what numpy.save puts into an io.BytesIO"
    return "ckptd.Torch(value) for what torch.save would write"
