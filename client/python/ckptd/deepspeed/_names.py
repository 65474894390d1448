"""The checkpoint that a path of DeepSpeed belongs to, and files that belong to none."""

import os
import tempfile
from typing import Any, Optional

from ckptd._torch.writing import archive_writer
from ckptd.deepspeed._process import Place


def check_directory(save_dir: "str | os.PathLike[str]") -> None:
    """Raises ValueError for a URL."""
    if "://" in os.fspath(save_dir):
        raise ValueError(f'the directory is "{save_dir}", and ckptd saves to directories of this node: give a path')


def is_numbered(save_dir: "str | os.PathLike[str]") -> bool:
    """Returns whether a directory's name ends with a number, as where each checkpoint has a save_dir of its own."""
    return os.path.normpath(os.fspath(save_dir))[-1:].isdigit()


def place_of_file(path: str) -> Place:
    """Returns the place of the checkpoint that a file may be in."""
    root, tag = os.path.split(os.path.dirname(os.path.abspath(path)))
    return Place(root, tag)


def file_in(where: Place, path: str) -> Optional[str]:
    """Returns the name of a file in a checkpoint; empty for the checkpoint itself, None if it is not in there."""
    name = os.path.relpath(os.path.abspath(path), where.path)
    if name == ".":
        return ""
    return None if name.split(os.sep)[0] == ".." else name


def write_file(path: str, value: Any) -> None:
    """Writes what torch.save would write; it is durable, and appears as a whole, when this returns."""
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            for piece in archive_writer.image(value).stream():
                file.write(piece)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(folder)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
